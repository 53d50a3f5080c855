"""What a job stands on, in which order that is made, and what another machine may make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farm.pipeline.job_dependencies import (
    AgentKey,
    BuildKey,
    PrepareKey,
    can_build_remotely,
    job_dependency_keys,
    unique_keys_in_build_order,
)
from farm.types import Device, Job, MeasurementSettings, Model, Profile

BOARD = Profile("pi", {"kind": "llvm", "mcpu": "cortex-a72"}, "aarch64-linux-gnu", agent="aarch64")


def job(model: str, url: str, profile: Profile = BOARD) -> Job:
    return Job(Device("board", profile, url), Model(model, "a.onnx"), MeasurementSettings())


@pytest.mark.parametrize(
    ("change", "may"),
    [
        ({}, True),
        ({"target": {"kind": "llvm", "mcpu": "native"}}, False),
        ({"target": {"kind": "cuda", "host": {"kind": "llvm", "mcpu": "native"}}}, False),
        ({"linker": ("arm-linux-gcc",)}, False),
    ],
    ids=str,
)
def test_a_build_for_this_machine_or_by_its_linker_is_made_here(
    change: dict[str, object], may: bool
) -> None:
    assert can_build_remotely(replace(BOARD, **change)) is may  # type: ignore[arg-type]


def test_what_jobs_share_is_made_once_agents_first_then_imports_then_builds() -> None:
    other = replace(BOARD, name="other", agent="x86_64")
    jobs = [
        job("a", "rpc://board:9090"),  # somebody else starts its agent
        job("b", "ssh://board"),
        job("a", "ssh://board"),
        job("a", "ssh://board", other),
    ]
    keys = unique_keys_in_build_order(key for one in jobs for key in job_dependency_keys(one))
    assert keys == [
        AgentKey("aarch64"),
        AgentKey("x86_64"),
        PrepareKey("a"),
        PrepareKey("b"),
        BuildKey("a", "pi"),
        BuildKey("b", "pi"),
        BuildKey("a", "other"),
    ]
    assert job_dependency_keys(jobs[0]) == [PrepareKey("a"), BuildKey("a", "pi")]
