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
from farm.stats.efficiency import energy_j, energy_per_inference_j, per_second, power_w
from farm.stats.paired_test import LEAST_ROUNDS, compare_interleaved, ratio_interleaved
from farm.stats.quantiles import (
    P90_COUNT,
    P95_COUNT,
    P99_COUNT,
    latency,
    median_interval,
    rounds,
    spread,
)
from farm.stats.tensor_fingerprint import distance, fingerprint
from farm.stats.topk import top_indices
from farm.stats.verdict import (
    JUDGED_COUNT,
    drift_in_words,
    is_warmed_up,
    judge,
    unmet_requirements,
    verdict,
)

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
    "compare",
    "compare_interleaved",
    "distance",
    "drift_in_words",
    "energy_j",
    "energy_per_inference_j",
    "fingerprint",
    "is_warmed_up",
    "judge",
    "latency",
    "median_interval",
    "per_second",
    "power_w",
    "ratio_interleaved",
    "rounds",
    "spread",
    "steps",
    "top_indices",
    "uncertainty",
    "unmet_requirements",
    "verdict",
    "wilson_interval",
]
