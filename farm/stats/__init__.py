"""Numbers from numbers: percentiles and how sure they are, how far two answers are apart, what a run is worth, whether two runs differ."""

from farm.stats.agreement import agreement, wilson_interval
from farm.stats.comparing import CONFIDENCE, Change, Comparison, compare, uncertainty
from farm.stats.efficiency import each_j, energy_j, per_second, power_w
from farm.stats.judging import JUDGED_COUNT, below, drifted, judge, settled, verdict
from farm.stats.likeness import apart, likeness
from farm.stats.pairing import LEAST_ROUNDS, compare_in_turns, ratio_in_turns
from farm.stats.quantiles import P90_COUNT, P95_COUNT, P99_COUNT, latency, median_interval, rounds, spread
from farm.stats.scores import best
from farm.stats.steps import Step, steps

__all__ = [
    "CONFIDENCE",
    "JUDGED_COUNT",
    "LEAST_ROUNDS",
    "P90_COUNT",
    "P95_COUNT",
    "P99_COUNT",
    "Change",
    "Comparison",
    "Step",
    "agreement",
    "apart",
    "below",
    "best",
    "compare",
    "compare_in_turns",
    "drifted",
    "each_j",
    "energy_j",
    "judge",
    "latency",
    "likeness",
    "median_interval",
    "per_second",
    "power_w",
    "ratio_in_turns",
    "rounds",
    "settled",
    "spread",
    "steps",
    "uncertainty",
    "verdict",
    "wilson_interval",
]
