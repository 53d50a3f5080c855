"""Models that stay on the device: releases of a name, one of them current, all their files safe
from eviction.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_calls import (
    BEGIN,
    DEPLOYED,
    HAS,
    INSTALL,
    LIST,
    OPEN,
    REMOVE,
    ROLLBACK,
    USAGE,
    Call,
    digest,
    in_session,
    in_sessions,
    put,
)
from agent_processes import Agent, begin_client
from timeouts import LIMIT_S

Start = Callable[..., Agent]


def manifest(size: int, name: str = "digits", artifact: str = "", **more: Any) -> str:
    """Of a model whose one file has so many zeros."""
    body = {
        "name": name,
        "artifact": artifact or f"artifact {size}",
        "files": {"library.so": digest(size)},
        "installed_at": "2026-01-02",
    }
    return json.dumps(body | more)


def models_of(agent: Agent) -> Path:
    return agent.folder / "work" / "store" / "models"


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_a_deployment_is_there_in_the_next_session_with_its_files(arch: str, start: Start) -> None:
    agent = start(arch)
    labels = ["zéro", 'one "1"', "two"]
    text = manifest(
        100,
        labels=labels,
        inputs=[{"name": "x", "shape": [1, 3], "dtype": "float32"}],
        preprocess={"mean": [0.485, 1e-9]},
    )
    installed, used = in_sessions(
        agent, [*put(100), [INSTALL, text], [DEPLOYED]], [[OPEN, "digits"], [LIST, "."], [USAGE]]
    )
    assert installed[3] == 1
    assert json.loads(used[0]) == json.loads(text) | {"release": 1}
    assert json.loads(installed[4]) == [
        {"name": "digits", "current": 1, "releases": [json.loads(used[0])]}
    ]
    assert used[1] == "library.so" and json.loads(used[2])["deployed_bytes"] == 100
    assert (models_of(agent) / "digits" / "current").readlink() == Path("1.json")


def test_the_same_artifact_again_is_no_new_release(start: Start) -> None:
    (results,) = in_sessions(
        start(),
        [
            *put(100),
            *put(101),
            [INSTALL, manifest(100)],
            [INSTALL, manifest(100, installed_at="later")],
            [INSTALL, manifest(100, artifact="another")],
            [INSTALL, manifest(101, artifact="another")],
        ],
    )
    assert results[6:] == [1, 1, 2, 3]


def test_going_back_goes_to_the_release_before_or_to_the_one_that_is_named(start: Start) -> None:
    sizes = (100, 101, 102)
    calls = [call for size in sizes for call in [*put(size), [INSTALL, manifest(size)]]]
    calls += [
        [ROLLBACK, "digits", 0],
        [ROLLBACK, "digits", 0],
        [ROLLBACK, "digits", 0],
        [ROLLBACK, "digits", 3],
        [ROLLBACK, "digits", 9],
    ]
    calls += [[ROLLBACK, "digits", 1], *put(103), [INSTALL, manifest(103)], [DEPLOYED]]
    (results,) = in_sessions(start(), calls)
    second, first, none, third, unknown, again, *_, number, listed = results[12:]
    assert [json.loads(text)["release"] for text in (second, first, third, again)] == [2, 1, 3, 1]
    assert "digits has no earlier release than 1" in none and "digits has no release 9" in unknown
    assert number == 4, "a release after one that was left has a number of its own"
    (deployment,) = json.loads(listed)
    assert deployment["current"] == 4 and [
        release["release"] for release in deployment["releases"]
    ] == [4, 3, 2, 1]


def test_the_newest_five_releases_and_the_current_one_stay(start: Start) -> None:
    agent = start()
    calls = [*put(100), [INSTALL, manifest(100)]]
    calls += [[INSTALL, manifest(100, artifact=f"{number}")] for number in range(2, 8)]
    calls += [[ROLLBACK, "digits", 3], [DEPLOYED]]
    (results,) = in_sessions(agent, calls)
    (deployment,) = json.loads(results[-1])
    assert [release["release"] for release in deployment["releases"]] == [
        7,
        6,
        5,
        4,
        3,
    ] and deployment["current"] == 3


def test_files_of_releases_are_never_pushed_out_and_those_of_a_removed_one_are(
    start: Start,
) -> None:
    agent = start("x86_64", "--store-budget", "1000")
    first, refused, removed = in_sessions(
        agent,
        [*put(300), [INSTALL, manifest(300)], *put(301), [INSTALL, manifest(301)]],
        [[BEGIN, digest(500), 500], [HAS, digest(300)], [USAGE]],
        [[REMOVE, "digits"], [DEPLOYED], [OPEN, "digits"], [REMOVE, "digits"], *put(900)],
    )
    assert first[3] == 1 and first[7] == 2
    assert (
        "the store's budget of 1000 bytes has no room for 500: 601 are deployed" in refused[0]
        and refused[1] == 300
    )
    assert json.loads(refused[2]) | {"free_bytes": 0} == {
        "bytes": 601,
        "files": 2,
        "deployed_bytes": 601,
        "budget_bytes": 1000,
        "free_bytes": 0,
    }
    assert removed[:2] == [None, "[]"] and removed[4:] == [0, None, None]
    assert all('nothing named "digits" is deployed' in text for text in removed[2:4])
    assert not list(models_of(agent).iterdir())


def test_a_deployment_of_what_is_not_in_the_store_is_refused(start: Start) -> None:
    ((result, listed),) = in_sessions(start(), [[INSTALL, manifest(100)], [DEPLOYED]])
    assert (
        f"the store has no file {digest(100)}, which is library.so of digits" in result
        and listed == "[]"
    )


WRONG = {
    "no JSON": ("{", "not a manifest"),
    "a list": ("[]", "not a manifest"),
    "no name": ('{"files": {}}', "`name` is missing"),
    "a number": ('{"name": 1}', "`name` is missing"),
    "no files": ('{"name": "a", "files": {}}', "it has 0 files"),
    "a path": (manifest(1, name="../a"), "not a plain file name"),
    "a hidden name": (manifest(1, name=".a"), "not a plain file name"),
    "a file elsewhere": (
        json.dumps({"name": "a", "files": {"../../x": digest(1)}}),
        "not a plain file name",
    ),
    "no digest": (json.dumps({"name": "a", "files": {"x": "abc"}}), "x has no SHA-256 digest"),
    "too large": (manifest(1, labels=["x" * 1_100_000]), "more than a MiB"),
    "too deep": ('{"a": ' + "[" * 500_000 + "]" * 500_000 + "}", "nested too deeply"),
}


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_a_manifest_that_makes_no_sense_is_refused_in_words(arch: str, start: Start) -> None:
    (results,) = in_sessions(
        start(arch), [*put(1), *([INSTALL, text] for text, _ in WRONG.values()), [DEPLOYED]]
    )
    for name, (_, words), result in zip(WRONG, WRONG.values(), results[3:], strict=False):
        assert words in result, name
    assert results[-1] == "[]"


def test_names_of_deployments_lead_nowhere_else(start: Start) -> None:
    names = ["", "..", "../models/digits", "digits/../digits", ".removed"]
    calls: list[Call] = [
        [call, name, *more]
        for name in names
        for call, more in ((OPEN, []), (ROLLBACK, [0]), (REMOVE, []))
    ]
    (results,) = in_sessions(start(), [*put(1), [INSTALL, manifest(1)], *calls, [OPEN, "digits"]])
    assert all("not a plain file name" in result for result in results[4:-1])
    assert json.loads(results[-1])["release"] == 1


def test_a_release_that_was_being_written_when_the_power_failed_is_none(start: Start) -> None:
    agent = start()
    in_sessions(agent, [*put(1), [INSTALL, manifest(1)]])
    folder = models_of(agent) / "digits"
    (folder / "2.json").write_text(
        manifest(1, artifact="next")
    )  # written, but not the current one yet
    (folder / "3.json.0badcafe.part").write_text("{")
    (folder / "current").with_name(".0badcafe").symlink_to("2.json")
    half = models_of(agent) / "half"
    half.mkdir()
    (half / "1.json").write_text(manifest(1, name="half"))
    removed = models_of(agent) / ".removed0badcafe"
    removed.mkdir()
    other = start("x86_64", "--store", str(models_of(agent).parent))
    ((opened, listed, number),) = in_sessions(
        other, [[OPEN, "digits"], [DEPLOYED], [INSTALL, manifest(1, artifact="other")]]
    )
    assert json.loads(opened)["release"] == 1
    assert [(entry["name"], entry["current"]) for entry in json.loads(listed)] == [("digits", 1)]
    assert number == 3
    assert not removed.exists()


def test_several_agents_share_a_store(start: Start) -> None:
    first = start()
    second = start("x86_64", "--store", str(models_of(first).parent))
    in_session(first, *put(100))
    calls = [[INSTALL, manifest(100, artifact=f"{number}")] for number in range(20)]
    together = [
        begin_client("call_sessions", port=agent.port, sessions=[calls])
        for agent in (first, second)
    ]
    numbers = [number for future in together for number in future.result(LIMIT_S)[0]]
    assert all(isinstance(number, int) for number in numbers)
    (deployment,) = json.loads(in_session(first, [DEPLOYED])[0])
    assert deployment["current"] == max(numbers)
    assert len(list((models_of(first) / "digits").iterdir())) == 6, (
        "five releases and a link, nothing half-written"
    )
