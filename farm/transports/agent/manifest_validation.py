"""Validate the manifests of releases that an agent returns; the agent is not trusted."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from farm.transports.agent.answer_validation import AgentAnswerError
from farm.types import PreprocessSettings, Release, TensorSpec

_MOST_TENSOR_BYTES = (1 << 31) - 1  # as in farm/agent/src/rpc/packet_check.h
_MOST_ELEMENT_BYTES = 8
_Text = Annotated[str, Field(max_length=1 << 16)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Texts = Annotated[dict[_Text, _Text], Field(max_length=1000)]


class _Tensor(BaseModel):
    model_config = ConfigDict(strict=True)
    name: _Text
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=32)]
    dtype: Annotated[str, Field(pattern=r"^(bool|u?int(8|16|32|64)|float(16|32|64)|bfloat16)$")]
    open: bool = False
    scale: _Number = 0.0
    zero: Annotated[int, Field(ge=-(1 << 31), lt=1 << 32)] = 0
    bounded: bool = False

    def spec(self) -> TensorSpec:
        """Return the tensor as a TensorSpec. Raises AgentAnswerError if it exceeds 2 GiB."""
        elements = math.prod(max(1, extent) for extent in self.shape)
        if elements * _MOST_ELEMENT_BYTES > _MOST_TENSOR_BYTES:
            raise AgentAnswerError("a manifest has a tensor of more than 2 GiB")
        return TensorSpec(**{**self.model_dump(), "shape": tuple(self.shape)})


class _Preprocess(BaseModel):
    model_config = ConfigDict(strict=True)
    mean: Annotated[list[_Number], Field(min_length=1, max_length=4096)] = [0.0]
    std: Annotated[list[_Number], Field(min_length=1, max_length=4096)] = [1.0]
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    channels: Literal["RGB", "BGR", "L"] = "RGB"
    crop: _Number | None = None
    stated: bool = False

    def preprocess(self) -> PreprocessSettings:
        """Return the settings as PreprocessSettings."""
        return PreprocessSettings(
            **{**self.model_dump(), "mean": tuple(self.mean), "std": tuple(self.std)}
        )


class _Manifest(BaseModel):
    """The manifest of a release as `farm.deployments.release_manifest` writes it.

    The agent adds the number of the release.
    """

    model_config = ConfigDict(strict=True)
    name: _Text
    release: Annotated[int, Field(ge=1, lt=1 << 53)]
    artifact: _Text
    profile: _Text
    files: _Texts
    inputs: Annotated[list[_Tensor], Field(max_length=1000)]
    outputs: Annotated[list[_Tensor], Field(max_length=1000)]
    preprocess: _Preprocess
    labels: list[_Text] | None = None
    installed_at: _Text
    versions: _Texts
    target: _Text = "llvm"  # absent from releases of older farms, which had none for GPUs

    def as_release(self, current: bool) -> Release:
        """Return the manifest as a Release."""
        return Release(
            name=self.name,
            number=self.release,
            current=current,
            artifact=self.artifact,
            profile=self.profile,
            files=self.files,
            inputs=tuple(tensor.spec() for tensor in self.inputs),
            outputs=tuple(tensor.spec() for tensor in self.outputs),
            preprocess=self.preprocess.preprocess(),
            labels=tuple(self.labels or ()),
            installed_at=self.installed_at,
            versions=self.versions,
            on_gpu=self.target != "llvm",
        )


class _Deployment(BaseModel):
    model_config = ConfigDict(strict=True)
    current: int | None
    releases: list[_Manifest]


class _Deployments(BaseModel):
    model_config = ConfigDict(strict=True)
    deployments: list[_Deployment]


def parse_release(content: Any, *, current: bool) -> Release:
    """Return the release that a manifest describes.

    Raises AgentAnswerError if the manifest is invalid.
    """
    try:
        return _Manifest.model_validate(content).as_release(current)
    except ValidationError as exc:
        raise _no_manifest(exc) from exc


def parse_releases(content: Any) -> list[Release]:
    """Return all releases of a device, by name and then newest first.

    Raises AgentAnswerError if a manifest is invalid.
    """
    try:
        found = _Deployments.model_validate({"deployments": content})
    except ValidationError as exc:
        raise _no_manifest(exc) from exc
    releases: list[Release] = []
    for deployment in found.deployments:
        current = deployment.current
        releases += [each.as_release(each.release == current) for each in deployment.releases]
    return releases


def _no_manifest(exc: ValidationError) -> AgentAnswerError:
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part)[:40] for part in first["loc"])
    return AgentAnswerError(
        f"a manifest has no form that farm gives it: {where}: {first['msg'][:200]}"
    )
