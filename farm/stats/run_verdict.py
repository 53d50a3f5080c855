"""The verdict on a run and its reason in words.

The functions are pure: they take the samples and the device's facts read during the run.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence

from farm.stats.quantiles import relative_iqr
from farm.types import Agreement, DeviceResults, Latency, MeasurementSettings, Verdict

JUDGED_COUNT = 10  # hyperfine's minimum number of runs
MAX_CPU_WAIT = 0.05  # share of the measuring time
NOISY_ABOVE = 0.10  # IQR over median; above it torch.utils.benchmark measures longer
DRIFT_ABOVE = 0.05  # relative change of the median, from the first third of the samples to the last
# Largest difference of the device's clock from the host's: seconds, and a share of the time.
MAX_CLOCK_ERROR_S, CLOCK_APART = 0.5, 0.02
FREQUENCY_BELOW = 0.9  # relative to the clock frequency at the start of measuring
# Temperature at which the firmware of the Raspberry Pi and of similar boards begins to throttle.
HOT_C = 80.0
SETTLED_WITHIN = 0.03
_POWER_CAP = "power cap"  # a reason of farm/agent/src/execution/cuda/nvml.cc
MIN_THROTTLED_SLOWDOWN = 0.03  # slowdown that counts as throttling of a hot device

# The Raspberry Pi's flags: the current state; shifted by 16 bits, what has occurred since boot.
_FLAGS = {
    0: "its supply voltage is too low",
    1: "its frequency is capped",
    2: "it is throttled",
    3: "it is at its soft temperature limit",
}
# PowerManager.THERMAL_STATUS_* of Android
_THERMAL = {
    1: "lightly",
    2: "moderately",
    3: "severely",
    4: "critically",
    5: "in an emergency",
    6: "and is about to shut down",
}
# Facts of a phone, each with the words for its change to true and to false
_SWITCHES = {
    "screen_on": ("its screen went on during the run", "its screen went off during the run"),
    "external_power": (
        "it was plugged in to power during the run",
        "it was unplugged from power during the run",
    ),
}

Facts = Mapping[str, str]


def judge(
    device_emulated: bool,
    samples: DeviceResults,
    latency: Latency | None,
    plan: MeasurementSettings | None = None,
) -> tuple[Verdict, str]:
    """Return the verdict on a device's results, and its reason.

    A wrong answer outweighs everything, and an answer below the plan's requirements is wrong. A
    timing from an emulator is never a benchmark.
    """
    if (
        samples.agreement.right
        and plan
        and (
            reason := missed_accuracy_requirement_reason(
                plan, samples.agreement, samples.correct, samples.total
            )
        )
    ):
        return Verdict.WRONG, reason
    readings = (samples.facts_before, *samples.facts_during, samples.facts_after)
    early = verdict_from_answer_and_spread(
        device_emulated, samples.agreement, latency, samples.held_up
    )
    if (
        latency is None
        or early[0] not in (Verdict.STABLE, Verdict.NOISY)
        or latency.count < JUDGED_COUNT
    ):
        return early
    if reason := throttling_reason(readings, samples.seconds):
        return Verdict.THROTTLED, reason
    if early[0] is Verdict.NOISY:
        return early
    if (
        reason := unreliable_clock_reason(samples)
        or describe_phone_condition_change(readings)
        or drift_in_words(samples.seconds)
    ):
        return Verdict.NOISY, reason
    if samples.warm is False:
        return Verdict.NOISY, "it was still getting faster or slower when the warm-up had to end"
    return early


def missed_accuracy_requirement_reason(
    plan: MeasurementSettings, found: Agreement, correct: int | None, total: int | None
) -> str:
    """Return why an answer misses the plan's requirements, in words; empty if it meets them.

    Top-1 is that of the labelled samples; without them, it is the share of rows with the
    reference's best class.
    """
    if plan.min_snr_db is not None and found.snr_db < plan.min_snr_db:
        return (
            f"its signal to noise is {found.snr_db:.1f} dB, less than the {plan.min_snr_db:g} dB "
            "of --min-snr"
        )
    share = correct / total if correct is not None and total else found.top1
    if plan.min_top1 is None or (share is not None and share >= plan.min_top1):
        return ""
    if share is None:
        return "its output is no scores of classes, of which --min-top1 could be asked"
    return (
        f"its top-1 is {100 * share:.1f} %, less than the {100 * plan.min_top1:g} % of --min-top1"
    )


def verdict_from_answer_and_spread(
    device_emulated: bool,
    agreement: Agreement,
    latency: Latency | None,
    held_up: float | None = None,
) -> tuple[Verdict, str]:
    """Return the verdict from the answer, the spread of the samples and other work on the CPU.

    `held_up` is the share of time in which other work had the CPU: steady other work gives steady
    numbers that are too large.
    """
    if not agreement.right:
        if math.isinf(agreement.max_abs):
            return (
                Verdict.WRONG,
                (
                    "the answer has another shape or dtype than the reference's, or NaN or "
                    "infinity where that has none"
                ),
            )
        if agreement.why:
            return Verdict.WRONG, agreement.why
        return (
            Verdict.WRONG,
            f"the answer is off by up to {agreement.max_abs:.2g}, more than the tolerance",
        )
    if device_emulated:
        return Verdict.EMULATED, "latency under emulation is no benchmark"
    if latency is None:
        return Verdict.RIGHT, "the answer is right; it was not timed"
    if latency.count == 1:
        return Verdict.NOISY, "1 sample: an answer, not a benchmark"
    if latency.count < JUDGED_COUNT:
        return (
            Verdict.NOISY,
            f"{latency.count} samples: too few to judge, {JUDGED_COUNT} are needed",
        )
    if latency.p50_ms == 0:
        return Verdict.NOISY, "the median is 0 ms: the device's clock is too coarse for this model"
    figure = f"IQR {100 * relative_iqr(latency):.1f} % of the median"
    if held_up is not None and held_up > MAX_CPU_WAIT:
        return Verdict.NOISY, f"other work had the CPU for {100 * held_up:.0f} % of the time"
    if relative_iqr(latency) > NOISY_ABOVE:
        return Verdict.NOISY, f"{figure}, above {100 * NOISY_ABOVE:.0f} %, {latency.count} samples"
    blocks = f" of {latency.block} inferences" if latency.block > 1 else ""
    return Verdict.STABLE, f"{figure}, {latency.count} samples{blocks}"


def throttling_reason(readings: Sequence[Facts], seconds: Sequence[float]) -> str:
    """Return why the device is known to have been throttled; empty if it is not known.

    `readings` are the device's facts in order of time.
    """
    return (
        _flags(readings)
        or _by_android(readings)
        or _held_back(readings[1:-1])
        or _frequency(readings[1:-1])
        or _heat(readings, seconds)
    )


def _by_android(readings: Sequence[Facts]) -> str:
    """Return how Android holds its CPU back, in words; empty if it does not say so."""
    if any(facts.get("battery_saver") == "true" for facts in readings):
        return "its battery saver is on"
    status = max(
        (
            int(_numbers(facts, "thermal_status")[0])
            for facts in readings
            if "thermal_status" in facts
        ),
        default=0,
    )
    if status == 0:
        return ""
    return f"Android throttles it for its heat, {_THERMAL.get(status, f'status {status}')}"


def describe_phone_condition_change(readings: Sequence[Facts]) -> str:
    """Return what of a phone's conditions changed during the run, in words.

    Empty if nothing did.
    """
    for name, (on, off) in _SWITCHES.items():
        told = [facts[name] for facts in readings if name in facts]
        if len(set(told)) > 1:
            return on if told[-1] == "true" else off
    return ""


def _held_back(readings: Sequence[Facts]) -> str:
    """Return why the GPU's driver throttled the GPU, in words; empty if it did not.

    Its power cap does not count: under steady load the capped speed is the card's speed.
    """
    reasons = [
        reason
        for facts in readings
        for reason in json.loads(facts.get("gpu_slowed_by", "[]"))
        if reason != _POWER_CAP
    ]
    return f"its GPU says that it was slowed down: {reasons[0]}" if reasons else ""


def _flags(readings: Sequence[Facts]) -> str:
    """Return the firmware's flag that was set at any moment or since the first reading."""
    flags = [int(json.loads(facts["throttled"])) for facts in readings if "throttled" in facts]
    for bit, words in _FLAGS.items():
        if any(value >> bit & 1 for value in flags[1:]):
            return f"the device says that {words}"
        if (
            flags
            and not flags[0] >> (16 + bit) & 1
            and any(value >> (16 + bit) & 1 for value in flags[1:])
        ):
            return f"the device says that, meanwhile, {words}"
    return ""


def _frequency(readings: Sequence[Facts]) -> str:
    """Return a drop of the clock frequency during the measurement, in words; empty if none.

    `readings` are those under load. The frequency is the GPU's clock, or that of the fastest core;
    the median of the last third is compared with the maximum of the first third.
    """
    fastest = [
        max(known)
        for facts in readings
        if (known := _numbers(facts, "gpu_clock_khz") or _numbers(facts, "frequency_khz"))
    ]
    if len(fastest) < 3:
        return ""
    third = len(fastest) // 3
    first, last = max(fastest[:third]), statistics.median(fastest[-third:])
    if last >= FREQUENCY_BELOW * first:
        return ""
    return f"its clock fell from {first / 1e3:.0f} to {last / 1e3:.0f} MHz on the way"


def _heat(readings: Sequence[Facts], seconds: Sequence[float]) -> str:
    """Return that the device was hot and became slower, in words; empty if it is not the case."""
    hottest = max(
        (value for facts in readings for value in _numbers(facts, "temperatures_c")),
        default=-math.inf,
    )
    slower = relative_drift(seconds)
    if hottest < HOT_C or slower < MIN_THROTTLED_SLOWDOWN:
        return ""
    return f"it is at {hottest:.0f} °C, and became slower by {100 * slower:.0f} % on the way"


def _numbers(facts: Facts, name: str) -> list[float]:
    """Return the numbers of a fact that is a number, a list or a table by name.

    The result is empty for a fact that the device does not report.
    """
    content = json.loads(facts.get(name, "[]"))
    values = (
        content.values()
        if isinstance(content, dict)
        else content
        if isinstance(content, list)
        else [content]
    )
    return [float(value) for value in values if value is not None]


def unreliable_clock_reason(samples: DeviceResults) -> str:
    """Return why the device's clock is unreliable, in words; empty if it is not known to be.

    Either the samples add up to more than the elapsed time, or the clock jumped relative to the
    host's.
    """
    if samples.measured_s is None:
        return ""
    allowed = max(MAX_CLOCK_ERROR_S, CLOCK_APART * samples.measured_s)
    claimed = math.fsum(samples.seconds) * samples.block
    if claimed > samples.measured_s + allowed:
        return (
            f"its samples add up to {claimed:.1f} s, and we waited {samples.measured_s:.1f} s: "
            "the device's clock jumped or runs fast"
        )
    moments = [facts for facts in samples.facts_during if "time_s" in facts and "host_s" in facts]
    if len(moments) < 2:
        return ""
    theirs, ours = (
        float(moments[-1][name]) - float(moments[0][name]) for name in ("time_s", "host_s")
    )
    if abs(theirs - ours) > max(MAX_CLOCK_ERROR_S, CLOCK_APART * ours):
        return (
            f"the device's clock moved by {theirs:.1f} s while ours moved by {ours:.1f} s: it was "
            "set, or runs wrong"
        )
    return ""


def relative_drift(seconds: Sequence[float]) -> float:
    """Return by which fraction the last third of the samples is slower than the first third."""
    third = len(seconds) // 3
    if third == 0 or (first := statistics.median(seconds[:third])) <= 0:
        return 0.0
    return statistics.median(seconds[-third:]) / first - 1


def drift_in_words(seconds: Sequence[float]) -> str:
    """Return in words that the latency drifted by more than `DRIFT_ABOVE`; empty if it did not."""
    change = relative_drift(seconds)
    if abs(change) <= DRIFT_ABOVE:
        return ""
    return (
        f"it became {'slower' if change > 0 else 'faster'} by {100 * abs(change):.0f} % on the way"
    )


def is_warmed_up(windows: Sequence[Sequence[float]]) -> bool:
    """Return whether a warm-up is complete.

    It is unless the medians of its last three windows change in one direction by more than 3 % in
    total, or there are fewer than three windows.
    """
    if len(windows) < 3:
        return False
    first, second, third = (statistics.median(window) for window in windows[-3:])
    one_way = first < second < third or first > second > third
    return not (one_way and abs(third - first) > SETTLED_WITHIN * first)
