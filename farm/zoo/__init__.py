"""Models that need no download: known architectures in plain torch with weights from a fixed seed, and one trained model.

    python:farm.zoo:mobilenet_v2      3.5 M parameters, 0.30 G multiply-adds
    python:farm.zoo:resnet18         11.7 M parameters, 1.8 G multiply-adds
    python:farm.zoo:resnet50         25.6 M parameters, 4.1 G multiply-adds
    digits()                         a trained ONNX file with its labelled test set

The weights of the first three are noise of a sane scale: they measure speed and numerical agreement, and recognise nothing.
Every function returns a module in eval mode and its example inputs, which is what a `python:` source must return.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from farm.types import Model

if TYPE_CHECKING:
    import torch

    Network = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


def mobilenet_v2() -> Network:
    """MobileNetV2 at width 1.0 for 1x3x224x224 images and 1000 classes (see farm.zoo.mobilenet)."""
    from farm.zoo.mobilenet import build

    return build()


def resnet18() -> Network:
    """ResNet-18 for 1x3x224x224 images and 1000 classes (see farm.zoo.resnet)."""
    from farm.zoo.resnet import build_resnet18

    return build_resnet18()


def resnet50() -> Network:
    """ResNet-50 for 1x3x224x224 images and 1000 classes (see farm.zoo.resnet)."""
    from farm.zoo.resnet import build_resnet50

    return build_resnet50()


def digits() -> Model:
    """The small network for handwritten digits that tools/train-digits trained, with labels and 360 labelled test images."""
    folder = Path(__file__).parent / "digits"
    return Model(
        name="digits",
        source=str(folder / "digits.onnx"),
        labels=folder / "digits-labels.txt",
        dataset=folder / "digits-test.npz",
    )
