"""The nouns. Every value that crosses a seam is one of these: frozen, picklable, without behaviour."""

from farm.types.bisect import Dissection, Layer, Likeness
from farm.types.counting import Accuracy, Answered
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
    batch_in_words,
    shape_in_words,
)
from farm.types.made import Agreement, Artifact, Fitted, Kernel, LayerError, Prepared, Quantized, Release
from farm.types.pairing import Paired, Side, Until
from farm.types.profiling import Profiled, Roof, Span, Step
from farm.types.progress import Event, Progress, Stage
from farm.types.records import Record
from farm.types.rivals import ENGINES, Contest, Rival
from farm.types.runs import PRESETS, Failure, Job, Latency, Plan, Run, Samples, Verdict
from farm.types.tuning import Batch, Candidate, Proposals, Round, Task, Trying, Variant, Wrong

__all__ = [
    "DTYPES",
    "ENGINES",
    "LIMITS",
    "PRESETS",
    "QUANTIZED",
    "RECIPES",
    "Accuracy",
    "Agreement",
    "Answered",
    "Artifact",
    "Batch",
    "Candidate",
    "Contest",
    "Device",
    "Dissection",
    "Event",
    "Failure",
    "Fitted",
    "Job",
    "Kernel",
    "Latency",
    "Layer",
    "LayerError",
    "Likeness",
    "Limits",
    "Model",
    "Paired",
    "Plan",
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
    "Rival",
    "Roof",
    "Round",
    "Run",
    "Samples",
    "Side",
    "Span",
    "Stage",
    "Step",
    "Task",
    "TensorSpec",
    "Trying",
    "Until",
    "Variant",
    "Verdict",
    "Wrong",
    "batch_in_words",
    "shape_in_words",
]
