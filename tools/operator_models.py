"""ONNX models of one operator each, with sizes as in real networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
OPSET, IR_VERSION = 21, 10
IMAGE, SMALL_IMAGE, VOLUME, SIGNAL = (
    (1, 64, 56, 56),
    (1, 256, 14, 14),
    (1, 16, 16, 28, 28),
    (1, 64, 4000),
)
TOKENS, HEADS, LOGITS, BOXES = (1, 197, 384), (1, 6, 197, 64), (64, 1000), (1, 84, 8400)


@dataclass(frozen=True)
class OperatorModel:
    """A model of one operator, whose inputs are float32 and of fixed shapes.

    `constants` are inputs after these; one that is None is left out. `same_shape`: the output has
    the shape of the first input, which ONNX does not infer for this operator. If `dtype`
    is not float32, each input is cast to it, and the cast is measured too.
    """

    name: str
    operator: str
    inputs: Sequence[Shape]
    constants: Sequence[Any] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    same_shape: bool = False
    dtype: int = TensorProto.FLOAT

    def build(self) -> onnx.ModelProto:
        """Return the model; its outputs have the shapes that ONNX infers."""
        nodes, operands, weights = [], [], []
        for at, _ in enumerate(self.inputs):
            operands.append(f"input_{at}")
            if self.dtype != TensorProto.FLOAT:
                nodes.append(
                    helper.make_node("Cast", [operands.pop()], [f"cast_{at}"], to=self.dtype)
                )
                operands.append(f"cast_{at}")
        for at, value in enumerate(self.constants):
            operands.append("" if value is None else f"constant_{at}")
            if value is not None:
                weights.append(numpy_helper.from_array(np.asarray(value), f"constant_{at}"))
        results = [f"output_{at}" for at in range(self.outputs)]
        nodes.append(helper.make_node(self.operator, operands, results, **self.attributes))
        graph = helper.make_graph(
            nodes,
            self.name,
            [
                helper.make_tensor_value_info(f"input_{at}", TensorProto.FLOAT, shape)
                for at, shape in enumerate(self.inputs)
            ],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, self.inputs[0])
                if self.same_shape
                else helper.make_empty_tensor_value_info(name)
                for name in results
            ],
            weights,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        return onnx.shape_inference.infer_shapes(model)


def operator_models() -> list[OperatorModel]:
    """Return all models. Their weights and indices are random, the same in each run."""
    groups = (
        _unary(),
        _binary(),
        _reductions(),
        _layout(),
        _indexed(),
        _windows(),
        _products(),
        _recurrent(),
        _normalizations(),
    )
    return list(chain.from_iterable(groups))


def _weight(*shape: int) -> Array:
    """Return a weight whose sums of products keep the variance of what they read."""
    rng = np.random.default_rng(shape)
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def _indices(below: int, *shape: int) -> Array:
    return np.random.default_rng(shape).integers(0, below, shape)


def _ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def _unary() -> list[OperatorModel]:
    names = (
        "Abs Neg Relu Sigmoid Tanh Exp Softplus Softsign Erf Gelu Elu Selu Celu Mish HardSwish "
        "HardSigmoid LeakyRelu ThresholdedRelu Floor Ceil Round Sign Sin Cos Tan Atan Sinh Cosh "
        # These are not a number for most inputs, and take as long.
        "Asinh Reciprocal IsNaN Log Sqrt Asin Acos Atanh Acosh"
    )
    return [
        *(OperatorModel(name.lower(), name, [IMAGE]) for name in names.split()),
        OperatorModel("gelu_tanh", "Gelu", [IMAGE], attributes={"approximate": "tanh"}),
        OperatorModel("clip", "Clip", [IMAGE], [np.float32(0), np.float32(6)]),
        OperatorModel("not", "Not", [IMAGE], dtype=TensorProto.BOOL),
        OperatorModel("bitwise_not", "BitwiseNot", [IMAGE], dtype=TensorProto.INT32),
        *(
            OperatorModel(
                f"cast_{name.lower()}",
                "Cast",
                [IMAGE],
                attributes={"to": TensorProto.DataType.Value(name)},
            )
            for name in ("INT8", "UINT8", "INT32", "INT64", "BOOL", "FLOAT16", "DOUBLE")
        ),
    ]


def _binary() -> list[OperatorModel]:
    found = []
    for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "PRelu"):
        found += [
            OperatorModel(f"{name.lower()}_same", name, [IMAGE, IMAGE]),
            OperatorModel(f"{name.lower()}_channels", name, [IMAGE, (64, 1, 1)]),
            OperatorModel(f"{name.lower()}_features", name, [TOKENS, (384,)]),
        ]
    return [
        *found,
        OperatorModel("add_outer", "Add", [(197, 1), (1, 1000)]),
        OperatorModel("add_image_row", "Add", [IMAGE, (1, 1, 1, 56)]),
        OperatorModel("pow_3", "Pow", [IMAGE], [np.float32(3)]),
        OperatorModel("pow_same", "Pow", [IMAGE, IMAGE]),
        OperatorModel("fmod", "Mod", [IMAGE, IMAGE], attributes={"fmod": 1}),
        OperatorModel("mod_int32", "Mod", [IMAGE], [np.int32(7)], dtype=TensorProto.INT32),
        OperatorModel("and", "And", [IMAGE, IMAGE], dtype=TensorProto.BOOL),
        OperatorModel("add_int32", "Add", [IMAGE, IMAGE], dtype=TensorProto.INT32),
        OperatorModel("div_int64", "Div", [IMAGE], [np.int64(7)], dtype=TensorProto.INT64),
        OperatorModel("mul_float16", "Mul", [IMAGE, IMAGE], dtype=TensorProto.FLOAT16),
        OperatorModel("sum_of_three", "Sum", [IMAGE, IMAGE, IMAGE]),
        OperatorModel("mean_of_three", "Mean", [IMAGE, IMAGE, IMAGE]),
    ]


def _reductions() -> list[OperatorModel]:
    places = {
        "last": ([TOKENS], [-1]),
        "first": ([(512, 640)], [0]),
        "middle": ([(8, 197, 384)], [1]),
        "image": ([IMAGE], [2, 3]),
        "channels": ([IMAGE], [1]),
        "all": ([IMAGE], [0, 1, 2, 3]),
        "short": ([(4096, 49)], [-1]),
    }
    sums = (
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL2",
        "ReduceLogSumExp",
    )
    found = [
        OperatorModel(f"{name.lower()}_{place}", name, shapes, [_ints(*axes)])
        for name in sums
        for place, (shapes, axes) in places.items()
    ]
    for name in ("ArgMax", "ArgMin"):
        found += [
            OperatorModel(f"{name.lower()}_last", name, [LOGITS], attributes={"axis": -1}),
            OperatorModel(
                f"{name.lower()}_channels", name, [(1, 21, 128, 128)], attributes={"axis": 1}
            ),
        ]
    for name in ("Softmax", "LogSoftmax"):
        found += [
            OperatorModel(f"{name.lower()}_logits", name, [LOGITS], attributes={"axis": -1}),
            OperatorModel(
                f"{name.lower()}_attention", name, [(1, 6, 197, 197)], attributes={"axis": -1}
            ),
            OperatorModel(
                f"{name.lower()}_channels", name, [(1, 21, 128, 128)], attributes={"axis": 1}
            ),
            OperatorModel(
                f"{name.lower()}_short", name, [(1, 4, 8400, 16)], attributes={"axis": -1}
            ),
        ]
    return [
        *found,
        OperatorModel("hardmax", "Hardmax", [LOGITS], attributes={"axis": -1}),
        OperatorModel("cumsum_last", "CumSum", [LOGITS], [np.int64(1)]),
        OperatorModel("cumsum_first", "CumSum", [LOGITS], [np.int64(0)]),
    ]


def _layout() -> list[OperatorModel]:
    def transpose(name: str, shape: Shape, *axes: int) -> OperatorModel:
        return OperatorModel(f"transpose_{name}", "Transpose", [shape], attributes={"perm": axes})

    def pad(mode: str) -> OperatorModel:
        pads = _ints(0, 0, 3, 3, 0, 0, 3, 3)
        return OperatorModel(f"pad_{mode}", "Pad", [IMAGE], [pads], {"mode": mode})

    def resize(name: str, factor: float, **attributes: Any) -> OperatorModel:
        scales = np.array([1, 1, factor, factor], np.float32)
        return OperatorModel(f"resize_{name}", "Resize", [SMALL_IMAGE], [None, scales], attributes)

    return [
        transpose("to_channels_last", IMAGE, 0, 2, 3, 1),
        transpose("to_channels_first", (1, 56, 56, 64), 0, 3, 1, 2),
        transpose("colours_last", (1, 3, 224, 224), 0, 2, 3, 1),
        transpose("colours_first", (1, 224, 224, 3), 0, 3, 1, 2),
        transpose("matrix", (1024, 1024), 1, 0),
        transpose("odd_matrix", (197, 385), 1, 0),
        transpose("heads", (1, 197, 6, 64), 0, 2, 1, 3),
        transpose("keys", HEADS, 0, 1, 3, 2),
        transpose("boxes", BOXES, 0, 2, 1),
        transpose("windows", (1, 8, 7, 8, 7, 96), 0, 1, 3, 2, 4, 5),
        transpose("shuffle", (1, 4, 64, 28, 28), 0, 2, 1, 3, 4),
        transpose("reversed", (16, 32, 24, 20), 3, 2, 1, 0),
        *map(pad, ("constant", "reflect", "edge", "wrap")),
        resize("nearest_2x", 2, mode="nearest"),
        resize("nearest_half", 0.5, mode="nearest"),
        resize("linear_2x", 2, mode="linear"),
        resize("linear_corners", 2, mode="linear", coordinate_transformation_mode="align_corners"),
        resize("cubic_2x", 2, mode="cubic"),
        OperatorModel("concat_channels", "Concat", [IMAGE, IMAGE], attributes={"axis": 1}),
        OperatorModel("concat_last", "Concat", [TOKENS, (1, 197, 200)], attributes={"axis": 2}),
        OperatorModel("concat_tokens", "Concat", [(1, 1, 384), TOKENS], attributes={"axis": 1}),
        OperatorModel("split_channels", "Split", [IMAGE], [_ints(32, 32)], {"axis": 1}, outputs=2),
        OperatorModel(
            "split_last", "Split", [(1, 197, 1152)], [_ints(384, 384, 384)], {"axis": 2}, outputs=3
        ),
        OperatorModel(
            "slice_steps", "Slice", [IMAGE], [_ints(0, 0), _ints(56, 56), _ints(2, 3), _ints(2, 2)]
        ),
        OperatorModel(
            "slice_reversed", "Slice", [IMAGE], [_ints(-1), _ints(-57), _ints(3), _ints(-1)]
        ),
        OperatorModel("slice_last", "Slice", [TOKENS], [_ints(3), _ints(300), _ints(2)]),
        OperatorModel("expand_last", "Expand", [(1, 197, 1)], [_ints(1, 197, 1000)]),
        OperatorModel("expand_first", "Expand", [(1, 197, 384)], [_ints(8, 197, 384)]),
        OperatorModel("tile_last", "Tile", [(64, 100)], [_ints(1, 20)]),
        OperatorModel("tile_odd", "Tile", [(64, 37)], [_ints(3, 50)]),
        OperatorModel("tile_image", "Tile", [SMALL_IMAGE], [_ints(1, 1, 2, 2)]),
        OperatorModel(
            "depth_to_space_dcr", "DepthToSpace", [SMALL_IMAGE], attributes={"blocksize": 2}
        ),
        OperatorModel(
            "depth_to_space_crd",
            "DepthToSpace",
            [SMALL_IMAGE],
            attributes={"blocksize": 2, "mode": "CRD"},
        ),
        OperatorModel("space_to_depth", "SpaceToDepth", [IMAGE], attributes={"blocksize": 2}),
        OperatorModel(
            "col2im", "Col2Im", [(1, 64 * 9, 784)], [_ints(28, 28), _ints(3, 3)], {"pads": [1] * 4}
        ),
        OperatorModel("triangle_upper", "Trilu", [(8, 197, 197)]),
        OperatorModel("triangle_lower", "Trilu", [(8, 197, 197)], attributes={"upper": 0}),
        OperatorModel("identity_reshape", "Reshape", [IMAGE], [_ints(1, 64, 3136)]),
    ]


def _indexed() -> list[OperatorModel]:
    return [
        OperatorModel("gather_rows", "Gather", [(30000, 128)], [_indices(30000, 128)]),
        OperatorModel("gather_columns", "Gather", [(512, 640)], [_indices(640, 300)], {"axis": 1}),
        OperatorModel(
            "gather_elements_last",
            "GatherElements",
            [LOGITS],
            [_indices(1000, 64, 300)],
            {"axis": 1},
        ),
        OperatorModel(
            "gather_elements_first",
            "GatherElements",
            [LOGITS],
            [_indices(64, 32, 1000)],
            {"axis": 0},
        ),
        OperatorModel("gather_nd_rows", "GatherND", [(64, 64, 96)], [_indices(64, 1000, 2)]),
        OperatorModel("gather_nd_elements", "GatherND", [LOGITS], [_indices(64, 20000, 2)]),
        OperatorModel(
            "scatter_nd_rows",
            "ScatterND",
            [(2000, 128)],
            [_indices(2000, 500, 1), _weight(500, 128)],
        ),
        OperatorModel(
            "scatter_nd_add",
            "ScatterND",
            [(2000, 128)],
            [_indices(2000, 500, 1), _weight(500, 128)],
            {"reduction": "add"},
        ),
        OperatorModel(
            "scatter_elements",
            "ScatterElements",
            [LOGITS],
            [_indices(1000, 64, 300), _weight(64, 300)],
            {"axis": 1},
        ),
        OperatorModel(
            "one_hot",
            "OneHot",
            [],
            [_indices(1000, 197), np.int64(1000), np.array([0, 1], np.float32)],
        ),
        OperatorModel("topk_of_classes", "TopK", [LOGITS], [_ints(5)], outputs=2),
        OperatorModel("topk_of_anchors", "TopK", [(1, 8400)], [_ints(300)], outputs=2),
        OperatorModel("topk_of_scores", "TopK", [(1, 84000)], [_ints(1000)], outputs=2),
        OperatorModel("topk_first_axis", "TopK", [(512, 640)], [_ints(10)], {"axis": 0}, outputs=2),
        OperatorModel("sort", "TopK", [(16, 1000)], [_ints(1000)], outputs=2),
        OperatorModel(
            "non_max_suppression",
            "NonMaxSuppression",
            [(1, 1000, 4), (1, 20, 1000)],
            [_ints(50), np.float32(0.5), np.float32(0.3)],
        ),
        OperatorModel(
            "roi_align",
            "RoiAlign",
            [IMAGE],
            [_rois(100), np.zeros(100, np.int64)],
            {"output_height": 7, "output_width": 7, "sampling_ratio": 2},
        ),
        OperatorModel("grid_sample", "GridSample", [IMAGE], [_grid(56, 56)]),
        OperatorModel(
            "grid_sample_nearest", "GridSample", [IMAGE], [_grid(56, 56)], {"mode": "nearest"}
        ),
    ]


def _rois(count: int) -> Array:
    corners = np.random.default_rng(count).uniform(0, 28, (count, 2))
    return np.concatenate([corners, corners + 20], axis=1).astype(np.float32)


def _grid(height: int, width: int) -> Array:
    return np.random.default_rng(height).uniform(-1, 1, (1, height, width, 2)).astype(np.float32)


def _windows() -> list[OperatorModel]:
    def conv(
        name: str, shape: Shape, channels: int, kernel: Shape, groups: int = 1, **attributes: Any
    ) -> OperatorModel:
        weight, bias = _weight(channels, shape[1] // groups, *kernel), _weight(channels)
        pads = [size // 2 for size in kernel] * 2
        attributes = {"pads": pads, "group": groups, **attributes}
        return OperatorModel(f"conv_{name}", "Conv", [shape], [weight, bias], attributes)

    def transposed(
        name: str, shape: Shape, channels: int, kernel: Shape, stride: int, **attributes: Any
    ) -> OperatorModel:
        groups = attributes.get("group", 1)
        weight = _weight(shape[1], channels // groups, *kernel)
        attributes = {"strides": [stride] * len(kernel), **attributes}
        return OperatorModel(
            f"conv_transposed_{name}", "ConvTranspose", [shape], [weight], attributes
        )

    def pool(
        name: str, operator: str, shape: Shape, size: int, stride: int, **attributes: Any
    ) -> OperatorModel:
        axes = len(shape) - 2
        attributes = {
            "kernel_shape": [size] * axes,
            "strides": [stride] * axes,
            "pads": [size // 2] * 2 * axes,
            **attributes,
        }
        return OperatorModel(f"pool_{name}", operator, [shape], attributes=attributes)

    return [
        conv("7x7_of_colours", (1, 3, 224, 224), 64, (7, 7), strides=[2, 2]),
        conv("3x3_of_colours", (1, 3, 224, 224), 32, (3, 3), strides=[2, 2]),
        conv("patches", (1, 3, 224, 224), 192, (16, 16), strides=[16, 16], pads=[0] * 4),
        conv("1x1", IMAGE, 256, (1, 1)),
        conv("1x1_small", (1, 1024, 14, 14), 256, (1, 1)),
        conv("1x1_stride", (1, 256, 56, 56), 128, (1, 1), strides=[2, 2]),
        conv("3x3", IMAGE, 64, (3, 3)),
        conv("3x3_small", (1, 512, 7, 7), 512, (3, 3)),
        conv("3x3_stride", (1, 128, 56, 56), 128, (3, 3), strides=[2, 2]),
        conv("3x3_dilated", SMALL_IMAGE, 256, (3, 3), dilations=[2, 2], pads=[2] * 4),
        conv("3x3_odd_channels", (1, 30, 57, 57), 45, (3, 3)),
        conv("3x3_to_one", (1, 64, 64, 64), 1, (3, 3)),
        conv("5x5", (1, 48, 28, 28), 64, (5, 5)),
        conv("1x7", (1, 128, 17, 17), 128, (1, 7)),
        conv("in_32_groups", (1, 256, 28, 28), 256, (3, 3), groups=32),
        conv("in_3_groups", (1, 240, 28, 28), 240, (1, 1), groups=3),
        conv("depthwise_3x3", (1, 144, 56, 56), 144, (3, 3), groups=144),
        conv("depthwise_stride", (1, 144, 56, 56), 144, (3, 3), groups=144, strides=[2, 2]),
        conv("depthwise_5x5", (1, 240, 28, 28), 240, (5, 5), groups=240),
        conv("depthwise_7x7", (1, 96, 56, 56), 96, (7, 7), groups=96),
        conv(
            "depthwise_dilated",
            (1, 256, 28, 28),
            256,
            (3, 3),
            groups=256,
            dilations=[2, 2],
            pads=[2] * 4,
        ),
        conv("signal", SIGNAL, 64, (3,)),
        conv("signal_stride", (1, 1, 16000), 64, (10,), strides=[5], pads=[0, 0]),
        conv("signal_long", (1, 1, 16000), 40, (251,)),
        conv("signal_depthwise", SIGNAL, 64, (31,), groups=64),
        conv("volume", VOLUME, 32, (3, 3, 3)),
        conv("volume_depthwise", VOLUME, 16, (3, 3, 3), groups=16),
        transposed("2x2", (1, 128, 28, 28), 64, (2, 2), 2),
        transposed("4x4", (1, 64, 28, 28), 32, (4, 4), 2, pads=[1] * 4),
        transposed("3x3", (1, 64, 28, 28), 32, (3, 3), 2, pads=[1] * 4, output_padding=[1, 1]),
        transposed("depthwise", (1, 64, 28, 28), 64, (4, 4), 2, pads=[1] * 4, group=64),
        transposed("signal", (1, 64, 500), 32, (16,), 8, pads=[4, 4]),
        transposed("volume", (1, 32, 8, 14, 14), 16, (2, 2, 2), 2),
        pool("max_3x3", "MaxPool", (1, 64, 112, 112), 3, 2),
        pool("max_5x5", "MaxPool", (1, 128, 20, 20), 5, 1),
        pool("max_signal", "MaxPool", SIGNAL, 3, 2),
        pool("max_volume", "MaxPool", VOLUME, 2, 2, pads=[0] * 6),
        pool("average_3x3", "AveragePool", IMAGE, 3, 1, count_include_pad=1),
        pool("average_uncounted", "AveragePool", IMAGE, 3, 1),
        pool("average_signal", "AveragePool", SIGNAL, 25, 1),
        pool("lp", "LpPool", IMAGE, 3, 2),
        OperatorModel("pool_global_average", "GlobalAveragePool", [(1, 512, 14, 14)]),
        OperatorModel("pool_global_max", "GlobalMaxPool", [(1, 512, 14, 14)]),
    ]


def _products() -> list[OperatorModel]:
    return [
        OperatorModel("matmul_tokens", "MatMul", [TOKENS], [_weight(384, 1536)]),
        OperatorModel("matmul_back", "MatMul", [(1, 197, 1536)], [_weight(1536, 384)]),
        OperatorModel("matmul_row", "MatMul", [(1, 1024)], [_weight(1024, 1000)]),
        OperatorModel("matmul_few_rows", "MatMul", [(5, 1024)], [_weight(1024, 1000)]),
        OperatorModel("matmul_odd", "MatMul", [(101, 77)], [_weight(77, 53)]),
        OperatorModel("matmul_one_column", "MatMul", [(2000, 384)], [_weight(384, 1)]),
        OperatorModel("matmul_scores", "MatMul", [HEADS, (1, 6, 64, 197)]),
        OperatorModel("matmul_values", "MatMul", [(1, 6, 197, 197), HEADS]),
        OperatorModel("matmul_batch", "MatMul", [(64, 32, 48), (64, 48, 40)]),
        OperatorModel("matmul_query", "MatMul", [(1, 12, 1, 64), (1, 12, 64, 500)]),
        OperatorModel(
            "gemm", "Gemm", [(32, 1024)], [_weight(1000, 1024), _weight(1000)], {"transB": 1}
        ),
        OperatorModel("gemm_transposed", "Gemm", [(256, 100)], [_weight(256, 300)], {"transA": 1}),
        OperatorModel(
            "einsum_heads",
            "Einsum",
            [(1, 197, 6, 64), (1, 197, 6, 64)],
            attributes={"equation": "bqhd,bkhd->bhqk"},
        ),
        OperatorModel(
            "einsum_bilinear", "Einsum", [(32, 64), (32, 64)], attributes={"equation": "bi,bj->bij"}
        ),
        OperatorModel(
            "einsum_ellipsis",
            "Einsum",
            [(8, 49, 32), (49, 49, 32)],
            attributes={"equation": "bqd,qkd->bqk"},
        ),
    ]


def _recurrent() -> list[OperatorModel]:
    def layer(
        operator: str, gates: int, steps: int, batch: int, both: bool = False
    ) -> OperatorModel:
        size, directions = 128, 1 + both
        weights = [
            _weight(directions, gates * size, 64) * 8,
            _weight(directions, gates * size, size) * 8,
            _weight(directions, 2 * gates * size),
        ]
        return OperatorModel(
            f"{operator.lower()}_{steps}_steps_of_{batch}{'_both_ways' if both else ''}",
            operator,
            [(steps, batch, 64)],
            weights,
            {"hidden_size": size, "direction": "bidirectional" if both else "forward"},
        )

    return [
        layer(operator, gates, *numbers)
        for operator, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
        for numbers in ((50, 1), (50, 16), (50, 1, True))
    ]


def _normalizations() -> list[OperatorModel]:
    channels = [_weight(64), _weight(64)]
    statistics = [*channels, np.zeros(64, np.float32), np.ones(64, np.float32)]
    return [
        OperatorModel(
            "layer_normalization", "LayerNormalization", [TOKENS], [_weight(384), _weight(384)]
        ),
        OperatorModel(
            "layer_normalization_wide",
            "LayerNormalization",
            [(128, 1024)],
            [_weight(1024), _weight(1024)],
        ),
        OperatorModel("instance_normalization", "InstanceNormalization", [IMAGE], channels),
        OperatorModel(
            "group_normalization",
            "GroupNormalization",
            [IMAGE],
            [np.ones(64, np.float32), np.zeros(64, np.float32)],
            {"num_groups": 8},
            same_shape=True,
        ),
        OperatorModel("batch_normalization", "BatchNormalization", [IMAGE], statistics),
        OperatorModel("lp_normalization", "LpNormalization", [TOKENS], attributes={"axis": -1}),
        OperatorModel(
            "lp_normalization_channels", "LpNormalization", [IMAGE], attributes={"axis": 1}
        ),
        OperatorModel("lrn", "LRN", [IMAGE], attributes={"size": 5}),
        OperatorModel(
            "mean_variance_normalization", "MeanVarianceNormalization", [IMAGE], same_shape=True
        ),
        OperatorModel("dft", "DFT", [(16, 512, 1)], attributes={"onesided": 1}),
        OperatorModel(
            "stft",
            "STFT",
            [(1, 16000, 1)],
            [np.int64(160), np.hanning(400).astype(np.float32), np.int64(400)],
        ),
    ]
