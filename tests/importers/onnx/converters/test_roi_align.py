"""RoiAlign, with a fixed and with a dynamic number of regions: as in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from host_build import assert_agrees_with_onnxruntime
from onnx_models import graph, node, save

RANDOM = np.random.default_rng(11)
REGIONS = 9


def inputs(channels=5, side=16.0, scale=1.0):
    """Images, and regions that lie in them, at their border and outside of them."""
    low = RANDOM.random((REGIONS, 2)) * side - 2
    high = low + RANDOM.random((REGIONS, 2)) * side * 1.2
    low[0], high[0] = [3, 3], [3, 3]  # of no extent
    low[1], high[1] = [90, 90], [99, 99]  # outside
    return {
        "x": RANDOM.standard_normal((2, channels, 12, 16)).astype(np.float32),
        "regions": (np.concatenate([low, high], 1) / scale).astype(np.float32),
        "numbers": RANDOM.integers(0, 2, REGIONS),
        "keep": RANDOM.random(REGIONS) < 0.5,
    }


@pytest.mark.parametrize("channels", [5, 16, 40])
@pytest.mark.parametrize("samples", [0, 1, 2])
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
def test_regions_are_sampled_as_in_onnx_runtime(mode, scale, samples, channels, cache, tmp_path):
    body = graph(
        [
            node(
                "RoiAlign",
                ["x", "regions", "numbers"],
                ["y"],
                output_height=3,
                output_width=4,
                sampling_ratio=samples,
                spatial_scale=scale,
                coordinate_transformation_mode=mode,
            )
        ],
        {"x": [2, channels, 12, 16], "regions": [REGIONS, 4], "numbers": ("int64", [REGIONS])},
        {"y": [REGIONS, channels, 3, 4]},
    )
    assert_agrees_with_onnxruntime(
        save(tmp_path / "model.onnx", body), cache, [inputs(channels, scale=scale)]
    )


def test_regions_of_two_levels_are_put_in_their_order_as_in_onnx_runtime(cache, tmp_path):
    # as torchvision writes it: regions of each level are chosen, aligned, and written to their rows
    nodes, result = [node("Not", ["keep"], ["others"])], "zeros"
    for level, mask in enumerate(("keep", "others")):
        nodes += [
            node("NonZero", [mask], [f"places{level}"]),
            node("Squeeze", [f"places{level}", "zero"], [f"at{level}"]),
            node("Gather", ["regions", f"at{level}"], [f"regions{level}"], axis=0),
            node("Gather", ["numbers", f"at{level}"], [f"numbers{level}"], axis=0),
            node(
                "RoiAlign",
                ["x", f"regions{level}", f"numbers{level}"],
                [f"aligned{level}"],
                output_height=2,
                output_width=2,
                sampling_ratio=2,
                spatial_scale=1.0 - 0.5 * level,
            ),
            node("Reshape", [f"at{level}", "column"], [f"column{level}"]),
            node("Shape", [f"aligned{level}"], [f"shape{level}"]),
            node("Expand", [f"column{level}", f"shape{level}"], [f"rows{level}"]),
            node(
                "ScatterElements",
                [result, f"rows{level}", f"aligned{level}"],
                [f"written{level}"],
                axis=0,
            ),
        ]
        result = f"written{level}"
    body = graph(
        [*nodes, node("Relu", [result], ["y"])],
        {
            "x": [2, 5, 12, 16],
            "regions": [REGIONS, 4],
            "numbers": ("int64", [REGIONS]),
            "keep": ("bool", [REGIONS]),
        },
        {"y": [REGIONS, 5, 2, 2]},
        {
            "zero": np.array([0]),
            "column": np.array([-1, 1, 1, 1]),
            "zeros": np.zeros((REGIONS, 5, 2, 2), np.float32),
        },
    )
    none, every = (np.full(REGIONS, value) for value in (False, True))
    examples = [inputs(), inputs(), inputs() | {"keep": none}, inputs() | {"keep": every}]
    assert_agrees_with_onnxruntime(save(tmp_path / "model.onnx", body), cache, examples)
