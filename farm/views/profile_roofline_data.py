"""Read the JSON of `farm profile` for the report: a model's kernels and the device's roof.

The roofline: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model",
CACM 52 (2009).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.errors import UsageError
from farm.views.charts import LogScale

SCHEMA = "farm/profile/1"


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """A kernel of a profile.

    `milliseconds` per inference, `share` of the inference's time, `intensity` in operations per
    byte, and `roof_share`, its share of the roof if known.
    """

    kernel: str
    layer: str
    milliseconds: float
    share: float
    gflops: float
    intensity: float | None
    roof_share: float | None


@dataclass(frozen=True, slots=True)
class ProfileRoofline:
    """A profile: its kernels, the longest first.

    `gflops` and `gbytes_s` of the roof are None if it was not measured.
    """

    device: str
    model: str
    emulated: bool
    latency_ms: float
    gflops: float | None
    gbytes_s: float | None
    source: str
    points: tuple[KernelPoint, ...]

    @property
    def drawn(self) -> list[KernelPoint]:
        """Return the kernels that have a position in the chart."""
        return [point for point in self.points if point.intensity and point.gflops > 0]

    @property
    def scales(self) -> tuple[LogScale, LogScale] | None:
        """Return the scales of operations per byte and of GFLOP/s.

        None if there is nothing to draw.
        """
        if not (self.gflops and self.gbytes_s and self.drawn):
            return None
        ridge = self.gflops / self.gbytes_s
        across = LogScale.over(
            [ridge, *(point.intensity for point in self.drawn if point.intensity)]
        )
        return across, LogScale.over(
            [self.gflops, self.gbytes_s * across.low, *(point.gflops for point in self.drawn)]
        )


def read_profile_json(path: Path) -> ProfileRoofline:
    """Read a profile. Raises UsageError if the file cannot be read or holds no profile."""
    try:
        return _made(json.loads(path.read_text("utf-8")))
    except OSError as exc:
        raise UsageError(
            f"{path} cannot be read",
            exc.strerror or str(exc),
            "name a file that farm profile --json has written",
        ) from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        why = f"{type(exc).__name__}: {exc}"
        raise UsageError(
            f"{path} is no profile", why, "farm profile --device NAME MODEL --json > profile.json"
        ) from exc


def _made(body: Mapping[str, Any]) -> ProfileRoofline:
    if body["schema"] != SCHEMA:
        raise ValueError(f"its schema is {body['schema']!r}, this farm reads {SCHEMA!r}")
    roof = body["roof"] or {}
    points = sorted((_point(step) for step in body["steps"]), key=lambda point: -point.milliseconds)
    return ProfileRoofline(
        str(body["device"]),
        str(body["model"]),
        bool(body["emulated"]),
        1e3 * body["latency_s"],
        roof.get("gflops"),
        roof.get("gbytes_s"),
        str(roof.get("source", "")),
        tuple(points),
    )


def _point(step: Mapping[str, Any]) -> KernelPoint:
    intensity = (
        step["operations"] / step["nbytes"] if step["nbytes"] and step["operations"] else None
    )
    names, figures = (
        (str(step["kernel"]), str(step["layer"])),
        (1e3 * step["seconds"], float(step["share"]), float(step["gflops"])),
    )
    return KernelPoint(*names, *figures, intensity, step["roof_share"])
