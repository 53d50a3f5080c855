"""Built-in models that need no download: known architectures in plain torch, and one trained model.

    mobilenet   MobileNetV2
    resnet      ResNet-18 and ResNet-50
    weights     reproducible weights from a fixed seed

    python:farm.zoo:mobilenet_v2  3.5 M parameters, 0.30 G multiply-adds
    python:farm.zoo:resnet18      11.7 M parameters, 1.8 G multiply-adds
    python:farm.zoo:resnet50      25.6 M parameters, 4.1 G multiply-adds
    digits()                      a trained ONNX file with its labelled test set

The weights of the first three are noise of a sensible scale: use them for speed and numerical
agreement only; their predictions are meaningless. Each of the three functions returns a module in
eval mode and its example inputs, as a `python:` source must.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from farm.types import Model

if TYPE_CHECKING:
    import torch

    Network = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


def mobilenet_v2() -> Network:
    """Return MobileNetV2 at width 1.0 for 1x3x224x224 images and 1000 classes.

    See farm.zoo.mobilenet.
    """
    from farm.zoo.mobilenet import build_mobilenet_v2

    return build_mobilenet_v2()


def resnet18() -> Network:
    """Return ResNet-18 for 1x3x224x224 images and 1000 classes (see farm.zoo.resnet)."""
    from farm.zoo.resnet import build_resnet18

    return build_resnet18()


def resnet50() -> Network:
    """Return ResNet-50 for 1x3x224x224 images and 1000 classes (see farm.zoo.resnet)."""
    from farm.zoo.resnet import build_resnet50

    return build_resnet50()


def digits() -> Model:
    """Return the classifier of handwritten digits that tools/train-digits trained.

    It is a small network, with labels and 360 labelled test images.
    """
    folder = Path(__file__).parent / "digits"
    return Model(
        name="digits",
        source=str(folder / "digits.onnx"),
        labels=folder / "digits-labels.txt",
        dataset=folder / "digits-test.npz",
    )
