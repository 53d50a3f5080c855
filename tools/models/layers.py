"""What several networks of the set share: blocks, and weights from a seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from farm.zoo.weights import build_with_seeded_weights

Size = int | tuple[int, int]


def same(size: Size) -> Size:
    """The padding that keeps an image's size under an odd kernel."""
    return size // 2 if isinstance(size, int) else (size[0] // 2, size[1] // 2)


class ConvNorm(nn.Sequential):
    """Convolution without bias, batch norm, activation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: Size,
        *,
        stride: int = 1,
        padding: Size | None = None,
        groups: int = 1,
        then: Callable[[], nn.Module] | None = nn.ReLU,
    ) -> None:
        padding = same(size) if padding is None else padding
        super().__init__(
            nn.Conv2d(inputs, outputs, size, stride, padding, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
            *([then()] if then else []),
        )


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A network in eval mode with weights from the seed; biases of convolutions, norms and free
    parameters are small noise.
    """
    network = build_with_seeded_weights(make, seed)
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.copy_(1 + 0.1 * torch.randn(module.weight.shape, generator=numbers))
                module.bias.copy_(0.1 * torch.randn(module.bias.shape, generator=numbers))
            elif isinstance(module, nn.Embedding | nn.LSTM | nn.ConvTranspose2d):
                for parameter in module.parameters():
                    parameter.copy_(0.1 * torch.randn(parameter.shape, generator=numbers))
            elif isinstance(module, nn.Conv2d) and module.bias is not None:
                module.bias.copy_(0.1 * torch.randn(module.bias.shape, generator=numbers))
            for name, parameter in module.named_parameters(recurse=False):
                if name in ("position", "token"):
                    parameter.copy_(0.1 * torch.randn(parameter.shape, generator=numbers))
    return network


def initialised(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A network in eval mode as torch initialises it from the seed: buffers that its constructor
    computes stay.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def image(size: int = 224, seed: int = 1) -> torch.Tensor:
    """One image of noise, 1 x 3 x size x size."""
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(seed))
