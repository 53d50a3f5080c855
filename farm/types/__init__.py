"""Frozen, picklable data types without behaviour, shared by all packages of farm.

    accuracy              Accuracy, PredictionBatch: classification accuracy over labelled samples
    artifacts             PreparedModel, Artifact, Release: a model imported, built, installed
    bisect                KernelBisection, BisectedLayer, TensorFingerprint: kernel outputs
    cache_location        CacheLocation: where the shared cache lies, and the check of its URL
    cluster_address       the check of the address of a cluster
    engine_comparison     EngineComparison, EngineResult: farm and other inference engines
    fleet                 Profile, Device, Model, TensorSpec and so on: the content of devices.toml
    layer_variable_names  names of source operators, encoded in variables' names
    lease_key             new_lease_key, is_lease_key: keys of a lab's leases
    paired_measurement    BuildOfPair, PairedStopping, PairedSamples: interleaved builds
    postgres_url          checks of PostgreSQL URLs, and their form without secrets
    profiling             ModelProfile, KernelCall, Roofline, Span: kernel times, the roofline
    progress              Stage, Progress, Event: progress of a job
    python_source         parser of `python:package.module:function`
    tuning_record         TuningRecord: the fastest kernel configuration measured for a workload
    runs                  Plan, Job, Run, Samples, Latency, Verdict: a job and its result
    tuning                Task, Candidate, Variant, VariantBatch and so on: tuning

Values passed between packages have these types. Callers import them from this package.
"""

from farm.types.accuracy import Accuracy, PredictionBatch
from farm.types.artifacts import (
    Agreement,
    Artifact,
    DeviceBuild,
    Kernel,
    LayerError,
    PreparedModel,
    QuantizationResult,
    Release,
)
from farm.types.bisect import BisectedLayer, KernelBisection, TensorFingerprint
from farm.types.cache_location import CacheLocation, check_cache_url
from farm.types.cluster_address import SLURM, check_cluster_address
from farm.types.engine_comparison import ENGINES, EngineComparison, EngineResult
from farm.types.fleet import (
    DTYPES,
    LIMITS,
    QUANTIZED,
    RECIPES,
    Device,
    Limits,
    Model,
    PreprocessSettings,
    Profile,
    QuantizeSettings,
    TensorSpec,
    Value,
    describe_batch,
    describe_shape,
)
from farm.types.lease_key import is_lease_key, new_lease_key
from farm.types.paired_measurement import PairedBuild, PairedSamples, PairedStoppingRule
from farm.types.profiling import KernelCall, ModelProfile, Roofline, Span
from farm.types.progress import Event, Progress, Stage
from farm.types.runs import PRESETS, Failure, Job, Latency, Plan, Run, Samples, Verdict
from farm.types.tuning import (
    Candidate,
    ProposalRequest,
    Task,
    TuningRound,
    Variant,
    VariantBatch,
    VariantStarted,
    WrongVariant,
)
from farm.types.tuning_record import TuningRecord

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
    "CacheLocation",
    "Candidate",
    "Device",
    "DeviceBuild",
    "EngineComparison",
    "EngineResult",
    "Event",
    "Failure",
    "Job",
    "Kernel",
    "KernelBisection",
    "KernelCall",
    "Latency",
    "LayerError",
    "Limits",
    "Model",
    "ModelProfile",
    "PairedBuild",
    "PairedSamples",
    "PairedStoppingRule",
    "Plan",
    "PredictionBatch",
    "PreparedModel",
    "PreprocessSettings",
    "Profile",
    "Progress",
    "ProposalRequest",
    "QuantizationResult",
    "QuantizeSettings",
    "Release",
    "Roofline",
    "Run",
    "Samples",
    "Span",
    "Stage",
    "Task",
    "TensorFingerprint",
    "TensorSpec",
    "TuningRecord",
    "TuningRound",
    "Value",
    "Variant",
    "VariantBatch",
    "VariantStarted",
    "Verdict",
    "WrongVariant",
    "check_cache_url",
    "check_cluster_address",
    "describe_batch",
    "describe_shape",
    "is_lease_key",
    "new_lease_key",
]
