"""The nouns. Every value that crosses a seam is one of these: frozen, picklable, without behaviour."""

from farm.types.fleet import Device, Model, Preprocess, Profile, TensorSpec
from farm.types.made import Agreement, Artifact, Kernel, Prepared, Release
from farm.types.progress import Event, Progress, Stage
from farm.types.records import Record
from farm.types.runs import PRESETS, Failure, Job, Latency, Plan, Run, Samples, Verdict

__all__ = [
    "PRESETS",
    "Agreement",
    "Artifact",
    "Device",
    "Event",
    "Failure",
    "Job",
    "Kernel",
    "Latency",
    "Model",
    "Plan",
    "Prepared",
    "Preprocess",
    "Profile",
    "Progress",
    "Record",
    "Release",
    "Run",
    "Samples",
    "Stage",
    "TensorSpec",
    "Verdict",
]
