"""Run a build on a device kernel by kernel and compare each kernel with a plain loop nest here.

What the loop nests compute is computed before, by a process that may be sandboxed.

After a bad layer the device continues with the reference's values. Every layer that is wrong by
itself is therefore found, not only the first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from farm import checked_model_import, stats
from farm.compiler.artifact import LIBRARY
from farm.compiler.diagnostics.reference_run import compute_reference_steps
from farm.compiler.diagnostics.reference_steps import ReferenceStep, ReferenceSteps, ReferenceValues
from farm.compiler.parameter_files import PREFIX, array_bytes, read_transformed_parameters
from farm.executor.loading import connect_and_load_model
from farm.processes.workers import TaskContext
from farm.store import TuningRecordStore
from farm.types import (
    Artifact,
    BisectedLayer,
    BuildWithAgent,
    Device,
    KernelBisection,
    OutputErrorLimits,
    Progress,
    Stage,
)

if TYPE_CHECKING:
    from farm.rpc.blocking_session import Tensor
    from farm.rpc.value_types import RemoteDevice
    from farm.transports import Link

    Array = np.ndarray[Any, Any]

LEAST_DB = {"float64": 60.0, "float32": 60.0, "float16": 30.0, "bfloat16": 20.0}
LEAST_OF_INTEGERS_DB = 30.0  # a tiny difference before rounding changes an integer by one step
_NOTHING = 1e-6  # largest absolute difference from a reference that is zero everywhere


def compare_kernels_with_reference(
    context: TaskContext,
    device: Device,
    fitted: BuildWithAgent,
    fed: tuple[Mapping[str, Array], Sequence[Array]] | None,
    least_db: float | None,
    deadline_s: float,
    computer: Callable[..., ReferenceSteps] = compute_reference_steps,
) -> KernelBisection:
    """Compare every layer of a build on a device with its reference.

    `fed` holds inputs and the reference engine's outputs; None takes those stored with the model. A
    layer is bad if its signal-to-noise ratio is below `least_db`, or by default below that of its
    dtype, or if it has NaN or infinity although the reference is finite. `computer` replaces
    `compute_reference_steps`, for example to run it in a sandbox.
    """
    prepared, artifact = fitted.prepared, fitted.artifact
    inputs, expected = fed or checked_model_import.read_reference_inputs_and_outputs(prepared)
    store = TuningRecordStore.of_user()
    records = {core: store.choices(core) for core in store.cores()}
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(TemporaryDirectory(prefix="reference-", dir=context.scratch))
        )
        computed = computer(context, prepared, artifact, device.profile, records, inputs, folder)
        loaded, link, _ = connect_and_load_model(
            stack, context, device, artifact, fitted.agent, deadline_s, {}
        )
        context.note(Progress(Stage.RUNNING, "the whole model"))
        loaded.feed(inputs)
        loaded.run()
        whole = stats.compare_outputs_with_reference(
            loaded.outputs(), list(expected), fitted.limits
        )
        here = {
            number: np.asarray(inputs[spec.name], order="C")
            for number, spec in zip(computed.inputs, prepared.inputs, strict=True)
        }
        reference = ReferenceValues(prepared.model, computed, folder, here)
        walk = _Walk(context, link, loaded.device, reference, artifact, least_db)
        return KernelBisection(tuple(walk.layers(here)), whole)


class _Walk:
    """Runs each step of a model on the device and on this machine, and compares the outputs.

    A tensor is kept until its last use.
    """

    def __init__(
        self,
        context: TaskContext,
        link: Link,
        device: RemoteDevice,
        reference: ReferenceValues,
        artifact: Artifact,
        least_db: float | None,
    ) -> None:
        self._context, self._link, self._least_db = context, link, least_db
        self._reference, parts = reference, reference.computed
        self._steps = parts.steps
        self._device = device
        self._module = link.session.load_module(LIBRARY)
        self._places = {number: f"{PREFIX}_{place}" for number, place in parts.places.items()}
        dtypes = {self._places[number]: dtype for number, (_, dtype) in parts.parameters.items()}
        self._kept = read_transformed_parameters(artifact.parameters, dtypes)
        self._uses = Counter(number for step in parts.steps for number in step.tensors)
        self._there: dict[int, Any] = {}

    def layers(self, here: Mapping[int, Array]) -> list[BisectedLayer]:
        """Return the layer of each step. `here` holds the inputs by tensor number."""
        for number, value in here.items():
            self._there[number] = self._sent(value)
        found = []
        for place, step in enumerate(self._steps):
            self._context.note(Progress(Stage.RUNNING, step.kernel, place / len(self._steps)))
            expected = [self._reference.value(number) for number, _, _ in step.outputs]
            outputs = self._run(step, [self._tensor(one) for one in step.arguments])
            got = [output.numpy() for output in outputs]
            layer = self._judged(step, got, expected)
            found.append(layer)
            for (number, _, _), value, output in zip(step.outputs, expected, outputs, strict=True):
                self._there[number] = self._sent(value) if layer.bad else output
            self._let_go(step)
        return found

    def _judged(
        self, step: ReferenceStep, got: Sequence[Array], expected: Sequence[Array]
    ) -> BisectedLayer:
        """Compare the outputs of a step with the expected ones.

        A bad step is run again with the reference's inputs, and its parameters are checked for
        damage.
        """
        snr_db, max_abs = _compared(got, expected)
        not_finite = _not_finite(got, expected)
        bad = bool(not_finite) or self._below(snr_db, max_abs, expected)
        alone_db, damaged = None, False
        if bad:
            given = {
                number: self._sent(self._reference.value(number))
                for number in step.tensors
                if number not in self._places
            }
            right = [
                given[one] if isinstance(one, int) and one in given else self._tensor(one)
                for one in step.arguments
            ]
            alone_db = _compared([output.numpy() for output in self._run(step, right)], expected)[0]
            mine = [number for number in step.tensors if number in self._places]
            damaged = any(self._is_damaged(number) for number in mine)
        _, shape, dtype = step.outputs[0]
        return BisectedLayer(
            step.kernel,
            shape,
            dtype,
            snr_db,
            max_abs,
            bad,
            not_finite,
            alone_db,
            damaged,
            stats.fingerprint(expected[0]),
        )

    def _is_damaged(self, number: int) -> bool:
        """Return True if a parameter in the build differs from the model's.

        The stored value is first converted to the form that the code takes: storage in half
        precision is no damage if it represents every number exactly.
        """
        return array_bytes(self._kept[self._places[number]]) != array_bytes(
            self._reference.value(number)
        )

    def _below(self, snr_db: float, max_abs: float, expected: Sequence[Array]) -> bool:
        """Return True if the outputs differ too much from the expected ones."""
        least = self._least_db
        if least is None:
            least = min(LEAST_DB.get(str(value.dtype), LEAST_OF_INTEGERS_DB) for value in expected)
        if (
            math.isinf(snr_db)
            and math.isfinite(max_abs)
            and not any(value.any() for value in expected)
        ):
            return max_abs > _NOTHING
        return snr_db < least

    def _run(self, step: ReferenceStep, arguments: Sequence[Any]) -> list[Tensor]:
        outputs = [
            self._link.session.empty(shape, dtype, self._device) for _, shape, dtype in step.outputs
        ]
        self._module.function(step.kernel)(*arguments, *outputs)
        return outputs

    def _tensor(self, argument: Any) -> Any:
        """Return an argument on the device: an earlier result, a loaded parameter or a constant."""
        if not isinstance(argument, int):
            return self._sent(argument)
        if argument in self._places:
            return self._link.call("vm.builtin.tensor_cache.get", self._places[argument])
        return self._there[argument]

    def _sent(self, value: Array) -> Tensor:
        return self._link.session.tensor(value, self._device)

    def _let_go(self, step: ReferenceStep) -> None:
        """Drop the tensors that no later step takes."""
        for number in step.tensors:
            self._uses[number] -= 1
            if not self._uses[number]:
                self._there.pop(number, None)


def _compared(got: Sequence[Array], expected: Sequence[Array]) -> tuple[float, float]:
    """Return the signal-to-noise ratio in dB and the largest absolute difference."""
    found = stats.compare_outputs_with_reference(got, expected, OutputErrorLimits())
    return found.snr_db, found.max_abs


def _not_finite(got: Sequence[Array], expected: Sequence[Array]) -> str:
    """Return "NaN" or "infinity" if an output has one although the reference is finite; else ""."""
    for ours, theirs in zip(got, expected, strict=True):
        if theirs.dtype.kind == "f" and np.isfinite(theirs).all() and not np.isfinite(ours).all():
            return "NaN" if np.isnan(ours).any() else "infinity"
    return ""
