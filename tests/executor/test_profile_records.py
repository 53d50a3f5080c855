"""What the agent has recorded, as the steps of a model."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from farm.executor.profile_records import (
    RecordedInference,
    mean_step_times,
    median_inference,
    parse_recorded_inferences,
)
from farm.types import Kernel, KernelCall, Roofline

PLAIN, RECORDED = 0xFFFFFFFF, 0xFFFFFFFE
MS = 1_000_000


def recording(names: list[str], *records: tuple[int, int, int, int]) -> bytes:
    """As the agent sends it; milliseconds for nanoseconds."""
    head = "".join(f"{name}\n" for name in names) + "\n"
    return head.encode() + b"".join(
        struct.pack("<IIqq", one, depth, begin * MS, length * MS)
        for one, depth, begin, length in records
    )


def inference(**seconds: float) -> RecordedInference:
    names = ["alloc", *seconds]
    times = [1, *(int(value) for value in seconds.values())]
    calls = [(index, 0, sum(times[:index]), times[index]) for index in range(len(names))]
    (found,) = parse_recorded_inferences(recording(names, *calls, (RECORDED, 0, 0, sum(times))))[1]
    return found


def test_the_time_of_a_call_is_its_own_less_that_of_the_calls_within() -> None:
    content = recording(
        ["inner", "outer"],
        (PLAIN, 0, 0, 9),
        (0, 1, 11, 2),
        (0, 1, 14, 3),
        (1, 0, 10, 8),
        (RECORDED, 0, 10, 10),
    )
    plain, (found,) = parse_recorded_inferences(content)
    assert plain == [pytest.approx(9e-3)] and found.seconds == pytest.approx(10e-3)
    assert [(span.name, span.depth) for span in found.spans] == [
        ("outer", 0),
        ("inner", 1),
        ("inner", 1),
    ]
    assert found.own_s == pytest.approx((3e-3, 2e-3, 3e-3))
    assert [span.begin_s for span in found.spans] == pytest.approx([0, 1e-3, 4e-3])


def test_a_call_within_another_is_taken_from_the_time_of_that_one_only() -> None:
    content = recording(
        ["inner", "outer"],
        (0, 1, 11, 2),
        (1, 0, 10, 8),
        (1, 0, 20, 5),
        (0, 1, 27, 1),
        (1, 0, 26, 4),
        (RECORDED, 0, 10, 22),
    )
    _, (found,) = parse_recorded_inferences(content)
    assert [span.name for span in found.spans] == ["outer", "inner", "outer", "outer", "inner"]
    assert found.own_s == pytest.approx((6e-3, 2e-3, 5e-3, 3e-3, 1e-3))


def test_a_model_without_calls_is_recorded_too() -> None:
    plain, (found,) = parse_recorded_inferences(
        recording([], (PLAIN, 0, 0, 1), (RECORDED, 0, 1, 1))
    )
    assert plain == [pytest.approx(1e-3)] and found.spans == ()


@pytest.mark.parametrize("content", [b"", b"a\n", b"a\n\n123", b"\n12"])
def test_what_is_no_recording_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="no recording"):
        parse_recorded_inferences(content)


GRAPH: dict[str, Any] = {
    "tensors": {
        "x": {"shape": [2, 8], "dtype": "float32"},
        "w": {"shape": [8], "dtype": "int8"},
        "y": {"shape": [2, 8], "dtype": "bool"},
        "z": {"shape": ["n", 8], "dtype": "float32"},
    },
    "steps": [
        {"kernel": "add", "inputs": ["x", "w", "x"], "output": "y"},
        {"kernel": "relax.reshape", "inputs": ["y"], "output": "z"},
        {"kernel": "add", "inputs": ["y"], "output": "z"},
    ],
}
KERNELS = [Kernel("add", "general", operations=100), Kernel("mul", "dense")]


def test_each_call_of_a_kernel_is_a_step_of_the_graph_and_the_rest_is_the_runtimes() -> None:
    names = ["alloc", "add", "mul"]
    times = [(0, 0, 0, 1), (1, 0, 1, 2), (1, 0, 3, 4), (2, 0, 7, 5), (RECORDED, 0, 0, 13)]
    steps, runtime_s, calls = mean_step_times(
        parse_recorded_inferences(recording(names, *times))[1], KERNELS, GRAPH
    )
    assert [(step.kernel, step.nbytes, step.operations, step.rule) for step in steps] == [
        ("add", 64 + 8 + 16, 50, "general"),  # of 100 in two calls
        ("add", None, 50, "general"),
        ("mul", None, 0, "dense"),
    ]
    assert [step.seconds for step in steps] == pytest.approx([2e-3, 4e-3, 5e-3])
    assert (runtime_s, calls) == (pytest.approx(1e-3), 1)


def test_steps_add_up_to_typical_inferences_and_a_disturbed_one_does_not_count() -> None:
    found = [inference(add=add, mul=mul) for add, mul in [(4, 6), (5, 5), (6, 4), (5, 500)]]
    steps, runtime_s, _ = mean_step_times(found, KERNELS, GRAPH)
    assert sum(step.seconds for step in steps) + runtime_s == pytest.approx(11e-3)
    assert all(4e-3 <= step.seconds <= 6e-3 for step in steps)
    assert median_inference(found).seconds == pytest.approx(11e-3)


def test_a_kernel_that_is_called_now_and_then_counts_as_often_as_it_was() -> None:
    steps, _, _ = mean_step_times([inference(add=4), inference(add=3, mul=1)] * 5, KERNELS, GRAPH)
    assert [step.seconds for step in steps] == pytest.approx([3.5e-3, 0.5e-3])


def test_a_roof_bounds_by_arithmetic_or_by_memory() -> None:
    roof = Roofline(gflops=10, gbytes_s=1, source="")
    heavy, light = (
        KernelCall("heavy", 2e-9 * 10, operations=100, nbytes=1),
        KernelCall("light", 8e-9, operations=10, nbytes=4),
    )
    assert roof.share(heavy) == pytest.approx(0.5) and not roof.is_bound_by_memory(heavy)
    assert roof.share(light) == pytest.approx(0.5) and roof.is_bound_by_memory(light)
    assert roof.share(KernelCall("unknown", 1.0)) is None
