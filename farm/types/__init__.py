"""Frozen, picklable data types without behaviour, shared by all packages of farm.

    accuracy                   Accuracy, PredictionsReported: classification accuracy over labelled
                               samples
    artifacts                  PreparedModel, Artifact, Release: a model imported, built, installed
    bisect                     KernelBisection, BisectedLayer, TensorFingerprint: kernel outputs
    shared_cache_location      SharedCacheLocation: where the shared cache lies, and the check of
                               its URL
    cluster_address            the check of the address of a cluster
    engine_comparison          EngineComparison, EngineResult: farm and other inference engines
    fleet_config               Profile, Device, Model, TensorSpec and so on: the content of
                               devices.toml
    layer_variable_names       names of source operators, encoded in variables' names
    lease_key                  new_lease_key, is_lease_key: keys of a lab's leases
    paired_measurement         PairedBuild, PairedStoppingRule, PairedSamples: interleaved builds
    postgres_url               checks of PostgreSQL URLs, and their form without secrets
    profiling                  ModelProfile, KernelCall, Roofline, Span: kernel times, the roofline
    progress                   Stage, Progress, Event: progress of a job
    python_function_reference  parser of `python:package.module:function`
    tuning_record              TuningRecord: the fastest kernel configuration measured for a
                               workload
    runs                       MeasurementSettings, Job, Run, DeviceResults, Latency, Verdict: a job
                               and its result
    tuning                     Task, Candidate, CompiledCandidate, CompiledCandidateBatch and so on:
                               tuning

Values passed between packages have these types. Callers import them from this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farm.types.artifacts import (
    Agreement,
    Artifact,
    BuildWithAgent,
    Kernel,
    PreparedModel,
    QuantizationComparison,
    QuantizedTensorSnr,
    Release,
)
from farm.types.cluster_address import SLURM, check_cluster_address
from farm.types.fleet_config import (
    DTYPES,
    LIMITS,
    QUANTIZED,
    RECIPES,
    Device,
    Model,
    OutputErrorLimits,
    PreprocessSettings,
    Profile,
    QuantizeSettings,
    TensorSpec,
    Value,
    describe_open_batch,
    describe_shape,
)
from farm.types.progress import Event, Progress, Stage
from farm.types.runs import (
    PRESETS,
    DeviceResults,
    Failure,
    Job,
    Latency,
    MeasurementSettings,
    Run,
    Verdict,
)
from farm.types.shared_cache_location import SharedCacheLocation, normalize_cache_url
from farm.types.tuning_record import TuningRecord

if TYPE_CHECKING:
    from farm.types.accuracy import Accuracy, PredictionsReported
    from farm.types.bisect import BisectedLayer, KernelBisection, TensorFingerprint
    from farm.types.engine_comparison import ENGINES, EngineComparison, EngineResult
    from farm.types.lease_key import is_lease_key, new_lease_key
    from farm.types.paired_measurement import PairedBuild, PairedSamples, PairedStoppingRule
    from farm.types.profiling import KernelCall, ModelProfile, Roofline, Span
    from farm.types.tuning import (
        Candidate,
        CompiledCandidate,
        CompiledCandidateBatch,
        CompiledCandidateStarted,
        ProposalRequest,
        Task,
        TuningRoundTimings,
        WrongCompiledCandidate,
    )

__all__ = [
    "DTYPES",
    "ENGINES",
    "LIMITS",
    "PRESETS",
    "QUANTIZED",
    "RECIPES",
    "SLURM",
    "Accuracy",
    "Agreement",
    "Artifact",
    "BisectedLayer",
    "BuildWithAgent",
    "Candidate",
    "CompiledCandidate",
    "CompiledCandidateBatch",
    "CompiledCandidateStarted",
    "Device",
    "DeviceResults",
    "EngineComparison",
    "EngineResult",
    "Event",
    "Failure",
    "Job",
    "Kernel",
    "KernelBisection",
    "KernelCall",
    "Latency",
    "MeasurementSettings",
    "Model",
    "ModelProfile",
    "OutputErrorLimits",
    "PairedBuild",
    "PairedSamples",
    "PairedStoppingRule",
    "PredictionsReported",
    "PreparedModel",
    "PreprocessSettings",
    "Profile",
    "Progress",
    "ProposalRequest",
    "QuantizationComparison",
    "QuantizeSettings",
    "QuantizedTensorSnr",
    "Release",
    "Roofline",
    "Run",
    "SharedCacheLocation",
    "Span",
    "Stage",
    "Task",
    "TensorFingerprint",
    "TensorSpec",
    "TuningRecord",
    "TuningRoundTimings",
    "Value",
    "Verdict",
    "WrongCompiledCandidate",
    "check_cluster_address",
    "describe_open_batch",
    "describe_shape",
    "is_lease_key",
    "new_lease_key",
    "normalize_cache_url",
]

# Types of few commands. Making a dataclass takes half a millisecond, and all would take a tenth of
# the time of a short command.
_OF_FEW_COMMANDS = {
    "Accuracy": "accuracy",
    "PredictionsReported": "accuracy",
    "BisectedLayer": "bisect",
    "KernelBisection": "bisect",
    "TensorFingerprint": "bisect",
    "ENGINES": "engine_comparison",
    "EngineComparison": "engine_comparison",
    "EngineResult": "engine_comparison",
    "is_lease_key": "lease_key",
    "new_lease_key": "lease_key",
    "PairedBuild": "paired_measurement",
    "PairedSamples": "paired_measurement",
    "PairedStoppingRule": "paired_measurement",
    "KernelCall": "profiling",
    "ModelProfile": "profiling",
    "Roofline": "profiling",
    "Span": "profiling",
    "Candidate": "tuning",
    "CompiledCandidate": "tuning",
    "CompiledCandidateBatch": "tuning",
    "CompiledCandidateStarted": "tuning",
    "ProposalRequest": "tuning",
    "Task": "tuning",
    "TuningRoundTimings": "tuning",
    "WrongCompiledCandidate": "tuning",
}


def __getattr__(name: str) -> Any:
    """Import a type of few commands on first use."""
    if name not in _OF_FEW_COMMANDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_OF_FEW_COMMANDS[name]}"), name)
