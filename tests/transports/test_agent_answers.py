"""What an agent says of itself and of its releases has the form that farm relies on, or is
refused.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import DeviceError
from farm.transports.agent import answer_validation as agent_answers
from farm.transports.agent import manifest_validation, version
from farm.transports.agent.answer_validation import AgentAnswerError
from farm.types import Device, PreprocessSettings, Profile, Release, TensorSpec

FACTS: dict[str, Any] = {
    "agent": "0.1.0",
    "protocol": 5,
    "tvm": "0.27.0",
    "machine": "x86_64",
    "hostname": None,
    "cores": 4,
    "big_cores": "0,2-3",
    "little_cores": None,
    "threads": 4,
    "thread_cores": "",
    "threads_pinned": False,
    "memory_total_bytes": 16e9,
    "time_s": 1732000000.123,
    "frequency_khz": [1e6, None],
    "temperatures_c": {"cpu": 41.5},
    "throttled": 0x50000,
    "gpu_slowed_by": ["its power cap"],
    "something_new": {"a": 1, "b": "c"},
}
DEEP = "[" * 100_000 + "]" * 100_000


def test_facts_become_texts() -> None:
    facts = agent_answers.check_facts(json.dumps(FACTS))
    assert (
        facts["threads"] == "4"
        and facts["temperatures_c"] == '{"cpu": 41.5}'
        and facts["threads_pinned"] == "false"
    )
    assert "hostname" not in facts
    nothing = {"throttled": 0, "threads_pinned": False, "thread_cores": "", "cpu_wait_s": 0.0}
    told = agent_answers.check_facts(json.dumps(nothing))
    assert told == {
        "throttled": "0",
        "threads_pinned": "false",
        "thread_cores": "",
        "cpu_wait_s": "0.0",
    }


@pytest.mark.parametrize(
    ("fact", "value"),
    [("throttled", -1), ("throttled", 1 << 32), ("cores", -1), ("threads", 1.5), ("cores", True)],
)
def test_a_count_and_flags_are_never_negative_and_fit(fact: str, value: object) -> None:
    with pytest.raises(AgentAnswerError, match=fact):
        agent_answers.check_facts(json.dumps({fact: value}))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        7,
        b"{}",
        "",
        "{",
        "[]",
        "7",
        "null",
        '"text"',
        DEEP,
        '{"a":' * 40 + "1" + "}" * 40,
        '{"time_s": NaN}',
        '{"time_s": Infinity}',
        '{"time_s": 1e999}',
        '{"time_s": ' + "9" * 5000 + "}",
        '{"time_s": 1e300}',
        '{"cpu": "\\ud800"}',
        json.dumps({"cpu": "x" * (1 << 17)}),
        json.dumps({str(number): "x" * 1000 for number in range(2000)}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_are_no_facts_are_refused(answer: object) -> None:
    with pytest.raises(AgentAnswerError) as caught:
        agent_answers.check_facts(answer)
    assert len(str(caught.value)) < 300


WRONG = (
    None,
    7,
    -1,
    1.5,
    True,
    "text",
    "0-99999999999",
    "9" * 100,
    [],
    ["x"],
    [[]],
    {},
    {"a": "b"},
    {"a": {"b": 1}},
    [True],
    1e30,
)


@pytest.mark.parametrize("name", agent_answers._FORMS)
def test_a_fact_that_passes_can_be_computed_with(name: str) -> None:
    for value in WRONG:
        try:
            text = agent_answers.check_facts(json.dumps({name: value})).get(name)
        except AgentAnswerError:
            continue
        if text is None:
            continue
        form = agent_answers._FORMS[name]
        if form in (agent_answers._is_count, agent_answers._is_number, agent_answers._is_flags):
            assert math.isfinite(float(text))
        elif form is agent_answers._is_text:
            assert isinstance(value, str)
        elif form is agent_answers._are_cores:
            from farm.executor.threads import parse_core_ranges

            assert text == "" or len(parse_core_ranges(text)) < 1 << 16
        else:
            content = json.loads(text)
            values = (
                content.values()
                if isinstance(content, dict)
                else content
                if isinstance(content, list)
                else [content]
            )
            assert all(isinstance(one, (int, float, str)) or one is None for one in values)


SCALARS = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5)
NAMES = st.sampled_from([*sorted(agent_answers._FORMS), "current", "releases", "name"])


@settings(max_examples=50)
@given(
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=6,
    )
)
def test_any_document_is_judged(content: Any) -> None:
    text = json.dumps(content)
    for read in (
        agent_answers.check_facts,
        lambda text: manifest_validation.parse_releases(agent_answers.parse_document("it", text)),
    ):
        try:
            read(text)
        except AgentAnswerError as error:
            assert str(error)


MANIFEST: dict[str, Any] = {
    "name": "digits",
    "release": 2,
    "artifact": "a" * 12,
    "profile": "x86",
    "target": "llvm",
    "files": {"library.so": "0" * 64},
    "inputs": [
        {
            "name": "x",
            "shape": [1, 1, 28, 26],
            "dtype": "int8",
            "open": True,
            "scale": 0.5,
            "zero": -3,
        }
    ],
    "outputs": [{"name": "y", "shape": [1, 10], "dtype": "float32"}],
    "preprocess": {
        "mean": [0],
        "std": [2.0],
        "layout": "NHWC",
        "channels": "L",
        "crop": 0.875,
        "stated": True,
    },
    "labels": ["one", "nil"],
    "installed_at": "2026-01-01T00:00:00",
    "versions": {"farm": "0.1.0"},
}


def test_a_manifest_becomes_a_release() -> None:
    found = manifest_validation.parse_release(MANIFEST, current=True)
    assert found == Release(
        name="digits",
        number=2,
        current=True,
        artifact="a" * 12,
        profile="x86",
        files={"library.so": "0" * 64},
        inputs=(TensorSpec("x", (1, 1, 28, 26), "int8", True, 0.5, -3),),
        outputs=(TensorSpec("y", (1, 10), "float32"),),
        preprocess=PreprocessSettings((0.0,), (2.0,), "NHWC", "L", crop=0.875, stated=True),
        labels=("one", "nil"),
        installed_at="2026-01-01T00:00:00",
        versions={"farm": "0.1.0"},
    )
    assert manifest_validation.parse_release({**MANIFEST, "target": "cuda"}, current=True).on_gpu


def test_of_the_releases_of_a_device_one_is_current_and_older_ones_say_less() -> None:
    older = {key: value for key, value in MANIFEST.items() if key not in ("target", "labels")}
    oldest = {**older, "release": 1, "preprocess": {"mean": [0.0], "std": [1.0]}}
    listed = manifest_validation.parse_releases(
        [
            {"name": "digits", "current": 2, "releases": [{**MANIFEST, "release": 3}, older]},
            {"name": "net", "current": None, "releases": [{**oldest, "name": "net"}]},
        ]
    )
    assert [(one.name, one.number, one.current) for one in listed] == [
        ("digits", 3, False),
        ("digits", 2, True),
        ("net", 1, False),
    ]
    assert [one.labels for one in listed] == [("one", "nil"), (), ()]
    assert listed[2].preprocess == PreprocessSettings() and not listed[2].on_gpu


@pytest.mark.parametrize(
    "change",
    [
        {"name": 7},
        {"release": "2"},
        {"release": 0},
        {"release": True},
        {"files": []},
        {"files": {"a": 1}},
        {"inputs": {}},
        {"inputs": [{"name": "x", "shape": [-1], "dtype": "float32"}]},
        {"inputs": [{"name": "x", "shape": [1 << 40], "dtype": "float32"}]},
        {"inputs": [{"name": "x", "shape": [1 << 20, 1 << 20, 0], "dtype": "float32"}]},
        {"inputs": [{"name": "x", "shape": [1] * 40, "dtype": "float32"}]},
        {"inputs": [{"name": "x", "shape": [1], "dtype": "V99999999999"}]},
        {"inputs": [{"name": "x", "shape": [1], "dtype": "object"}]},
        {"preprocess": None},
        {"preprocess": {"layout": "../.."}},
        {"preprocess": {"mean": []}},
        {"labels": [1]},
        {"labels": "0"},
        {"versions": None},
        {"installed_at": None},
    ],
    ids=str,
)
def test_what_is_no_manifest_is_refused(change: dict[str, Any]) -> None:
    body = {**MANIFEST, **change}
    with pytest.raises(AgentAnswerError):
        manifest_validation.parse_release(body, current=True)
    with pytest.raises(AgentAnswerError):
        manifest_validation.parse_releases([{"name": "digits", "current": 2, "releases": [body]}])


@pytest.mark.parametrize(
    "content",
    [
        None,
        7,
        {},
        [7],
        [{}],
        [{"current": 1}],
        [{"current": "1", "releases": []}],
        [{"current": 1, "releases": 7}],
    ],
)
def test_what_is_no_list_of_deployments_is_refused(content: object) -> None:
    with pytest.raises(AgentAnswerError):
        manifest_validation.parse_releases(content)


@pytest.mark.parametrize("answer", [None, "5", 1.0, True, -2, 11, 1 << 70])
def test_a_number_is_one_within_its_bounds(answer: object) -> None:
    assert agent_answers.check_number("it", 10, -1, 10) == 10
    with pytest.raises(AgentAnswerError, match="from -1 to 10"):
        agent_answers.check_number("it", answer, -1, 10)


@pytest.mark.parametrize(
    "answers", [[], [1.0], [1.0, math.nan], [1.0, math.inf], [1.0, -1e-9], [1.0, 1.0, 1.0]]
)
def test_times_are_as_many_as_were_asked_for_and_possible(answers: list[float]) -> None:
    assert agent_answers.check_durations("it", [1e-9, 1.0], 2) == [1e-9, 1.0]
    with pytest.raises(AgentAnswerError):
        agent_answers.check_durations("it", answers, 2)


def test_bytes_are_bytes() -> None:
    assert agent_answers.check_bytes("it", bytearray(b"x")) == b"x"
    with pytest.raises(AgentAnswerError):
        agent_answers.check_bytes("it", 1 << 40)


@pytest.mark.parametrize(
    ("cores", "fits"), [("0,2-65535", True), ("65536", False), ("0,2-99999", False), ("3-2", False)]
)
def test_a_list_of_cores_has_numbers_that_a_core_can_have(cores: str, fits: bool) -> None:
    """Such lists are written out core by core."""
    answer = json.dumps({"big_cores": cores})
    if fits:
        assert agent_answers.check_facts(answer) == {"big_cores": cores}
    else:
        with pytest.raises(AgentAnswerError, match="big_cores"):
            agent_answers.check_facts(answer)


@pytest.mark.parametrize(
    ("fact", "words"), [("protocol", "protocol"), ("agent", "farm"), ("tvm", "TVM")]
)
def test_an_agent_of_another_protocol_farm_or_tvm_is_refused(fact: str, words: str) -> None:
    device = Device("board", Profile("x86", {}, ""), "rpc://board:9090")
    version.check_versions(device, version.expected_facts())
    facts = {**version.expected_facts(), fact: "0.0"}
    with pytest.raises(DeviceError, match="is of another version") as caught:
        version.check_versions(device, facts)
    assert f"it has {words} 0.0, this farm has {words} " in caught.value.why


@pytest.mark.parametrize(
    ("url", "kind", "command"),
    [
        ("rpc://board:9091", "llvm", "farm agent --port 9091"),
        ("rpc://board:9091", "cuda", "farm agent --cuda --port 9091"),
        (
            "tracker://lab:9191/pi;5",
            "cuda",
            "farm agent --cuda --tracker lab:9191 --key 'pi;5'",
        ),
        ("tracker://lab/pi5", "llvm", "farm agent --tracker lab:9190 --key pi5"),
        ("lab:pi5", "cuda", "farm agent --cuda --tracker HOST:PORT --key KIND"),
    ],
)
def test_who_starts_an_agent_by_hand_is_told_the_command(url: str, kind: str, command: str) -> None:
    profile = Profile("a", {"kind": kind}, "", agent="x86_64")
    assert version.agent_start_command(Device("board", profile, url)) == command
