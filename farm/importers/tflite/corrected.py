"""Converters of TFLite operators that TVM converts wrongly, or into functions that no board has.

The docstring of each method states what it corrects.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter, TensorWrapper

from farm.importers.tflite.recurrent import convert_sequence_lstm

_SAME = 0  # padding


class CorrectedConverter(OperatorConverter):  # type: ignore[misc]
    """TVM's converter with other converters of some operators."""

    def __init__(self, model: Any, subgraph: Any, table: Any, builder: Any) -> None:
        super().__init__(model, subgraph, table, builder)
        self.tvm_map = dict(self.convert_map)
        self.convert_map |= {
            "ARG_MAX": lambda op: self._in_type_of_result(op, self._arg(op, relax.op.argmax)),
            "ARG_MIN": lambda op: self._in_type_of_result(op, self._arg(op, relax.op.argmin)),
            "BATCH_TO_SPACE_ND": self._batch_to_space,
            "BUCKETIZE": self._bucketize,
            "CUMSUM": self._cumsum,
            "DEQUANTIZE": self._dequantize_of_any,
            "ELU": self._elu,
            "EMBEDDING_LOOKUP": self._embedding_lookup,
            "FAKE_QUANT": self._fake_quant,
            "FULLY_CONNECTED": self._fully_connected,
            "GATHER": self._gather,
            "GATHER_ND": self._gather_nd,
            "GELU": self._gelu,
            "MATRIX_DIAG": self._matrix_diag,
            "MATRIX_SET_DIAG": self._matrix_set_diag,
            "MEAN": self._mean,
            "MIRROR_PAD": self._mirror_pad,
            "POW": self._pow,
            "RESIZE_BILINEAR": partial(self._resize, method="linear"),
            "RESIZE_NEAREST_NEIGHBOR": partial(self._resize, method="nearest_neighbor"),
            "REVERSE_SEQUENCE": self._reverse_sequence,
            "REVERSE_V2": self._reverse,
            "SCATTER_ND": self._scatter_nd,
            "SELECT": self._select,
            "SOFTMAX": self._softmax,
            "SPACE_TO_BATCH_ND": self._space_to_batch,
            "SPARSE_TO_DENSE": self._sparse_to_dense,
            "SPLIT_V": self._split_v,
            "SQUARED_DIFFERENCE": self._squared_difference,
            "TRANSPOSE_CONV": self._transpose_conv,
            "UNIDIRECTIONAL_SEQUENCE_LSTM": self._sequence_lstm,
            "UNIDIRECTIONAL_SEQUENCE_RNN": self._sequence_rnn,
            "UNSORTED_SEGMENT_MAX": partial(self._unsorted_segments, reduction="max"),
            "UNSORTED_SEGMENT_MIN": partial(self._unsorted_segments, reduction="min"),
            "UNSORTED_SEGMENT_PROD": partial(self._unsorted_segments, reduction="mul"),
            "UNSORTED_SEGMENT_SUM": partial(self._unsorted_segments, reduction="add"),
        }

    def _given(self, op: Any) -> list[Any]:
        """Return the inputs' expressions."""
        return [self.bb.normalize(self.get_expr(int(index))) for index in op.InputsAsNumpy()]

    def _values(self, op: Any, place: int) -> list[int]:
        """Return the whole numbers of a constant input."""
        tensor = self.get_input_tensors(op)[place]
        return [int(one) for one in np.ravel(self.get_tensor_value(tensor))]

    def _type_and_shape_of_result(self, op: Any) -> tuple[str, list[int]]:
        [made] = self.get_output_tensors(op)
        shape = [int(extent) for extent in self.get_tensor_shape(made)]
        return self.get_tensor_type_str(made.tensor.Type()), shape

    def _in_type_of_result(self, op: Any, made: Any) -> Any:
        """Cast to the type that the file declares; TVM's searches and means are int64."""
        return relax.op.astype(self.bb.normalize(made), self._type_and_shape_of_result(op)[0])

    def _options(self, op: Any, name: str) -> Any:
        import tflite

        return self._get_builtin_options(op, getattr(tflite, name))

    def _arg(self, op: Any, search: Any) -> Any:
        """Convert ARG_MAX and ARG_MIN, whose results may be int32."""
        [axis] = self._values(op, 1)
        return search(self._given(op)[0], axis)

    def _softmax(self, op: Any) -> Any:
        """Convert SOFTMAX; TVM ignores beta."""
        beta = float(self._options(op, "SoftmaxOptions").Beta())
        if beta == 1.0:
            return self.convert_softmax(op)
        (given,), (made,) = self.get_input_tensors(op), self.get_output_tensors(op)
        [data] = self._given(op)
        if given.qnn_params is not None:
            data = self.bb.emit(self.dequantize(data, given))
        scaled = self.bb.emit(relax.op.multiply(data, relax.const(beta, data.ty.dtype)))
        result = self.bb.emit(relax.op.nn.softmax(scaled, -1))
        return result if made.qnn_params is None else self.quantize(result, made)

    def _gelu(self, op: Any) -> Any:
        """Convert GELU; TVM ignores that it is to be approximated."""
        [data] = self._given(op)
        is_approximate = self._options(op, "GeluOptions").Approximate()
        return relax.op.nn.gelu_tanh(data) if is_approximate else relax.op.nn.gelu(data)

    def _elu(self, op: Any) -> Any:
        """Convert ELU, also of what was quantized; TVM takes the type from the file."""
        [data] = self._given(op)
        powers = self.bb.emit(relax.op.exp(data))
        below = self.bb.emit(relax.op.subtract(relax.const(1, data.ty.dtype), powers))
        parts = (self.bb.emit(relax.op.nn.relu(one)) for one in (data, below))
        return relax.op.subtract(*parts)

    def _pow(self, op: Any) -> Any:
        """Convert POW; TVM has none of integers. Those of float64 are exact."""
        base, exponent = self._given(op)
        if "float" in str(base.ty.dtype):
            return self.tvm_map["POW"](op=op)
        powers = (self.bb.emit(relax.op.astype(one, "float64")) for one in (base, exponent))
        power = self.bb.emit(relax.op.round(self.bb.emit(relax.op.power(*powers))))
        return self._in_type_of_result(op, power)

    def _squared_difference(self, op: Any) -> Any:
        """Convert SQUARED_DIFFERENCE; TVM's is a power, of which it has none of integers."""
        if self.get_input_tensors(op)[0].qnn_params is not None:
            return self.convert_squared_difference(op)
        difference = self.bb.emit(relax.op.subtract(*self._given(op)))
        return relax.op.multiply(difference, difference)

    def _bucketize(self, op: Any) -> Any:
        """Convert BUCKETIZE: a number equal to a boundary is above it; TVM has it below."""
        [data] = self._given(op)
        kind = "float64" if data.ty.dtype == "float64" else "float32"
        bounds = self._options(op, "BucketizeOptions").BoundariesAsNumpy().astype(kind)
        data = self.bb.emit(relax.op.astype(data, kind))
        return relax.op.bucketize(data, relax.const(bounds), out_int32=True, right=True)

    def _mean(self, op: Any) -> Any:
        """Convert MEAN; of integers LiteRT's is truncated, and TVM's of another type."""
        data = self._given(op)[0]
        if self.get_input_tensors(op)[0].qnn_params is not None or "float" in str(data.ty.dtype):
            return self.tvm_map["MEAN"](op=op)
        axes, keeps = self._values(op, 1), self._options(op, "ReducerOptions").KeepDims()
        wide = self.bb.emit(relax.op.astype(data, "int64"))
        total = self.bb.emit(relax.op.sum(wide, axes, bool(keeps)))
        count = int(np.prod([int(data.ty.shape[axis]) for axis in axes]))
        size = self.bb.emit(relax.op.floor_divide(relax.op.abs(total), relax.const(count, "int64")))
        return self._in_type_of_result(op, relax.op.multiply(relax.op.sign(total), size))

    def _cumsum(self, op: Any) -> Any:
        """Convert CUMSUM, also from the end, which TVM refuses."""
        options = self._options(op, "CumsumOptions")
        data, [axis] = self._given(op)[0], self._values(op, 1)
        if not options.Reverse():
            return relax.op.cumsum(data, axis, data.ty.dtype, bool(options.Exclusive()))
        turned = self.bb.emit(relax.op.flip(data, axis))
        sums = relax.op.cumsum(turned, axis, data.ty.dtype, bool(options.Exclusive()))
        return relax.op.flip(self.bb.emit(sums), axis)

    def _fake_quant(self, op: Any) -> Any:
        """Convert FAKE_QUANT; TVM finds the zero point in float64, which halves round otherwise."""
        options, one = self._options(op, "FakeQuantOptions"), np.float32
        low, high = one(options.Min()), one(options.Max())
        first, last = one(bool(options.NarrowRange())), one((1 << options.NumBits()) - 1)
        scale = (high - low) / (last - first)
        zero = np.clip(np.floor(first - low / scale + one(0.5)), first, last)
        begin, end = (first - zero) * scale, (last - zero) * scale
        [data] = self._given(op)
        data = self.bb.emit(relax.op.clip(data, float(begin), float(end)))
        data = self.bb.emit(relax.op.subtract(data, relax.const(begin)))
        data = self.bb.emit(relax.op.multiply(data, relax.const(one(1) / scale)))
        data = self.bb.emit(relax.op.floor(self.bb.emit(relax.op.add(data, relax.const(one(0.5))))))
        data = self.bb.emit(relax.op.multiply(data, relax.const(scale)))
        return relax.op.add(data, relax.const(begin))

    def _fully_connected(self, op: Any) -> Any:
        """Convert FULLY_CONNECTED; TVM keeps all axes where LiteRT makes a matrix."""
        made = self.bb.emit(self.convert_fully_connected(op))
        shape = self._type_and_shape_of_result(op)[1]
        is_same = [int(extent) for extent in made.ty.shape] == shape
        return made if is_same else relax.op.reshape(made, shape)

    def _embedding_lookup(self, op: Any) -> Any:
        """Convert EMBEDDING_LOOKUP; TVM takes the indices for the table."""
        indices, table = self._given(op)
        return relax.op.take(table, indices, axis=0, mode="fast")

    def _gather(self, op: Any) -> Any:
        """Convert GATHER; TVM ignores its batch axes, and checks constants index by index.

        The batches are one axis with the gathered one, whose indices count across batches.
        """
        options, (data, indices) = self._options(op, "GatherOptions"), self._given(op)
        shape, where = ([int(extent) for extent in one.ty.shape] for one in (data, indices))
        rank, batch = len(shape), int(options.BatchDims())
        axis, batch = int(options.Axis()) % rank, batch + (len(where) if batch < 0 else 0)
        indices = self.bb.emit(relax.op.astype(indices, "int32"))
        if not batch:
            return relax.op.take(data, indices, axis=axis, mode="fast")
        between = list(range(batch, axis))
        rest = [*between, *range(axis + 1, rank)]
        count, length = int(np.prod(shape[:batch])), shape[axis]
        if between:
            data = self.bb.emit(relax.op.permute_dims(data, [*range(batch), axis, *rest]))
        flat = self.bb.emit(relax.op.reshape(data, [count * length, *(shape[at] for at in rest)]))
        first = np.arange(count, dtype=np.int32) * np.int32(length)
        first = first.reshape([*where[:batch], *[1] * (len(where) - batch)])
        indices = self.bb.emit(relax.op.add(indices, relax.const(first)))
        taken = self.bb.emit(relax.op.take(flat, indices, axis=0, mode="fast"))
        if not between:
            return taken
        moved = [len(where) + at for at in range(len(between))]
        after = list(range(len(where) + len(between), len(where) + len(rest)))
        order = [*range(batch), *moved, *range(batch, len(where)), *after]
        return relax.op.permute_dims(taken, order)

    def _gather_nd(self, op: Any) -> Any:
        """Convert GATHER_ND; TVM takes the first axis of the indices for their last."""
        data, indices = self._given(op)
        return relax.op.gather_nd(data, self.bb.emit(relax.op.astype(indices, "int64")))

    def _scatter_nd(self, op: Any) -> Any:
        """Convert SCATTER_ND, as `_gather_nd`; updates of one place are added."""
        indices, updates, _ = self._given(op)
        dtype, shape = self._type_and_shape_of_result(op)
        return relax.op.scatter_nd(relax.op.zeros(shape, dtype), indices, updates, "add")

    def _sparse_to_dense(self, op: Any) -> Any:
        """Convert SPARSE_TO_DENSE, for which TVM calls a function that boards do not have."""
        indices, _, values, fill = self._given(op)
        shape = self._type_and_shape_of_result(op)[1]
        where = [int(extent) for extent in indices.ty.shape]
        if len(where) < 2:
            where = [int(np.prod(where)), 1]
            indices = self.bb.emit(relax.op.reshape(indices, where))
        values = self.bb.emit(relax.op.broadcast_to(values, where[:1]))
        base = self.bb.emit(relax.op.broadcast_to(fill, shape))
        return relax.op.scatter_nd(base, indices, values, "update")

    def _matrix_diag(self, op: Any) -> Any:
        """Convert MATRIX_DIAG, for which TVM calls a function that boards do not have."""
        dtype, shape = self._type_and_shape_of_result(op)
        return self._with_diagonal(self.bb.emit(relax.op.zeros(shape, dtype)), self._given(op)[0])

    def _matrix_set_diag(self, op: Any) -> Any:
        """Convert MATRIX_SET_DIAG, for which TVM calls a function that boards do not have."""
        return self._with_diagonal(*self._given(op))

    def _with_diagonal(self, matrices: Any, diagonals: Any) -> Any:
        height, width = [int(extent) for extent in matrices.ty.shape][-2:]
        if width > height:
            ends = [0, 0] * (len(diagonals.ty.shape) - 1) + [0, width - height]
            diagonals = self.bb.emit(relax.op.nn.pad(diagonals, ends))
        columns = self.bb.emit(relax.op.expand_dims(diagonals, -2))
        return relax.op.where(relax.const(np.eye(height, width, dtype=bool)), columns, matrices)

    def _space_to_batch(self, op: Any) -> Any:
        """Convert SPACE_TO_BATCH_ND, for which TVM calls a function that boards do not have."""
        data, blocks = self._given(op)[0], self._values(op, 1)
        rank, axes = len(data.ty.shape), len(blocks)
        if any(widths := self._values(op, 2)):
            ends = [0, 0, *widths, *[0, 0] * (rank - axes - 1)]
            fill = float(self._zero_point(self.get_input_tensors(op)[0]))
            data = self.bb.emit(relax.op.nn.pad(data, ends, pad_value=fill))
        batch, *sides = (int(extent) for extent in data.ty.shape)
        rest = sides[axes:]
        split = [part for side, of in zip(sides, blocks, strict=False) for part in (side // of, of)]
        data = self.bb.emit(relax.op.reshape(data, [batch, *split, *rest]))
        within, across = range(2, 2 * axes + 1, 2), range(1, 2 * axes + 1, 2)
        order = [*within, 0, *across, *range(2 * axes + 1, 2 * axes + 1 + len(rest))]
        data = self.bb.emit(relax.op.permute_dims(data, order))
        return relax.op.reshape(data, self._type_and_shape_of_result(op)[1])

    def _batch_to_space(self, op: Any) -> Any:
        """Convert BATCH_TO_SPACE_ND, for which TVM calls a function that boards do not have."""
        data, blocks, crops = self._given(op)[0], self._values(op, 1), self._values(op, 2)
        batch, *sides = (int(extent) for extent in data.ty.shape)
        axes, rest = len(blocks), sides[len(blocks) :]
        batch //= int(np.prod(blocks))
        data = self.bb.emit(relax.op.reshape(data, [*blocks, batch, *sides]))
        pairs = [part for at in range(axes) for part in (axes + 1 + at, at)]
        order = [axes, *pairs, *range(2 * axes + 1, 2 * axes + 1 + len(rest))]
        data = self.bb.emit(relax.op.permute_dims(data, order))
        wide = [side * of for side, of in zip(sides, blocks, strict=False)]
        data = self.bb.emit(relax.op.reshape(data, [batch, *wide, *rest]))
        if not any(crops):
            return data
        begins, ends = (
            crops[::2],
            [side - crop for side, crop in zip(wide, crops[1::2], strict=True)],
        )
        return relax.op.strided_slice(data, list(range(1, axes + 1)), begins, ends)

    def _dequantize_of_any(self, op: Any) -> Any:
        """Convert DEQUANTIZE; TVM takes numbers of float16 for constants."""
        [data] = self._given(op)
        if str(data.ty.dtype) == "float16":
            return relax.op.astype(data, "float32")
        return self.convert_dequantize(op)

    def _mirror_pad(self, op: Any) -> Any:
        """Convert MIRROR_PAD; TVM refuses the mode SYMMETRIC, which repeats the first element."""
        if not self._options(op, "MirrorPadOptions").Mode():
            return self.convert_mirror_pad(op)
        data, widths = self._given(op)[0], np.reshape(self._values(op, 1), (-1, 2))
        for axis, ends in enumerate(widths):
            if ends.any():
                length = int(data.ty.shape[axis])
                places = np.pad(np.arange(length, dtype=np.int32), ends, "symmetric")
                data = relax.op.take(data, relax.const(places), axis=axis, mode="fast")
                data = self.bb.emit(data)
        return data

    def _reverse_sequence(self, op: Any) -> Any:
        """Convert REVERSE_SEQUENCE; TVM refuses bytes, and fails for one element."""
        data, lengths = self._given(op)
        options = self._options(op, "ReverseSequenceOptions")
        if int(data.ty.shape[options.SeqDim()]) == 1:
            return data
        return relax.op.reverse_sequence(data, lengths, options.SeqDim(), options.BatchDim())

    def _reverse(self, op: Any) -> Any:
        """Convert REVERSE_V2; TVM refuses several axes."""
        [data], axes = self._given(op)[:1], self._values(op, 1)
        for axis in axes:
            data = self.bb.emit(relax.op.flip(data, axis))
        return data

    def _select(self, op: Any) -> Any:
        """Convert SELECT, whose condition may be of rows."""
        condition, one, other = self._given(op)
        rank = len(one.ty.shape)
        if len(condition.ty.shape) == 1 and rank > 1:
            rows = [int(condition.ty.shape[0]), *[1] * (rank - 1)]
            condition = self.bb.emit(relax.op.reshape(condition, rows))
        return relax.op.where(condition, one, other)

    def _split_v(self, op: Any) -> Any:
        """Convert SPLIT_V; TVM ignores that a size of -1 is what the others leave."""
        if self.has_expr(int(op.Inputs(1))):
            return self.convert_split_v(op)
        data, sizes, [axis] = self._given(op)[0], self._values(op, 1), self._values(op, 2)
        if len(sizes) == 1:
            return data
        length = int(data.ty.shape[axis])
        sizes = [length - sum(sizes) - 1 if size < 0 else size for size in sizes]
        return relax.op.split(data, [int(end) for end in np.cumsum(sizes)[:-1]], axis=axis)

    def _resize(self, op: Any, method: str) -> Any:
        """Convert RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR with aligned corners.

        TVM rounds a half down where LiteRT rounds it up, and divides by zero for one element, which
        is the first.
        """
        linear = method == "linear"
        kind = "ResizeBilinearOptions" if linear else "ResizeNearestNeighborOptions"
        options = self._options(op, kind)
        if not options.AlignCorners() or options.HalfPixelCenters():
            return self._convert_resize(method, op)
        given, made = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        data, size = self._given(op)[0], self._values(op, 1)
        single = [axis for axis, extent in enumerate(size, 1) if extent == 1]
        first = [0] * len(single), [1] * len(single)
        if linear and given.qnn_params is not None:
            data = self.bb.emit(self.dequantize(data, given))
        if single:  # of one element two, of which one is taken
            data = self.bb.emit(relax.op.strided_slice(data, single, *first))
        wide = tuple(max(extent, 2) for extent in size)
        rounding = "" if linear else "round_prefer_ceil"
        result = self.bb.emit(
            relax.op.image.resize2d(data, wide, None, "NHWC", method, "align_corners", rounding)
        )
        if single:
            result = self.bb.emit(relax.op.strided_slice(result, single, *first))
        return self.quantize(result, made) if linear and made.qnn_params is not None else result

    def _transpose_conv(self, op: Any) -> Any:
        """Convert TRANSPOSE_CONV.

        TVM ignores a fused activation, and that the result may be longer than what the windows
        reach.
        """
        options, tensors = self._options(op, "TransposeConvOptions"), self.get_input_tensors(op)
        weights, given, (made,) = tensors[1], tensors[2], self.get_output_tensors(op)
        data = self.bb.normalize(self.get_expr(given.tensor_idx))
        order = (3, 0, 1, 2)
        if self.has_expr(weights.tensor_idx):
            kernel = relax.op.permute_dims(self.get_expr(weights.tensor_idx), order)
        else:
            kernel = relax.const(np.transpose(self.get_tensor_value(weights), order))
        kernel = self.bb.normalize(kernel)
        if given.qnn_params is not None:
            data = self.bb.emit(self.dequantize(data, given))
            how = weights.qnn_params
            kernel = self.bb.emit(
                relax.op.dequantize(kernel, how["scale"], how["zero_point"], axis=1)
            )
        strides = (options.StrideH(), options.StrideW())
        begins, ends, more = [], [], []
        for axis, stride in enumerate(strides, 1):
            length = int(self._type_and_shape_of_result(op)[1][axis])
            reached = (int(data.ty.shape[axis]) - 1) * stride + int(kernel.ty.shape[axis + 1])
            cut = max(0, reached - length) if options.Padding() == _SAME else 0
            begins.append(cut // 2)
            ends.append(cut - cut // 2)
            more.append(length - (reached - cut))
        result = relax.op.nn.conv2d_transpose(
            data, kernel, strides, (*begins, *ends), more,
            data_layout="NHWC", kernel_layout="IOHW", out_dtype="float32",
        )  # fmt: skip
        result = self.bb.emit(result)
        if len(tensors) > 3 and tensors[3].tensor_idx >= 0:
            bias = self.bb.normalize(self.get_expr(tensors[3].tensor_idx))
            if tensors[3].qnn_params is not None:
                bias = self.bb.emit(self.dequantize(bias, tensors[3]))
            result = self.bb.emit(relax.op.add(result, bias))
        activation = options.FusedActivationFunction()
        result = self.bb.normalize(self.convert_fused_activation_function(result, activation))
        return result if made.qnn_params is None else self.quantize(result, made)

    def _sequence_lstm(self, op: Any) -> Any:
        """Convert UNIDIRECTIONAL_SEQUENCE_LSTM; TVM refuses most forms, also that of Keras."""
        options = self._options(op, "UnidirectionalSequenceLSTMOptions")
        return convert_sequence_lstm(self, op, options)

    def _sequence_rnn(self, op: Any) -> Any:
        """Convert UNIDIRECTIONAL_SEQUENCE_RNN; TVM exchanges batch and time if time is first."""
        result = self.convert_unidirectional_sequence_rnn(op)
        if self._options(op, "SequenceRNNOptions").TimeMajor():
            return relax.op.permute_dims(self.bb.emit(result), [1, 0, 2])
        return result

    def _unsorted_segments(self, op: Any, reduction: str) -> Any:
        """Convert the UNSORTED_SEGMENT operators; TVM writes those below 0 outside the result.

        They have a segment of their own behind the others, which is cut off.
        """
        data, places, _ = self._given(op)
        dtype, (count, *rest) = self._type_and_shape_of_result(op)
        places = self.bb.emit(
            relax.op.where(
                relax.op.less(places, relax.const(0, places.ty.dtype)),
                relax.const(count, places.ty.dtype),
                places,
            )
        )
        places = self.bb.emit(relax.op.expand_dims(places, -1))
        base = self._get_segment_scatter_base([count + 1, *rest], dtype, reduction)
        result = self.bb.emit(relax.op.scatter_nd(self.bb.emit(base), places, data, reduction))
        return relax.op.strided_slice(result, [0], [0], [count])

    def dequantize(self, expr: Any, tensor: TensorWrapper) -> Any:
        """Return floats; Relax dequantizes no int64, which biases of int16 data are."""
        value = self.bb.normalize(expr)
        if str(value.ty.dtype) != "int64":
            return super().dequantize(value, tensor)
        value = self.bb.emit(relax.op.astype(value, "float32"))
        return relax.op.multiply(value, tensor.qnn_params["scale"])

    def _zero_point(self, tensor: TensorWrapper) -> int:
        """Return the zero point of a tensor; 0 if it is not quantized."""
        return (
            0 if tensor.qnn_params is None else int(tensor.qnn_params["zero_point"].value.numpy())
        )
