"""Export models of torchvision, timm, transformers and ultralytics with random weights, for
tools/zoo-table.

It runs in a Python that has these packages: zoo_exports.py FOLDER FORM MODEL..., or zoo_exports.py
--list. A line of JSON says what became of each model: the file, or why there is none.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_OPSET, _YOLO_SIZE = 17, 160
_SMALL = {  # of a transformers configuration, those that it has
    "hidden_size": 64,
    "d_model": 64,
    "dim": 64,
    "n_embd": 64,
    "embedding_size": 32,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "intermediate_size": 128,
    "ffn_dim": 128,
    "d_ff": 128,
    "d_kv": 16,
    "head_dim": 16,
    "hidden_dim": 128,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": 500,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TEXT = (
    "bert distilbert roberta albert electra deberta deberta-v2 gpt2 gpt_neo gptj gpt_neox opt "
    "bloom llama mistral qwen2 qwen3 phi phi3 gemma gemma2 stablelm starcoder2 olmo falcon mpt t5 "
    "mt5 squeezebert mobilebert funnel xlnet longformer big_bird fnet nystromformer roformer "
    "convbert mpnet layoutlm canine data2vec-text ernie esm ibert megatron-bert openai-gpt rembert "
    "splinter xlm xlm-roberta xmod mamba modernbert biogpt codegen camembert granite smollm3 "
    "cohere persimmon"
)
_VISION = (
    "vit deit beit swin swinv2 convnext convnextv2 segformer mobilevit mobilevitv2 yolos resnet "
    "regnet levit cvt focalnet dinov2 poolformer efficientnet bit mobilenet_v1 mobilenet_v2 pvt "
    "pvt_v2 hiera data2vec-vision clip_vision_model siglip_vision_model dpt vit_msn ijepa"
)
_SOUND = "wav2vec2 hubert wavlm sew unispeech data2vec-audio audio-spectrogram-transformer"
_TORCHVISION = {
    "alexnet": 224,
    "convnext_tiny": 64,
    "densenet121": 64,
    "efficientnet_b0": 64,
    "efficientnet_v2_s": 64,
    "googlenet": 64,
    "inception_v3": 96,
    "maxvit_t": 224,
    "mnasnet0_5": 64,
    "mobilenet_v2": 64,
    "mobilenet_v3_large": 64,
    "mobilenet_v3_small": 64,
    "regnet_x_400mf": 64,
    "regnet_y_400mf": 64,
    "resnet18": 64,
    "resnet50": 64,
    "resnext50_32x4d": 64,
    "wide_resnet50_2": 64,
    "shufflenet_v2_x0_5": 64,
    "shufflenet_v2_x1_0": 64,
    "squeezenet1_0": 64,
    "squeezenet1_1": 64,
    "swin_t": 64,
    "swin_v2_t": 64,
    "vgg11": 224,
    "vgg11_bn": 224,
    "vit_b_16": 224,
    "deeplabv3_mobilenet_v3_large": 64,
    "deeplabv3_resnet50": 64,
    "fcn_resnet50": 64,
    "lraspp_mobilenet_v3_large": 64,
    "r3d_18": 32,
    "mc3_18": 32,
    "r2plus1d_18": 32,
    "s3d": 224,
    "mvit_v1_b": 224,
    "swin3d_t": 64,
    "fasterrcnn_mobilenet_v3_large_320_fpn": 96,
    "fasterrcnn_resnet50_fpn": 96,
    "maskrcnn_resnet50_fpn": 96,
    "keypointrcnn_resnet50_fpn": 96,
    "fcos_resnet50_fpn": 96,
    "retinanet_resnet50_fpn": 96,
    "ssd300_vgg16": 300,
    "ssdlite320_mobilenet_v3_large": 320,
    "raft_small": 128,
}
_TIMM = (
    "bat_resnext26ts beit_base_patch16_224 botnet26t_256 caformer_s18 cait_xxs24_224 coat_tiny "
    "coatnet_nano_rw_224 convformer_s18 convit_tiny convmixer_768_32 convnext_atto convnextv2_atto "
    "crossvit_tiny_240 cspdarknet53 cspresnet50 davit_tiny deit3_small_patch16_224 "
    "deit_tiny_patch16_224 dla34 dm_nfnet_f0 dpn68 eca_nfnet_l0 eca_resnet33ts edgenext_xx_small "
    "efficientformer_l1 efficientformerv2_s0 efficientnet_b0 efficientnet_lite0 efficientvit_b0 "
    "efficientvit_m0 ese_vovnet19b_dw eva02_tiny_patch14_224 fastvit_t8 fbnetc_100 fbnetv3_b "
    "flexivit_small focalnet_tiny_srf gcresnet33ts gcvit_xxtiny gernet_s ghostnet_100 "
    "ghostnetv2_100 gmixer_24_224 gmlp_s16_224 halonet26t hardcorenas_a hgnetv2_b0 hiera_tiny_224 "
    "hrnet_w18_small inception_next_atto inception_v4 lambda_resnet26t lcnet_050 levit_128s "
    "maxvit_nano_rw_256 mixer_s16_224 mixnet_s mnasnet_small mobilenetv1_100 mobilenetv2_050 "
    "mobilenetv3_small_050 mobilenetv4_conv_small mobileone_s0 mobilevit_xxs mobilevitv2_050 "
    "mvitv2_tiny nest_tiny nf_regnet_b0 pit_ti_224 poolformer_s12 poolformerv2_s12 pvt_v2_b0 "
    "rdnet_tiny regnetx_002 regnety_002 regnetz_b16 repghostnet_050 repvgg_a0 repvit_m0_9 "
    "res2net50_14w_8s "
    "resmlp_12_224 resnest14d resnet10t resnet18d resnetblur50 resnetv2_50 rexnet_100 "
    "samvit_base_patch16_224 selecsls42 semnasnet_050 sequencer2d_s seresnet18 shvit_s1 skresnet18 "
    "spnasnet_100 starnet_s1 swiftformer_xs swin_tiny_patch4_window7_224 "
    "swinv2_tiny_window8_256 tf_efficientnet_lite0 tiny_vit_5m_224 tinynet_e tnt_s_patch16_224 "
    "tresnet_m twins_pcpvt_small vgg11 visformer_tiny vit_tiny_patch16_224 vit_tiny_r_s16_p8_224 "
    "volo_d1_224 vovnet39a xception41 xcit_nano_12_p16_224 "
    "csatv2 cspnext_tiny densenet121 efficientvim_m1 fasternet_t0 hieradet_small "
    "inception_resnet_v2 inception_v3 lcnetv2_small lowformer_b0 mambaout_femto "
    "nasnetalarge nextvit_small pnasnet5large legacy_seresnet18 "
    "swinv2_cr_tiny_ns_224 vit_relpos_small_patch16_224 vitamin_small_224 legacy_xception "
    "naflexvit_base_patch16_gap"
)
_YOLO = (
    "yolov3-tiny yolov5n yolov6n yolov8n yolov8n-seg yolov8n-pose yolov8n-cls yolov8n-obb yolov9t "
    "yolov10n yolo11n yolo11n-seg yolo11n-pose yolo11n-obb yolo12n yolo26n rtdetr-resnet50"
)
_SETS = {
    "torchvision": tuple(_TORCHVISION),
    "timm": tuple(_TIMM.split()),
    "transformers": (*_TEXT.split(), *_VISION.split(), *_SOUND.split()),
    "ultralytics": tuple(_YOLO.split()),
}
NAMES = tuple(f"{package}/{name}" for package, names in _SETS.items() for name in names)


def main() -> None:
    if sys.argv[1:] == ["--list"]:
        print("\n".join(NAMES))
        return
    folder, form, names = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ.update(HF_HUB_OFFLINE="1", YOLO_OFFLINE="1", YOLO_AUTOINSTALL="false")
    warnings.simplefilter("ignore")
    os.chdir(folder)
    for name in names:
        try:
            path, shapes = _exported(name, form, folder)
            said = {"file": str(path), "shapes": shapes}
        except Exception as error:  # an exporter may raise anything
            text = " ".join(str(error).split())
            said = {"why": f"{type(error).__name__}: {text}"[:300]}
        print(json.dumps({"model": name, "form": form, **said}), file=answers, flush=True)


def _exported(name: str, form: str, folder: Path) -> tuple[Path, dict[str, list[int]]]:
    """The file of a model, and the shapes of inputs that it leaves open."""
    import torch

    _with_torchvision()
    torch.manual_seed(0)
    package, _, model = name.partition("/")
    path = folder / f"{name.replace('/', '-')}-{form}"
    if package == "ultralytics":
        shapes = {"images": [1, 3, _YOLO_SIZE, _YOLO_SIZE]} if form == "onnx-open" else {}
        return _of_ultralytics(model, form, path), shapes
    network, inputs = _BUILDERS[package](model)
    values = tuple(inputs.values())
    if form == "torchscript-script":
        return _scripted(network.eval(), values, path)
    network = _Plain(network.eval(), tuple(inputs))
    shapes = {f"input{index}": list(value.shape) for index, value in enumerate(values)}
    with torch.no_grad():
        made = _WRITERS[form](network, values, path)
    return made, shapes if form.endswith("-open") else {}


def _with_torchvision() -> None:
    """Declare the operators of torchvision's library, which is not loaded if its torch is another.

    Exporters need their names, and the answer of the tracing, not their speed.
    """
    import torch

    known = False
    try:
        import torchvision  # noqa: F401

        known = hasattr(torch.ops.torchvision, "nms")
    except ImportError:
        pass
    except RuntimeError:  # its library is not loaded
        for module in [one for one in sys.modules if one.split(".")[0] == "torchvision"]:
            del sys.modules[module]
    if known:
        return
    library = torch.library.Library("torchvision", "DEF")
    nms = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    library.define(f"nms{nms}")
    library.define(f"qnms{nms}")
    library.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
        "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"
    )

    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "torchvision":
            for check in ("_has_ops", "_assert_has_ops"):
                if hasattr(module, check):
                    setattr(module, check, _has_ops)
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", _roi_align, "CPU")
    _KEPT.append(library)


_KEPT: list[Any] = []  # a library is undone when it is collected


def _nms(boxes: Any, scores: Any, threshold: float) -> Any:
    import torch
    from torchvision.ops import box_iou

    order, kept = scores.argsort(descending=True), []
    while order.numel():
        kept.append(order[0])
        others = order[1:]
        order = others[box_iou(boxes[order[:1]], boxes[others])[0] <= threshold]
    return torch.stack(kept) if kept else torch.empty(0, dtype=torch.int64)


def _roi_align(image: Any, regions: Any, _: float, height: int, width: int, *__: Any) -> Any:
    """Numbers of the right shape: an export keeps no values, and torchvision's own is compiled."""
    import torch

    return torch.rand(regions.shape[0], image.shape[1], height, width)


def _has_ops() -> bool:  # TorchScript reads it
    return True


def _of_torchvision(name: str) -> tuple[Any, dict[str, Any]]:
    import torch
    import torchvision

    size = _TORCHVISION[name]
    more: dict[str, Any] = {"weights": None}
    for part in ("weights_backbone",):
        if any(word in name for word in (*_DETECTORS, "deeplab", "fcn_", "lraspp")):
            more[part] = None
    if name in ("googlenet", "inception_v3"):
        more |= {"init_weights": False, "aux_logits": name == "inception_v3"}
    network = torchvision.models.get_model(name, **more)
    if name in ("r3d_18", "mc3_18", "r2plus1d_18", "swin3d_t"):
        return network, {"video": torch.rand(1, 3, 8, size, size)}
    if name in ("s3d", "mvit_v1_b"):
        return network, {"video": torch.rand(1, 3, 16, size, size)}
    if name.startswith("raft"):
        return network, {key: torch.rand(1, 3, size, size) for key in ("image1", "image2")}
    if any(word in name for word in _DETECTORS):
        return network, {"images": torch.rand(1, 3, size, size)}
    return network, {"image": torch.rand(1, 3, size, size)}


_DETECTORS = ("rcnn", "ssd", "retina", "fcos")


def _of_timm(name: str) -> tuple[Any, dict[str, Any]]:
    import timm
    import torch

    network = timm.create_model(name, pretrained=False, exportable=True, num_classes=100)
    size = network.default_cfg.get("input_size", (3, 224, 224))
    if not network.default_cfg.get("fixed_input_size") and name not in _ONLY_THEIR_SIZE:
        size = (size[0], min(size[1], 96), min(size[2], 96))
    return network, {"image": torch.rand(1, *size)}


_ONLY_THEIR_SIZE = (
    *("botnet26t_256", "halonet26t", "lambda_resnet26t", "bat_resnext26ts", "coatnet_nano_rw_224"),
    *("maxvit_nano_rw_256", "efficientformer_l1", "efficientformerv2_s0", "hiera_tiny_224"),
)


def _of_transformers(name: str) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    config = transformers.CONFIG_MAPPING[name]()
    if name in _TEXT.split():
        for key, value in _SMALL.items():
            if hasattr(config, key):
                setattr(config, key, value)
    elif name in _SOUND.split() or name in ("vit", "deit", "beit", "dinov2", "yolos"):
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            if hasattr(config, key):
                setattr(config, key, _SMALL[key])
    config.use_cache = False
    network = transformers.AutoModel.from_config(config)
    ids = torch.randint(3, 400, (1, 16))
    if name in ("t5", "mt5"):
        return network, {"input_ids": ids, "decoder_input_ids": ids[:, :8]}
    if name in _TEXT.split():
        more = (
            {} if name in ("fnet", "mamba", "canine") else {"attention_mask": torch.ones_like(ids)}
        )
        return network, {"input_ids": ids, **more}
    if name == "audio-spectrogram-transformer":
        return network, {"input_values": torch.rand(1, 1024, 128)}
    if name in _SOUND.split():
        return network, {"input_values": torch.rand(1, 4000)}
    size = getattr(config, "image_size", 96)
    size = size if isinstance(size, int) else size[0]
    return network, {"pixel_values": torch.rand(1, 3, size, size)}


def _of_ultralytics(name: str, form: str, path: Path) -> Path:
    import ultralytics

    kinds = {"onnx": "onnx", "onnx-open": "onnx", "torchscript": "torchscript"}
    if form not in kinds:
        raise ValueError("ultralytics exports no such file")
    model = (ultralytics.RTDETR if "rtdetr" in name else ultralytics.YOLO)(f"{name}.yaml")
    more = {"opset": 19 if "rtdetr" in name else _OPSET} if form != "torchscript" else {}
    if form == "onnx-open":
        more["dynamic"] = True
    made = Path(model.export(format=kinds[form], imgsz=_YOLO_SIZE, simplify=False, **more))
    end = path.with_suffix(".torchscript" if form == "torchscript" else ".onnx")
    made.rename(end)
    return end


def _plain_module() -> Any:
    import torch

    class Plain(torch.nn.Module):
        """A network that takes its inputs by position and returns its tensors in order."""

        def __init__(self, network: Any, names: tuple[str, ...]) -> None:
            super().__init__()
            self.network, self.names = network, names

        def forward(self, *values: Any) -> Any:
            named = dict(zip(self.names, values, strict=True))
            inner = self.network
            by_name = type(inner).__module__.startswith("transformers")
            if self.names == ("images",):  # a detector of torchvision takes a list
                answer = inner([values[0][0]])
            else:
                answer = inner(**named) if by_name else inner(*values)
            found = tuple(_tensors(answer))
            return found[0] if len(found) == 1 else found

    return Plain


def _Plain(network: Any, names: tuple[str, ...]) -> Any:  # noqa: N802
    return _plain_module()(network, names)


def _tensors(answer: Any) -> Iterator[Any]:
    import torch

    if isinstance(answer, torch.Tensor):
        yield answer
    elif isinstance(answer, dict) or hasattr(answer, "items"):
        for value in answer.values():
            yield from _tensors(value)
    elif isinstance(answer, (list, tuple)):
        for value in answer:
            yield from _tensors(value)


def _onnx(network: Any, values: Any, path: Path, **more: Any) -> Path:
    import torch

    names = [f"input{index}" for index in range(len(values))]
    end = path.with_suffix(".onnx")
    settings = {"input_names": names, "opset_version": _OPSET, "dynamo": False, **more}
    torch.onnx.export(network, values, str(end), **settings)
    return end


def _axes(values: Any, form: str) -> dict[str, dict[int, str]]:
    """Return the axes of each input that a form leaves open: the batch, and extents and lengths."""
    more = {2: {1: "length"}, 4: {2: "height", 3: "width"}} if form.endswith("-open") else {}
    return {
        f"input{index}": {0: "batch", **more.get(value.dim(), {})}
        for index, value in enumerate(values)
    }


def _onnx_batch(network: Any, values: Any, path: Path) -> Path:
    return _onnx(network, values, path, dynamic_axes=_axes(values, "onnx-batch"))


def _onnx_open(network: Any, values: Any, path: Path) -> Path:
    return _onnx(network, values, path, dynamic_axes=_axes(values, "onnx-open"))


def _onnx_dynamo(network: Any, values: Any, path: Path, **more: Any) -> Path:
    settings = {"opset_version": 18, "external_data": False, **more}
    return _onnx(network, values, path, dynamo=True, **settings)


def _onnx_dynamo_batch(network: Any, values: Any, path: Path) -> Path:
    return _onnx_dynamo(network, values, path, dynamic_shapes=_dimensions(values, "batch"))


def _onnx_dynamo_open(network: Any, values: Any, path: Path) -> Path:
    return _onnx_dynamo(network, values, path, dynamic_shapes=_dimensions(values, "-open"))


def _dimensions(values: Any, form: str) -> tuple[Any, ...]:
    """Return the open axes as torch.export takes them, for a network of `*values`."""
    import torch

    named = _axes(values, form).values()
    return (tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in named),)


def _pt2(network: Any, values: Any, path: Path, **more: Any) -> Path:
    import torch

    end = path.with_suffix(".pt2")
    torch.export.save(torch.export.export(network, values, strict=False, **more), end)
    return end


def _pt2_batch(network: Any, values: Any, path: Path) -> Path:
    import torch

    batch = torch.export.Dim("batch", max=64)
    values = tuple(torch.cat([value, value]) for value in values)  # 1 would be taken for fixed
    return _pt2(network, values, path, dynamic_shapes=(tuple({0: batch} for _ in values),))


def _torchscript(network: Any, values: Any, path: Path) -> Path:
    import torch

    end = path.with_suffix(".pt")
    torch.jit.trace(network, values, strict=False, check_trace=False).save(end)
    return end


def _scripted(network: Any, values: Any, path: Path) -> tuple[Path, dict[str, list[int]]]:
    """Script a network as its users do, by itself; its inputs have the names of its arguments."""
    import torch

    end = path.with_suffix(".pt")
    script = torch.jit.script(network)
    script.save(end)
    names = [argument.name for argument in script.forward.schema.arguments[1:]]
    return end, {name: list(value.shape) for name, value in zip(names, values, strict=False)}


_BUILDERS: dict[str, Callable[[str], tuple[Any, dict[str, Any]]]] = {
    "torchvision": _of_torchvision,
    "timm": _of_timm,
    "transformers": _of_transformers,
}
_WRITERS: dict[str, Callable[[Any, Any, Path], Path]] = {
    "onnx": _onnx,
    "onnx-batch": _onnx_batch,
    "onnx-open": _onnx_open,
    "onnx-dynamo": _onnx_dynamo,
    "onnx-dynamo-batch": _onnx_dynamo_batch,
    "onnx-dynamo-open": _onnx_dynamo_open,
    "pt2": _pt2,
    "pt2-batch": _pt2_batch,
    "torchscript": _torchscript,
}

if __name__ == "__main__":
    main()
