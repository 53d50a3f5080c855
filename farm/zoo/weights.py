"""Make weights from a seed that are bit-identical on every machine.

torch's own generators do not guarantee that: their normal distribution uses vectorised logarithms
that differ between CPUs. numpy's PCG64 makes uniform float32 numbers by integer arithmetic alone,
and scaling those is exact IEEE arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

_IMAGE_SEED = 224
_BRANCH_SCALE = 0.2


def example_image() -> torch.Tensor:
    """Return one 1x3x224x224 float32 image of noise in [-2, 2).

    That is about the range of a normalised photograph.
    """
    return _uniform(np.random.default_rng(_IMAGE_SEED), (1, 3, 224, 224), -2.0, 2.0)


class ResidualBranchBatchNorm(nn.BatchNorm2d):  # type: ignore[misc]
    """The batch norm that ends a residual branch, which is given a small scale.

    Untrained, each branch at full strength would double the variance.
    """


def build_with_seeded_weights(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a network in eval mode with all parameters and buffers from the seed.

    Convolutions get the variance 2 / fan_in of He et al. (https://arxiv.org/abs/1502.01852) from a
    uniform distribution. Batch norms get statistics that differ per channel, so that an error in
    folding them changes the output.
    """
    with torch.device("meta"):  # do not initialise weights that are replaced below
        network = make()
    network = network.to_empty(device="cpu").eval()
    numbers = np.random.default_rng(seed)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                fan_in = math.prod(module.weight.shape[1:])
                _fill(module.weight, numbers, math.sqrt(6.0 / fan_in))
            elif isinstance(module, nn.Linear):
                _fill(module.weight, numbers, 1.0 / math.sqrt(module.in_features))
                _fill(module.bias, numbers, 0.1)
            elif isinstance(module, nn.BatchNorm2d):
                _fill_batch_norm(
                    module,
                    numbers,
                    _BRANCH_SCALE if isinstance(module, ResidualBranchBatchNorm) else 1.0,
                )
    return network.requires_grad_(False)


def _fill_batch_norm(module: nn.BatchNorm2d, numbers: np.random.Generator, scale: float) -> None:
    _fill(module.weight, numbers, 0.2 * scale, centre=scale)
    _fill(module.bias, numbers, 0.2)
    assert (
        module.running_mean is not None
        and module.running_var is not None
        and module.num_batches_tracked is not None
    )
    _fill(module.running_mean, numbers, 0.2)
    _fill(module.running_var, numbers, 0.5, centre=1.0)
    module.num_batches_tracked.zero_()


def _fill(
    tensor: torch.Tensor, numbers: np.random.Generator, bound: float, *, centre: float = 0.0
) -> None:
    tensor.copy_(_uniform(numbers, tuple(tensor.shape), centre - bound, centre + bound))


def _uniform(
    numbers: np.random.Generator, shape: tuple[int, ...], low: float, high: float
) -> torch.Tensor:
    values = numbers.random(shape, dtype=np.float32) * np.float32(high - low) + np.float32(low)
    return torch.from_numpy(values)
