"""Frozen, picklable data types without behaviour, shared by all packages of farm.

    accuracy            Accuracy, PredictionBatch: classification accuracy over labelled samples
    artifacts           Prepared, Artifact, Release and so on: a model imported, built, installed
    bisect              KernelBisection, Layer, TensorFingerprint: outputs of single kernels
    cache_location      CacheLocation: where the shared cache lies, and the check of its URL
    cluster_address     the check of the address of a cluster
    engine_comparison   EngineComparison, EngineResult: farm and other inference engines
    fleet               Profile, Device, Model, TensorSpec and so on: the content of devices.toml
    layers              names of source operators, encoded in variables' names
    lease_key           new_lease_key, is_lease_key: keys of a lab's leases
    paired_measurement  BuildOfPair, PairedStopping, PairedSamples: two builds measured interleaved
    postgres_url        checks of PostgreSQL URLs, and their form without secrets
    profiling           Profiled, Step, Roofline, Span: seconds of each kernel, and the roofline
    progress            Stage, Progress, Event: progress of a job
    python_source       parser of `python:package.module:function`
    records             Record: the fastest kernel configuration measured for a workload
    runs                Plan, Job, Run, Samples, Latency, Verdict: a job and its result
    tuning              Task, Candidate, Variant, Batch and so on: the search for configurations

Values passed between packages have these types. Callers import them from this package.
"""

from farm.types.accuracy import Accuracy, PredictionBatch
from farm.types.artifacts import (
    Agreement,
    Artifact,
    DeviceBuild,
    Kernel,
    LayerError,
    Prepared,
    Quantized,
    Release,
)
from farm.types.bisect import KernelBisection, Layer, TensorFingerprint
from farm.types.cache_location import CacheLocation, check_cache_url
from farm.types.cluster_address import SLURM, check_cluster
from farm.types.engine_comparison import ENGINES, EngineComparison, EngineResult
from farm.types.fleet import (
    DTYPES,
    LIMITS,
    QUANTIZED,
    RECIPES,
    Device,
    Limits,
    Model,
    Preprocess,
    Profile,
    Quantize,
    TensorSpec,
    Value,
    batch_in_words,
    shape_in_words,
)
from farm.types.lease_key import is_lease_key, new_lease_key
from farm.types.paired_measurement import BuildOfPair, PairedSamples, PairedStopping
from farm.types.profiling import Profiled, Roofline, Span, Step
from farm.types.progress import Event, Progress, Stage
from farm.types.records import Record
from farm.types.runs import PRESETS, Failure, Job, Latency, Plan, Run, Samples, Verdict
from farm.types.tuning import (
    Batch,
    Candidate,
    Proposals,
    Task,
    TuningRound,
    Variant,
    VariantStarted,
    WrongVariant,
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
    "Batch",
    "BuildOfPair",
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
    "Latency",
    "Layer",
    "LayerError",
    "Limits",
    "Model",
    "PairedSamples",
    "PairedStopping",
    "Plan",
    "PredictionBatch",
    "Prepared",
    "Preprocess",
    "Profile",
    "Profiled",
    "Progress",
    "Proposals",
    "Quantize",
    "Quantized",
    "Record",
    "Release",
    "Roofline",
    "Run",
    "Samples",
    "Span",
    "Stage",
    "Step",
    "Task",
    "TensorFingerprint",
    "TensorSpec",
    "TuningRound",
    "Value",
    "Variant",
    "VariantStarted",
    "Verdict",
    "WrongVariant",
    "batch_in_words",
    "check_cache_url",
    "check_cluster",
    "is_lease_key",
    "new_lease_key",
    "shape_in_words",
]
