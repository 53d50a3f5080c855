"""The verdict on a run, from samples and facts that are made up: what no device can be brought to
at will.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path

import pytest

import farm.agent
from farm import comparison, stats
from farm.commands.common import Session
from farm.commands.judge import baseline_comparison
from farm.errors import DeviceError
from farm.stats.run_verdict import _POWER_CAP
from farm.types import Agreement, DeviceResults, Latency, Run, Verdict

RIGHT = Agreement(0.0, math.inf, True, True)
WRONG = Agreement(0.5, 3.0, False, False)


def seconds(count: int = 200, slower_at_the_end: float = 0.0) -> tuple[float, ...]:
    draw = random.Random(7)
    return tuple(
        0.01 * abs(draw.gauss(1, 0.01)) * (1 + slower_at_the_end * (index > count / 2))
        for index in range(count)
    )


def samples(during: list[dict[str, object]] | None = None, **changes: object) -> DeviceResults:
    """A calm measurement of two seconds, with these facts on the way; the first and the last of
    them are also those before and after.
    """
    facts = [
        {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in one.items()
        }
        for one in during or [{}]
    ]
    calm = DeviceResults(
        seconds(),
        0.02,
        RIGHT,
        None,
        None,
        facts[0],
        facts[-1],
        {},
        0,
        measured_s=2.1,
        warm=True,
        held_up=0.0,
    )
    return dataclasses.replace(calm, **{"facts_during": tuple(facts), **changes})  # type: ignore[arg-type]


def judged(told: DeviceResults, emulated: bool = False) -> tuple[Verdict, str]:
    return stats.judge(
        emulated, told, stats.summarize_latency(told.seconds, told.block) if told.seconds else None
    )


def clock(*mhz: int) -> list[dict[str, object]]:
    return [{"frequency_khz": [1000 * value, 300_000]} for value in mhz]


def gpu_clock(*mhz: int) -> list[dict[str, object]]:
    """The clock of a GPU, beside a CPU whose clock stays."""
    return [{"gpu_clock_khz": 1000 * value, "frequency_khz": [2_000_000]} for value in mhz]


def at(*degrees: float) -> list[dict[str, object]]:
    return [{"temperatures_c": {"cpu": value, "wifi": 30.0}} for value in degrees]


def flags(*values: int) -> list[dict[str, object]]:
    return [{"throttled": value} for value in values]


def slowed(*reasons: str) -> list[dict[str, object]]:
    return [{"gpu_slowed_by": []}, {"gpu_slowed_by": list(reasons)}, {"gpu_slowed_by": []}]


def phone(*told: dict[str, object]) -> list[dict[str, object]]:
    usual = {"battery_saver": False, "thermal_status": 0, "screen_on": True, "external_power": True}
    return [{**usual, **one} for one in told]


def moments(*pairs: tuple[float, float]) -> list[dict[str, object]]:
    return [{"time_s": theirs, "host_s": ours} for theirs, ours in pairs]


BOOSTED = {"frequency_khz": json.dumps([1_400_000, 300_000])}
HEATED = {"gpu_slowed_by": json.dumps(["temperature"])}
HOT = samples(at(60, 82, 85), seconds=seconds(slower_at_the_end=0.08))


@pytest.mark.parametrize(
    ("told", "verdict", "words"),
    [
        (samples(), Verdict.STABLE, "200 samples"),
        (samples(agreement=WRONG), Verdict.WRONG, "off by up to 0.5"),
        (samples(seconds=()), Verdict.RIGHT, "not timed"),
        (samples(slowed("temperature, by the hardware")), Verdict.THROTTLED, "temperature, by the hardware"),  # noqa: E501
        (samples(slowed("power cap")), Verdict.STABLE, "200 samples"),
        # before and after the run, which other work had heated
        (samples(slowed(), facts_before=HEATED, facts_after=HEATED), Verdict.STABLE, "200 samples"),
        (samples(seconds=seconds(9)), Verdict.NOISY, "too few"),
        (samples(clock(1400, 1400, 1400, 1400, 600, 600)), Verdict.THROTTLED, "from 1400 to 600 MHz"),  # noqa: E501
        (samples(clock(1400, 1400, 1390, 1400, 1390, 1400)), Verdict.STABLE, ""),
        # a governor that wakes up
        (samples(clock(600, 1400, 1400, 1400, 1400, 1400)), Verdict.STABLE, ""),
        # read while it was idle
        (samples(clock(1400, 1400, 600, 1400, 1400, 1400)), Verdict.STABLE, ""),
        # of one core, before the run
        (samples(clock(1000, 1000, 1000, 1000), facts_before=BOOSTED), Verdict.STABLE, ""),
        (samples(gpu_clock(1700, 1700, 1000, 1000)), Verdict.THROTTLED, "from 1700 to 1000 MHz"),
        (HOT, Verdict.THROTTLED, "85 °C"),
        (samples(at(60, 82, 85)), Verdict.STABLE, ""),  # hot, and as fast as before
        (samples(at(60, 82, 85), seconds=seconds(slower_at_the_end=0.04)), Verdict.THROTTLED, "slower by 4 %"),  # noqa: E501
        (samples(at(60, 75, 79), seconds=seconds(slower_at_the_end=0.04)), Verdict.STABLE, ""),
        # slower, and not hot
        (samples(at(40, 41, 42), seconds=seconds(slower_at_the_end=0.08)), Verdict.NOISY, "slower by 8 %"),  # noqa: E501
        (samples(flags(0, 0b100, 0)), Verdict.THROTTLED, "it is throttled"),
        (samples(flags(0, 0, 0x10000)), Verdict.THROTTLED, "supply voltage"),
        (samples(flags(0x20000), facts_before={"throttled": "0"}), Verdict.THROTTLED, "frequency is capped"),  # noqa: E501
        (samples(flags(0x50000, 0x50000, 0x50000)), Verdict.STABLE, ""),  # long ago
        (samples(phone({}, {}, {})), Verdict.STABLE, "200 samples"),
        (samples(phone({}, {}, {"battery_saver": True})), Verdict.THROTTLED, "its battery saver is on"),  # noqa: E501
        (samples(phone({}, {}, {"thermal_status": 3})), Verdict.THROTTLED, "for its heat, severely"),  # noqa: E501
        (samples(phone({}, {}, {"screen_on": False})), Verdict.NOISY, "its screen went off"),
        (samples(phone({"external_power": False}, {}, {})), Verdict.NOISY, "plugged in to power"),
        (samples(held_up=0.5), Verdict.NOISY, "other work had the CPU for 50 %"),
        (samples(held_up=0.5, facts_during=HOT.facts_during, seconds=HOT.seconds), Verdict.THROTTLED, "85 °C"),  # noqa: E501
        (samples(seconds=seconds(slower_at_the_end=-0.08)), Verdict.NOISY, "faster by 8 %"),
        (samples(seconds=seconds(slower_at_the_end=0.03)), Verdict.STABLE, ""),
        (samples(moments((100, 5), (101, 6), (102.1, 7.1))), Verdict.STABLE, ""),
        (samples(moments((100, 5), (4000, 6), (4001, 7))), Verdict.NOISY, "clock moved by 3901.0 s while ours moved by 2.0 s"),  # noqa: E501
        (samples(moments((100, 5), (97, 6))), Verdict.NOISY, "clock moved by -3.0 s"),
        (samples(seconds=(*seconds(), 3600.0)), Verdict.NOISY, "jumped"),
        (samples(measured_s=1.0, seconds=seconds(190)), Verdict.NOISY, "clock jumped or runs fast"),
        (samples(measured_s=1.8), Verdict.STABLE, ""),  # half a second may be missing
        (samples(moments((100, 5), (200, 105), (301.5, 205))), Verdict.STABLE, ""),  # 2 % of 200 s
        (samples(warm=False), Verdict.NOISY, "warm-up"),
    ],
)  # fmt: skip
def test_a_verdict_and_its_reason(told: DeviceResults, verdict: Verdict, words: str) -> None:
    got, reason = judged(told)
    assert got is verdict
    assert words in reason


def test_nothing_of_an_emulator_is_a_benchmark_however_it_is_measured() -> None:
    assert judged(samples(clock(1400, 1400, 600, 600)), emulated=True)[0] is Verdict.EMULATED
    assert judged(samples(agreement=WRONG), emulated=True)[0] is Verdict.WRONG


def test_a_clock_that_runs_backwards_gives_no_times_at_all() -> None:
    with pytest.raises(DeviceError) as caught:
        judged(samples(seconds=(*seconds(), -5.0)))
    assert "clock jumped" in caught.value.why


def test_a_block_counts_as_all_of_its_inferences() -> None:
    told = samples(seconds=tuple(s / 1000 for s in seconds()), block=1000)
    assert judged(told) == (Verdict.STABLE, judged(told)[1])
    assert "200 samples of 1000 inferences" in judged(told)[1]
    assert judged(dataclasses.replace(told, measured_s=1.0))[0] is Verdict.NOISY


@pytest.mark.parametrize(
    ("medians", "settled"),
    [
        ([5, 4], False),
        ([5, 4, 3], False),
        ([3, 4, 5], False),
        ([9, 5, 5.1, 5], True),
        ([9, 7, 5, 5.1, 5], True),
        ([5, 5, 5, 4.8, 4.6], False),
        ([5, 5.08, 5.16], False),
        ([5, 5.04, 5.08], True),
        ([4, 5, 4], True),
    ],
)
def test_a_warm_up_is_over_when_it_no_longer_goes_one_way(
    medians: list[float], settled: bool
) -> None:
    assert (
        stats.is_warmed_up([[median, median * 1.5, median * 0.5] for median in medians]) is settled
    )


def run(
    verdict: Verdict = Verdict.STABLE, factor: float = 1.0, device: str = "pi", **facts: str
) -> Run:
    told = dataclasses.replace(
        samples(), seconds=tuple(factor * s for s in seconds()), facts_before=facts
    )
    latency: Latency = stats.summarize_latency(told.seconds)
    return Run(
        f"{device}-{factor}",
        device,
        "net",
        "x86",
        "local:",
        "2026-07-01T12:00:00",
        verdict,
        "why",
        "d" * 64,
        told,
        latency,
    )


def test_a_slower_run_is_told_with_what_else_differs() -> None:
    (pair,) = comparison.compare_run_pairs(
        [(run(governor="performance"), run(factor=1.1, governor="powersave"))]
    )
    assert pair.found.change is stats.ChangeVerdict.SLOWER and pair.found.ratio == pytest.approx(
        1.1
    )
    assert pair.differences == ("governor: performance → powersave",)
    assert json.loads(json.dumps(pair.as_json(), allow_nan=False))["change"] == "slower"


@pytest.mark.parametrize(
    "doubtful", [Verdict.NOISY, Verdict.THROTTLED, Verdict.EMULATED, Verdict.WRONG]
)
def test_a_run_that_is_not_to_be_trusted_is_no_evidence(doubtful: Verdict) -> None:
    (pair,) = comparison.compare_run_pairs([(run(), run(doubtful, factor=3.0))])
    assert pair.found.change is stats.ChangeVerdict.UNSURE
    assert f"the second is {doubtful.value}: why" in pair.found.reason
    assert not pair.found.reaches(0.0)
    if doubtful in (Verdict.NOISY, Verdict.THROTTLED):
        assert pair.found.ratio == pytest.approx(3.0)
    else:
        assert math.isnan(pair.found.ratio)


def test_a_device_that_was_warmer_or_busier_is_told_whichever_run_it_was() -> None:
    def told(load: str, *degrees: float) -> Run:
        first, during, last = (
            {"temperatures_c": json.dumps({"cpu": value, "wifi": 30.0})} for value in degrees
        )
        found = dataclasses.replace(
            samples(),
            facts_before={**first, "load_1m": load},
            facts_during=(during,),
            facts_after=last,
        )
        return dataclasses.replace(run(), samples=found)

    cool = told("0.1", 45.0, 44.0, 44.0)
    for degrees in ((71.5, 50.0, 50.0), (50.0, 71.5, 50.0), (50.0, 50.0, 71.5)):
        warm = told("0.9", *degrees)
        assert comparison.describe_differences(cool, warm) == [
            "temperature: 45.0 → 71.5 °C",
            "load: 0.1 → 0.9",
        ]
        assert comparison.describe_differences(warm, cool) == [
            "temperature: 71.5 → 45.0 °C",
            "load: 0.9 → 0.1",
        ]


def hints(pairs: list[tuple[Run, Run]], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The commands that a table of these pairs ends with."""
    baseline_comparison.show_comparison(
        Session(None, as_json=False, verbosity=0), comparison.compare_run_pairs(pairs), "again"
    )
    return [
        line.partition("in turns: ")[2]
        for line in capsys.readouterr().out.splitlines()
        if "in turns: " in line
    ]


def test_turns_are_advised_only_where_they_are_possible(capsys: pytest.CaptureFixture[str]) -> None:
    noisy = [
        dataclasses.replace(run(Verdict.NOISY, factor=factor), model_digest="m" * 64)
        for factor in (1.0, 1.1)
    ]
    a, b, c = (
        [dataclasses.replace(one, device=device, id=f"{device}-{one.id}") for one in noisy]
        for device in "abc"
    )
    assert hints([(a[0], a[1])], capsys) == ["farm compare --in-turns a-pi-1.0 a-pi-1.1"]
    assert hints([(a[0], a[1]), (b[0], b[1])], capsys) == ["again"]
    changes: list[dict[str, object]] = [
        {"device": "other"},
        {"profile": "rasp3b"},
        {"threads": 2},
        {"cores": "big"},
        {"pinned": True},
        {"url": "qemu:"},
        {"model_digest": None},
        {"artifact_digest": None},
        {"verdict": Verdict.WRONG},
    ]
    for change in changes:
        other = dataclasses.replace(c[1], **change)  # type: ignore[arg-type]
        assert hints([(c[0], other)], capsys) == [], change
        each = [f"farm compare --in-turns {device}-pi-1.0 {device}-pi-1.1" for device in "ab"]
        assert hints([(a[0], a[1]), (b[0], b[1]), (c[0], other)], capsys) == each, (
            change
        )  # one would keep all from being measured


def test_runs_of_two_sets_are_paired_by_model_and_device() -> None:
    a, b = run(device="a"), run(device="b")
    assert comparison.pair_runs([a, b], [run(device="b", factor=2), run(device="c")]) == [
        (b, run(device="b", factor=2))
    ]
    assert comparison.pair_runs([a], [b]) == [(a, b)]
    assert "device: a → b" in comparison.describe_differences(a, b)
    two, four, other = (
        dataclasses.replace(a, id=name, **changes)
        for name, changes in (("2", {"threads": 2}), ("4", {"threads": 4}), ("m", {"model": "m"}))
    )
    assert comparison.pair_runs([a, two, other], [other, four, two]) == [
        (other, other),
        (two, two),
    ]


def test_the_agent_gives_a_power_cap_the_name_that_does_not_count() -> None:
    source = Path(farm.agent.__file__).parent / "src/execution/cuda/nvml.cc"
    assert f'"{_POWER_CAP}"' in source.read_text()
