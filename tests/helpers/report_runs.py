"""Runs for reports: two boards and an emulated one, a history with a step, names that mean harm."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from farm import stats
from farm.types import Agreement, DeviceResults, Failure, ModelProfile, Run, Verdict
from farm.views.profile_roofline_data import ProfileRoofline, read_profile_json

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOSTILE = "<script>document.title='harm'</script>|net"
FACTS = {"cpu": "Cortex-A76", "governor": "performance", "temperatures_c": '{"cpu": 51.5}'}
LEDGER = {"build": 1.5, "connect": 0.4, "upload": 0.1, "compute": 3.0, "RPC": 0.001}
GONE = Failure(
    "DeviceError", "the board does not answer", "connection <b>refused</b>", "farm doctor", 5
)


def timed(
    device: str,
    model: str,
    number: int,
    middle_ms: float = 10.0,
    url: str = "local:",
    spread: float = 0.01,
    **changes: object,
) -> Run:
    """A run with a hundred samples."""
    draw = random.Random(ascii((device, model, number)))
    seconds = tuple(round(1e6 * middle_ms * abs(draw.gauss(1, spread))) / 1e9 for _ in range(100))
    samples = DeviceResults(
        seconds, 0.02, Agreement(2e-6, 110.0, True, True), 9, 10, FACTS, FACTS, LEDGER, 0
    )
    latency = stats.summarize_latency(seconds)
    verdict, reason = stats.judge(url.startswith("qemu"), samples, latency)
    when = (BEGIN + timedelta(days=number)).isoformat(timespec="milliseconds")
    run = Run(
        f"{device}-{model}-{number}",
        device,
        model,
        "x86",
        url,
        when,
        verdict,
        reason,
        f"{number:064x}",
        samples,
        latency,
    )
    return dataclasses.replace(run, **changes)  # type: ignore[arg-type]


def failed(device: str, model: str, number: int) -> Run:
    when = (BEGIN + timedelta(days=number)).isoformat(timespec="milliseconds")
    return Run(
        f"{device}-{model}-{number}",
        device,
        model,
        "x86",
        "ssh://x",
        when,
        Verdict.FAILED,
        GONE.what,
        failure=GONE,
    )


def many() -> list[Run]:
    """What `farm report` is shown with: everything that a page can hold."""
    runs = [
        timed(
            "pi5",
            "resnet18",
            number,
            10.0 if number < 6 else 12.0,
            versions={"farm": "1" if number < 6 else "2"},
        )
        for number in range(12)
    ]
    runs += [timed("host", "resnet18", number, 3.0) for number in range(3)]
    runs += [timed("host", HOSTILE, 1, 1.0, spread=0.4)]
    runs += [timed("pi3", "resnet18", 1, 431.7, "qemu:")]
    runs += [failed("pi5", HOSTILE, 2), failed("pi3", HOSTILE, 2)]
    return runs


# What `farm profile --json` prints, as much as a report looks at.
KEYS = ("kernel", "layer", "seconds", "operations", "nbytes", "share", "gflops", "roof_share")
ROWS = [
    ("conv", "<b>conv1</b>", 2e-3, 8e9, 1e7, 0.8, 4000.0, 0.4),
    ("relu", "", 5e-4, 1e6, 8e6, 0.2, 2.0, None),
    ("reshape", "", 0.0, 0, None, 0.0, 0.0, None),
]
PROFILE = {
    "schema": "farm/profile/1",
    "device": "pi5",
    "model": "net",
    "emulated": False,
    "latency_s": 2.5e-3,
    "steps": [dict(zip(KEYS, row, strict=True)) for row in ROWS],
    "roof": {"gflops": 10_000.0, "gbytes_s": 40.0, "source": "measured there"},
}


def read_profile(
    folder: Path, rows: Sequence[tuple[Any, ...]] = ROWS, **changes: Any
) -> ProfileRoofline:
    """That profile, written to a folder and read again."""
    steps = [dict(zip(KEYS, row, strict=True)) for row in rows]
    file = folder / "profile.json"
    file.write_text(json.dumps({**PROFILE, "steps": steps, **changes}))
    return read_profile_json(file)


def profiled(**changes: Any) -> ModelProfile:
    """A profile of `net` on pi5, without kernels."""
    profile = ModelProfile(
        device="pi5",
        model="net",
        profile="x86",
        url="local:",
        artifact_digest="0" * 64,
        started_at="2026-11-27T00:00:00+00:00",
        agreement=Agreement(max_abs=3e-6, snr_db=120.0, same_top1=True, right=True),
        steps=(),
        runtime_s=0.0,
        runtime_calls=0,
        plain_s=(1e-3,),
        recorded_s=(1e-3,),
        trace=(),
    )
    return dataclasses.replace(profile, **changes)
