"""Statistics: quantiles with intervals, agreement of outputs, verdicts, comparisons of runs.

    agreement                  difference of an output from the reference; Wilson interval of a
                               proportion
    changepoints               steps in a series of latencies
    compare_runs               Mann-Whitney test and bootstrap ratio of two separate runs
    probability_distributions  beta, binomial, Student's t and normal distributions, without SciPy
    energy_and_throughput      throughput, power and energy per inference
    input_perturbation         inputs that differ in their last bit, or by noise
    paired_test                Wilcoxon test and ratio of two builds that were measured interleaved
    quantiles                  latency percentiles, their intervals, MLPerf's early stopping
    tied_rows                  rows of one key in the order of the reference
    tensor_fingerprint         fingerprints of tensors that do not depend on the order of axes
    topk                       indices of the largest scores
    run_verdict                the verdict on a run: stable, noisy, throttled, wrong, ...

The functions are pure: values in, values out. A caller imports them from this package.
"""

from farm.stats.agreement import compare_outputs_with_reference, wilson_interval
from farm.stats.changepoints import LevelShift, find_level_shifts
from farm.stats.compare_runs import (
    CONFIDENCE,
    ChangeVerdict,
    Comparison,
    compare_separate_runs,
    median_relative_standard_error,
)
from farm.stats.energy_and_throughput import (
    energy_j,
    energy_per_inference_j,
    inferences_per_second,
    power_w,
)
from farm.stats.input_perturbation import inputs_changed_in_the_last_bit, inputs_with_noise
from farm.stats.paired_test import (
    LEAST_ROUNDS,
    compare_interleaved_pairs,
    interleaved_ratio_interval,
)
from farm.stats.quantiles import (
    P90_COUNT,
    P95_COUNT,
    P99_COUNT,
    median_interval,
    relative_iqr,
    split_into_rounds,
    summarize_latency,
)
from farm.stats.run_verdict import (
    JUDGED_COUNT,
    drift_in_words,
    is_warmed_up,
    judge,
    missed_accuracy_requirement_reason,
    verdict_from_answer_and_spread,
)
from farm.stats.tensor_fingerprint import fingerprint, relative_distance
from farm.stats.tied_rows import has_tied_numbers, has_tied_rows
from farm.stats.topk import top_indices

__all__ = [
    "CONFIDENCE",
    "JUDGED_COUNT",
    "LEAST_ROUNDS",
    "P90_COUNT",
    "P95_COUNT",
    "P99_COUNT",
    "ChangeVerdict",
    "Comparison",
    "LevelShift",
    "compare_interleaved_pairs",
    "compare_outputs_with_reference",
    "compare_separate_runs",
    "drift_in_words",
    "energy_j",
    "energy_per_inference_j",
    "find_level_shifts",
    "fingerprint",
    "has_tied_numbers",
    "has_tied_rows",
    "inferences_per_second",
    "inputs_changed_in_the_last_bit",
    "inputs_with_noise",
    "interleaved_ratio_interval",
    "is_warmed_up",
    "judge",
    "median_interval",
    "median_relative_standard_error",
    "missed_accuracy_requirement_reason",
    "power_w",
    "relative_distance",
    "relative_iqr",
    "split_into_rounds",
    "summarize_latency",
    "top_indices",
    "verdict_from_answer_and_spread",
    "wilson_interval",
]
