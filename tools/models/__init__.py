"""The wide set that tools/bench-engines measures: architectures in plain torch, seeded weights,
exported to ONNX.

Each entry of `NETWORKS` is "module:function"; the function returns a module in eval mode and its
example inputs.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

OPSET = 17
NETWORKS = {
    "mobilenet_v2": "farm.zoo:mobilenet_v2",
    "resnet18": "farm.zoo:resnet18",
    "resnet50": "farm.zoo:resnet50",
    "alexnet": "models.plain:alexnet",
    "vgg19": "models.plain:vgg19",
    "squeezenet": "models.plain:squeezenet",
    "inception_v3": "models.inception:inception_v3",
    "densenet121": "models.densenet:densenet121",
    "shufflenet_v1": "models.shufflenet:shufflenet_v1",
    "shufflenet_v2": "models.shufflenet:shufflenet_v2",
    "efficientnet_b0": "models.efficientnet:efficientnet_b0",
    "unet": "models.unet:unet",
    "vit_tiny": "models.transformers:vit_tiny",
    "bert_like": "models.transformers:bert_like",
    "lstm": "models.lstm:lstm_classifier",
}
# What tools/compare-import-routes imports by every route: some of these, and small ones of what is
# known to go wrong.
ROUTED = {
    **{
        name: NETWORKS[name]
        for name in ("mobilenet_v2", "resnet18", "resnet50", "efficientnet_b0", "unet", "vit_tiny")
    },
    "transformer_encoder": "models.sequences:encoder",
    "masked_attention": "models.sequences:masked_attention",
    "lstm": NETWORKS["lstm"],
    "gru": "models.sequences:gru",
    "bidirectional_lstm": "models.sequences:bidirectional_lstm",
    "detector": "models.detector:detector",
    "any_batch": "models.sequences:any_batch",
}


def build(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A network of either set and its example inputs."""
    module, _, function = {**NETWORKS, **ROUTED}[name].partition(":")
    network, inputs = getattr(importlib.import_module(module), function)()
    return network, inputs


def export(network: Any, inputs: tuple[Any, ...], path: Path, **more: Any) -> None:
    """Write a network as an ONNX file, batch norms and dropout as in inference."""
    import torch

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        names = [f"input{index}" for index in range(len(inputs))]
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(
            False
        )  # torch's exporter does not know the layers that it fuses
        try:
            torch.onnx.export(
                network,
                inputs,
                str(path),
                input_names=names,
                opset_version=OPSET,
                dynamo=False,
                **more,
            )
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
