"""The nouns. Every value that crosses a seam is one of these: frozen, picklable, without behaviour."""

from farm.types.fleet import Device, Model, Preprocess, Profile, TensorSpec, batch_in_words, shape_in_words
from farm.types.made import Agreement, Artifact, Kernel, Prepared, Release
from farm.types.progress import Event, Progress, Stage
from farm.types.records import Record
from farm.types.runs import PRESETS, Failure, Job, Latency, Plan, Run, Samples, Verdict
from farm.types.tuning import Batch, Candidate, Paired, Round, Task, Trying, Variant, Wrong

__all__ = [
    "PRESETS",
    "Agreement",
    "Artifact",
    "Batch",
    "Candidate",
    "Device",
    "Event",
    "Failure",
    "Job",
    "Kernel",
    "Latency",
    "Model",
    "Paired",
    "Plan",
    "Prepared",
    "Preprocess",
    "Profile",
    "Progress",
    "Record",
    "Release",
    "Round",
    "Run",
    "Samples",
    "Stage",
    "Task",
    "TensorSpec",
    "Trying",
    "Variant",
    "Verdict",
    "Wrong",
    "batch_in_words",
    "shape_in_words",
]
