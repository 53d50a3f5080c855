"""Open a TFLite file: read its operators and tensors, and run it with LiteRT.

LiteRT computes the shapes of all tensors and the values that constants and shapes determine. The
schema:
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/compiler/mlir/lite/schema/schema.fbs
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from farm.errors import ModelError, did_you_mean
from farm.importers.model_file_check import check_file, refuse_dtype_overrides
from farm.importers.relax_postprocessing import one_line_error
from farm.importers.tflite.flatbuffer_check import check_tflite
from farm.importers.tflite.unroll import TooManyOperatorsError, unroll_loops
from farm.types import Model, TensorSpec

_IDENTIFIER = b"TFL3"
_OPEN = -1  # an open extent in a file
_OF_SHAPES = ("SHAPE", "RANK")  # operators whose results depend on shapes alone
OF_CHANCE = (
    "RANDOM_UNIFORM",
    "RANDOM_STANDARD_NORMAL",
    "MULTINOMIAL",
    "STABLEHLO_RNG_BIT_GENERATOR",
)
TO_ONNX = "python -m tf2onnx.convert --tflite model.tflite --output model.onnx"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a file.

    It has its name in the schema, the numbers of its input tensors (-1 for one that is left out)
    and output tensors, and its place: the name of its first output.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    place: str


class TfliteFile:
    """A file with the input shapes of `source`.

    `model` is the parsed file of the package tflite, `what` the file's name.
    """

    def __init__(self, source: Model) -> None:
        """Open the file of `source`.

        Raises ModelError for a file that is missing, damaged or of another format, and for shapes
        that do not fit.
        """
        self.path = Path(source.source)
        self.what = self.path.name
        refuse_dtype_overrides(source)
        check_file(self.path)
        self.content = self.path.read_bytes()
        again = "copy it again, or convert the model again"
        if self.content[4:8] != _IDENTIFIER:
            raise ModelError(
                f"{self.path} is not a TFLite file",
                "it has no TFL3 from its fifth byte on: it is of another format",
                again,
            )
        tflite, runtime = _packages(self.what)
        check_tflite(self.content, self.what)
        try:
            unrolled = _without_loops(tflite, self.content)
            self.interpreter = _interpreter(runtime, unrolled)
            # Loops are unrolled for the import only: what LiteRT answers to the file is right
            self._reference = (
                self.interpreter
                if unrolled is self.content
                else _interpreter(runtime, self.content)
            )
            self.model = tflite.Model.GetRootAsModel(unrolled, 0)
            self.graph = self.model.Subgraphs(0)
            self.operators = list(self._operators(tflite))
            self._results = {index for one in self.operators for index in one.outputs}
        # ValueError of LiteRT; struct.error and others of the package tflite.
        except Exception as exc:
            why = f"{one_line_error(exc)}; it has {len(self.content)} bytes"
            raise ModelError(
                f"{self.path} is not a whole TFLite file, or is of a later version", why, again
            ) from exc
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.known: dict[int, Array] = {}
        self._check_names()
        self.inputs, self.fixed = self._inputs(source.shapes)

    def _operators(self, tflite: Any) -> Iterator[Operator]:
        """Yield the operators of the first subgraph."""
        names = {
            value: name
            for name, value in vars(tflite.BuiltinOperator).items()
            if isinstance(value, int)
        }
        for number in range(self.graph.OperatorsLength()):
            given = self.graph.Operators(number)
            code = self.model.OperatorCodes(given.OpcodeIndex())
            builtin = max(code.DeprecatedBuiltinCode(), code.BuiltinCode())
            name = names.get(builtin, f"operator {builtin}")
            if name == "CUSTOM":
                name = f"custom {(code.CustomCode() or b'').decode(errors='replace')}"
            inputs, outputs = (
                tuple(int(one) for one in found) if isinstance(found, np.ndarray) else ()
                for found in (given.InputsAsNumpy(), given.OutputsAsNumpy())
            )
            yield Operator(
                name,
                inputs,
                outputs,
                self.tensor_name(outputs[0]) if outputs else f"operator {number}",
            )

    def tensor_name(self, index: int) -> str:
        """Return the name of a tensor; "tensor" and its number if it has none."""
        name = self.graph.Tensors(index).Name()
        return name.decode(errors="replace") if name else f"tensor{index}"

    def _check_names(self) -> None:
        """Raise ModelError if two tensors have the same name: TVM would take them as one."""
        names = [self.tensor_name(index) for index in range(self.graph.TensorsLength())]
        if (
            twice := {name for name in names if names.count(name) > 1}
            if len(set(names)) < len(names)
            else set()
        ):
            raise ModelError(
                f"{self.what}: two tensors have one name",
                ", ".join(sorted(twice)[:3]),
                f"convert it to ONNX: {TO_ONNX}",
            )

    def _inputs(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[TensorSpec, ...], str]:
        """Return the inputs with the requested shapes, and why an open batch was fixed."""
        indices = [int(index) for index in self.graph.InputsAsNumpy()]
        names = self._names("Inputs", indices)
        if unknown := sorted(set(shapes) - set(names.values())):
            hint = did_you_mean(unknown[0], names.values())
            raise ModelError(
                f"{self.what} has no input {unknown[0]!r}",
                f"its inputs are {', '.join(names.values())}",
                hint,
            )
        details = {int(one["index"]): one for one in self.interpreter.get_input_details()}
        specs, fixed = [], ""
        for index, name in names.items():
            signature, dtype = (
                [int(extent) for extent in details[index]["shape_signature"]],
                np.dtype(details[index]["dtype"]),
            )
            shape = shapes.get(name) or tuple(int(extent) for extent in details[index]["shape"])
            if len(shape) != len(signature) or any(
                axis not in (_OPEN, extent) for axis, extent in zip(signature, shape, strict=True)
            ):
                has = ["any" if axis == _OPEN else axis for axis in signature]
                raise ModelError(
                    f"{self.what}: the shape {list(shape)} does not fit input {name!r}",
                    f"the model has {has} there",
                    "",
                )
            if signature[:1] == [_OPEN] and name not in shapes:
                fixed = "TVM's importer of TFLite takes the shapes that tensors have, not symbols"
            for running in {self.interpreter, self._reference}:
                running.resize_tensor_input(index, list(shape))
            scale, zero = details[index]["quantization"]
            specs.append(TensorSpec(name, shape, dtype.name, scale=float(scale), zero=int(zero)))
        return tuple(specs), fixed

    def _names(self, side: str, indices: list[int]) -> dict[int, str]:
        """Return the names of inputs or outputs by tensor: the signature's, else the tensors'."""
        names = {index: self.tensor_name(index) for index in indices}
        if self.model.SignatureDefsLength() == 1:
            signature = self.model.SignatureDefs(0)
            given = [
                getattr(signature, side)(number)
                for number in range(getattr(signature, f"{side}Length")())
            ]
            said = {int(one.TensorIndex()): one.Name().decode(errors="replace") for one in given}
            if set(said) == set(indices):
                names = {index: said[index] for index in indices}
        return names

    @property
    def outputs(self) -> dict[int, str]:
        """Return the names of the outputs by tensor."""
        return self._names("Outputs", [int(index) for index in self.graph.OutputsAsNumpy()])

    def run(self, inputs: Mapping[str, Array]) -> None:
        """Run LiteRT on inputs by name; `value` then returns any tensor.

        Raises ModelError if LiteRT fails.
        """
        self._run(self.interpreter, inputs)

    def answer(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return LiteRT's outputs of the file as it is, in order; raise ModelError if it fails."""
        self._run(self._reference, inputs)
        details = self._reference.get_output_details()
        return [self._reference.get_tensor(int(one["index"])) for one in details]

    def _run(self, interpreter: Any, inputs: Mapping[str, Array]) -> None:
        try:
            interpreter.allocate_tensors()
            interpreter.reset_all_variables()
            for index, spec in zip(self.graph.InputsAsNumpy(), self.inputs, strict=True):
                interpreter.set_tensor(int(index), np.asarray(inputs[spec.name], order="C"))
            interpreter.invoke()
        except Exception as exc:
            fix = f"check the shapes and values of the inputs; or convert it to ONNX: {TO_ONNX}"
            raise ModelError(
                f"{self.what}: LiteRT, which is the reference, cannot run the model",
                one_line_error(exc),
                fix,
            ) from exc

    def value(self, index: int) -> Array:
        """Return the value of a tensor after the last run."""
        found: Array = self.interpreter.get_tensor(index)
        return found

    def example(self) -> dict[str, Array]:
        """Return inputs from a fixed seed, like `example_inputs`.

        Quantized inputs use all values of their type.
        """
        from farm.importers.imported_model import example_inputs

        made, numbers = example_inputs(self.inputs), np.random.default_rng(0)
        for index, spec in zip(self.graph.InputsAsNumpy(), self.inputs, strict=True):
            if self.is_quantized(int(index)):
                limits = np.iinfo(spec.dtype)
                made[spec.name] = numbers.integers(
                    limits.min, limits.max, spec.shape, spec.dtype, endpoint=True
                )
        return made

    def is_quantized(self, index: int) -> bool:
        """Return whether a tensor has a scale."""
        found = self.graph.Tensors(index).Quantization()
        return found is not None and found.ScaleLength() > 0

    def is_constant(self, index: int) -> bool:
        """Return whether a tensor has data in the file, or no elements that need data."""
        tensor = self.graph.Tensors(index)
        buffer = self.model.Buffers(tensor.Buffer())
        if buffer is not None and (buffer.DataLength() > 0 or buffer.Size() > 0):
            return True
        return index not in self._results and self._has_no_elements(index)

    def _has_no_elements(self, index: int) -> bool:
        tensor = self.graph.Tensors(index)
        return any(tensor.Shape(axis) == 0 for axis in range(tensor.ShapeLength()))

    def settle(self) -> None:
        """Run LiteRT once to fill `shapes` and `known`.

        `shapes` then holds the shapes of all tensors, `known` the values that constants and shapes
        determine.
        """
        constant = {index for index in range(self.graph.TensorsLength()) if self.is_constant(index)}
        made = [index for index in constant if self._has_no_elements(index)]
        for operator in self.operators:
            settled = operator.inputs and all(
                index < 0 or index in constant for index in operator.inputs
            )
            if operator.name not in OF_CHANCE and (settled or operator.name in _OF_SHAPES):
                constant.update(operator.outputs)
                made += operator.outputs
        self.run(self.example())
        details = {int(one["index"]): one for one in self.interpreter.get_tensor_details()}
        self.shapes = {
            index: tuple(int(extent) for extent in one["shape"]) for index, one in details.items()
        }
        self.known = {
            # LiteRT returns no array of a tensor that it has not allocated
            index: np.zeros(self.shapes[index], details[index]["dtype"])
            if 0 in self.shapes[index]
            else self.value(index)
            for index in made
        }


def litert_version_and_runner(
    path: Path, inputs: Sequence[Array], threads: int
) -> tuple[str, Callable[[], list[Array]]]:
    """Return LiteRT's version, and a function that runs a file on these inputs, in order.

    It runs with the delegates that LiteRT chooses, such as XNNPACK, where the reference has none.
    Raises ModelError if LiteRT refuses the file.
    """
    runtime = _packages(path.name)[1]
    check_tflite(content := path.read_bytes(), path.name)
    try:
        running = runtime.Interpreter(model_content=content, num_threads=threads)
        places = [int(one["index"]) for one in running.get_input_details()]
        for place, array in zip(places, inputs, strict=True):
            running.resize_tensor_input(place, list(array.shape))
        running.allocate_tensors()
        for place, array in zip(places, inputs, strict=True):
            running.set_tensor(place, np.asarray(array, order="C"))
    except Exception as exc:
        raise ModelError(f"LiteRT refuses {path.name}", one_line_error(exc)) from exc
    results = [int(one["index"]) for one in running.get_output_details()]

    def run() -> list[Array]:
        running.invoke()
        return [running.get_tensor(result) for result in results]

    return metadata.version("ai-edge-litert"), run


def _interpreter(runtime: Any, content: bytes) -> Any:
    """Return LiteRT's interpreter of a file, without delegates, which keeps all tensors."""
    return runtime.Interpreter(
        model_content=content,
        num_threads=1,
        experimental_op_resolver_type=runtime.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        experimental_preserve_all_tensors=True,
    )


def _without_loops(tflite: Any, content: bytes) -> bytes:
    """Return a file with its loops unrolled; `content` itself if none can be."""
    model = tflite.Model.GetRootAsModel(content, 0)
    codes = (model.OperatorCodes(index) for index in range(model.OperatorCodesLength()))
    if all(code.BuiltinCode() != tflite.BuiltinOperator.WHILE for code in codes):
        return content
    try:
        return unroll_loops(content)
    except TooManyOperatorsError:
        return content


def _packages(what: str) -> tuple[Any, Any]:
    """Return the packages tflite and LiteRT's interpreter; raise ModelError if one is missing."""
    try:
        import tflite
        from ai_edge_litert import interpreter
    except ImportError as exc:
        fix = f"pip install 'tvm-farm[tflite]'; or convert it to ONNX: {TO_ONNX}"
        raise ModelError(
            f"{what}: TFLite files need packages that are not installed", str(exc), fix
        ) from exc
    return tflite, interpreter
