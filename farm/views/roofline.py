"""What `farm profile --json` printed, for the report: a model's kernels on a device, beside what the device can do at the most.

The roofline: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52 (2009).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.errors import UsageError
from farm.views.charts import Scale

SCHEMA = "farm/profile/1"


@dataclass(frozen=True, slots=True)
class Point:
    """A kernel: milliseconds of an inference and their share of it, GFLOP/s, operations per byte; its share of the roof, if known."""

    kernel: str
    layer: str
    milliseconds: float
    share: float
    gflops: float
    intensity: float | None
    roof_share: float | None


@dataclass(frozen=True, slots=True)
class Roofline:
    """A profile: its kernels, those first that take longest. GFLOP/s and GB/s of the roof are None where none was measured."""

    device: str
    model: str
    emulated: bool
    latency_ms: float
    gflops: float | None
    gbytes_s: float | None
    source: str
    points: tuple[Point, ...]

    @property
    def drawn(self) -> list[Point]:
        """Those that have a place in a chart."""
        return [point for point in self.points if point.intensity and point.gflops > 0]

    @property
    def scales(self) -> tuple[Scale, Scale] | None:
        """Of operations per byte, and of GFLOP/s; None where there is nothing to draw."""
        if not (self.gflops and self.gbytes_s and self.drawn):
            return None
        ridge = self.gflops / self.gbytes_s
        across = Scale.over([ridge, *(point.intensity for point in self.drawn if point.intensity)])
        return across, Scale.over([self.gflops, self.gbytes_s * across.low, *(point.gflops for point in self.drawn)])


def read(path: Path) -> Roofline:
    """Raises UsageError for a file that holds no profile."""
    try:
        return _made(json.loads(path.read_text("utf-8")))
    except OSError as exc:
        raise UsageError(f"{path} cannot be read", exc.strerror or str(exc), "name a file that farm profile --json has written") from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        why = f"{type(exc).__name__}: {exc}"
        raise UsageError(f"{path} is no profile", why, "farm profile --device NAME MODEL --json > profile.json") from exc


def _made(body: Mapping[str, Any]) -> Roofline:
    if body["schema"] != SCHEMA:
        raise ValueError(f"its schema is {body['schema']!r}, this farm reads {SCHEMA!r}")
    roof = body["roof"] or {}
    points = sorted((_point(step) for step in body["steps"]), key=lambda point: -point.milliseconds)
    return Roofline(
        str(body["device"]),
        str(body["model"]),
        bool(body["emulated"]),
        1e3 * body["latency_s"],
        roof.get("gflops"),
        roof.get("gbytes_s"),
        str(roof.get("source", "")),
        tuple(points),
    )


def _point(step: Mapping[str, Any]) -> Point:
    intensity = step["operations"] / step["nbytes"] if step["nbytes"] and step["operations"] else None
    names, figures = (str(step["kernel"]), str(step["layer"])), (1e3 * step["seconds"], float(step["share"]), float(step["gflops"]))
    return Point(*names, *figures, intensity, step["roof_share"])
