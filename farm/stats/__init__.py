"""Statistics: quantiles with intervals, agreement of outputs, verdicts, comparisons of runs.

    agreement            difference of an output from the reference; Wilson interval of a proportion
    changepoints         steps in a series of latencies
    compare_runs         Mann-Whitney test and bootstrap ratio of two separate runs
    distributions        beta, binomial, Student's t and normal distributions, without SciPy
    efficiency           throughput, power and energy per inference
    paired_test          Wilcoxon test and ratio of two builds that were measured interleaved
    quantiles            latency percentiles, their intervals, MLPerf's early stopping
    tensor_fingerprint   fingerprints of tensors that do not depend on the order of axes
    topk                 indices of the largest scores
    verdict              the verdict on a run: stable, noisy, throttled, wrong, ...

The functions are pure: values in, values out. A caller imports them from this package.
"""

from farm.stats.agreement import agreement, wilson_interval
from farm.stats.changepoints import Step, steps
from farm.stats.compare_runs import CONFIDENCE, Change, Comparison, compare, uncertainty
from farm.stats.efficiency import each_j, energy_j, per_second, power_w
from farm.stats.paired_test import LEAST_ROUNDS, compare_in_turns, ratio_in_turns
from farm.stats.quantiles import (
    P90_COUNT,
    P95_COUNT,
    P99_COUNT,
    latency,
    median_interval,
    rounds,
    spread,
)
from farm.stats.tensor_fingerprint import apart, likeness
from farm.stats.topk import best
from farm.stats.verdict import JUDGED_COUNT, below, drifted, judge, settled, verdict

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
