"""Kernels that are predicted to be slow are marked, with the reason, and no others."""

from __future__ import annotations

import numpy as np
from relax_models import compute, lowered, target
from tvm import relax

from farm.compiler.cpu import predicted_peak_share
from farm.compiler.cpu.cost_model import gemm_candidates
from farm.compiler.cpu.kernel_config import DIRECT, PIXELS, ConfigDecision, KernelConfig, Workload
from farm.compiler.cpu.register_tiles import Tile, largest_grouped_conv_tile
from farm.compiler.target.cpu_model import cpu_model_of

CPU = cpu_model_of(target("x86-64-v4"))
numbers = np.random.default_rng(18)


def decision(workload: Workload, tile: Tile | None = None) -> ConfigDecision:
    """The model's own choice, or a tile with the cycles that the model predicts for it."""
    offered = gemm_candidates(workload, CPU)
    config, _ = min(offered, key=lambda one: one[1])
    if tile is not None:
        config = KernelConfig(DIRECT, tile, PIXELS)
    return ConfigDecision(workload, config, False, offered)


def test_a_convolution_that_fills_tiles_is_not_slow():
    wide = decision(Workload("convolution", (1, 56, 56, 64), (1, 1, 64, 128)))
    share = predicted_peak_share.predicted_peak_share(wide, CPU)
    assert share is not None and predicted_peak_share.SLOW < share <= 1


def test_a_slow_kernels_main_cause_is_named():
    grouped = decision(Workload("convolution", (1, 28, 28, 544), (1, 1, 17, 256), groups=32))
    share = predicted_peak_share.predicted_peak_share(grouped, CPU)
    assert share is not None and share < predicted_peak_share.SLOW
    assert predicted_peak_share.slowness_reason(grouped, CPU) == (
        "vectors of 8 lanes, the CPU has 16: 8 channels of a group fill no wider ones"
    )
    one = Workload("dense", (1, 1, 64), (64, 64))
    assert "vectors of sums at once" in predicted_peak_share.slowness_reason(
        decision(one, Tile(1, 1, 16)), CPU
    )
    narrow = Workload("convolution", (1, 9, 9, 64), (1, 1, 64, 18))
    assert predicted_peak_share.slowness_reason(decision(narrow, Tile(3, 4, 16)), CPU) == (
        "18 channels in tiles of 64"
    )


def test_narrow_vectors_are_no_cause_where_two_take_as_long_as_a_wide_one():
    core = cpu_model_of(target("znver4"))
    narrow = Workload("convolution", (1, 56, 56, 144), (1, 1, 144, 24))
    offered = gemm_candidates(narrow, core)
    config, _ = min(offered, key=lambda one: one[1])
    chosen = ConfigDecision(narrow, config, False, offered)
    share = predicted_peak_share.predicted_peak_share(chosen, core)
    assert share is not None and 0.7 < share <= 1
    assert "lanes" not in predicted_peak_share.slowness_reason(chosen, core)


def test_weights_that_take_longer_from_memory_than_the_arithmetic_are_what_the_core_can_do():
    row = decision(Workload("dense", (1, 1, 4096), (4096, 4096)))
    share = predicted_peak_share.predicted_peak_share(row, CPU)
    assert share is not None and share > predicted_peak_share.SLOW


def test_nothing_is_predicted_for_what_is_no_product():
    window = Workload("depthwise", (1, 56, 56, 64), (3, 3, 1, 64))
    offered = [(KernelConfig(DIRECT, Tile(7, 1, 16)), 1e6)]
    assert (
        predicted_peak_share.predicted_peak_share(
            ConfigDecision(window, offered[0][0], False, offered), CPU
        )
        is None
    )


def test_a_product_that_no_rule_tiles_is_marked_and_a_mean_is_not():
    inputs = {
        "x": numbers.standard_normal((4, 16, 12, 12)).astype("float32"),
        "w": numbers.standard_normal((8, 8, 3, 3)).astype("float32"),
    }

    def body(emit, x, w):  # in groups, with a weight that is no constant
        return [emit(relax.op.nn.conv2d(x, w, groups=2)), emit(relax.op.mean(x, axis=[2, 3]))]

    found = {kernel.name: kernel.slow for kernel in lowered(inputs, body, {}, "x86-64").kernels}
    slow = [name for name, why in found.items() if why]
    assert len(slow) == 1 and "conv2d" in slow[0] and "not tiled" in found[slow[0]]


def test_a_row_of_pixels_is_divided_evenly_for_groups():
    tile = largest_grouped_conv_tile(CPU, 14, 48)
    assert tile is not None and (tile.pixels, tile.vectors) == (7, 3)
    assert all(
        -(-pixels // tile.pixels) * tile.pixels - pixels < -(-pixels // tile.pixels)
        for pixels in range(1, 100)
        if (tile := largest_grouped_conv_tile(CPU, pixels, 48)) is not None
    )


def grouped(size: int, channels: int, groups: int, kernel: int = 1, stride: int = 1) -> Workload:
    own, padding = channels // groups, kernel // 2
    return Workload(
        "convolution",
        (1, size, size, channels),
        (kernel, kernel, own, channels),
        (stride, stride),
        (padding,) * 4,
        groups=groups,
    )


def test_groups_are_padded_where_wider_vectors_are_faster():
    def best(workload: Workload) -> Tile:
        return min(gemm_candidates(workload, CPU), key=lambda one: one[1])[0].tile

    assert best(grouped(28, 272, 4)).lanes > 4  # 68 a group: 17 vectors of 4
    assert 64 % best(grouped(28, 256, 4)).block == 0
    padded = best(grouped(28, 160, 4, kernel=3, stride=2))  # 40 a group
    assert padded.lanes == CPU.lanes and 40 % padded.block


def test_where_winograds_method_applies_groups_are_not_padded():
    [one, other] = gemm_candidates(grouped(28, 168, 7, kernel=3), CPU)
    assert one[0].tile == other[0].tile and 24 % one[0].tile.block == 0
    assert len(gemm_candidates(grouped(28, 168, 7, kernel=9), CPU)) > 2


def test_padded_groups_are_right_before_a_shuffle_and_before_a_sum():
    inputs = {"x": numbers.standard_normal((1, 64, 9, 9)).astype("float32")}
    weights = {"w": numbers.standard_normal((4 * 68, 16, 1, 1)).astype("float32")}

    def shuffled(emit, x, w):
        made = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, w, groups=4))))
        apart = emit(relax.op.reshape(made, (1, 4, 68, 9, 9)))
        turned = emit(relax.op.permute_dims(apart, [0, 2, 1, 3, 4]))
        return relax.op.reshape(turned, (1, 4 * 68, 9, 9))

    def summed(emit, x, w):
        made = emit(relax.op.nn.conv2d(x, w, groups=4))
        return relax.op.add(made, emit(relax.op.nn.relu(made)))

    def right(group):
        rows = inputs["x"].reshape(4, 16, 81)[group].astype("float64")
        return weights["w"].reshape(4, 68, 16)[group].astype("float64") @ rows

    made = np.concatenate([right(group) for group in range(4)])
    whole = np.maximum(made, 0).reshape(4, 68, 81).transpose(1, 0, 2).reshape(1, 272, 9, 9)
    both = (made + np.maximum(made, 0)).reshape(1, 272, 9, 9)
    for body, expected in ((shuffled, whole), (summed, both)):
        answer = compute(inputs, body, weights)
        np.testing.assert_allclose(answer.outputs[0], expected, rtol=1e-4, atol=1e-4)
        assert answer.rules == ["grouped_convolution"]
