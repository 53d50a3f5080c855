"""Small graphs whose kernels were once wrong, left their tensors, or could not be compiled: see
`regression_graphs`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from host_profile import HOST
from regression_graphs import (
    CUT_LOOPS,
    FOLLOWED,
    Graph,
    function_split,
    functions,
    gather_concat,
    reshape_pad,
    sigmoid_of_padding_alone,
    silu_of_padding,
    written,
)

from farm.compiler import host_run
from farm.compiler.codegen.executable import compile_executable
from farm.compiler.lower import lower_module, resolve_target
from farm.config import load_fleet
from farm.importers.imported_model import ImportedModel
from farm.importers.onnx.load import load
from farm.types import Model


def imported_from(tmp_path: Path, made: Graph) -> ImportedModel:
    return load(Model("graph", str(written(tmp_path / "graph.onnx", made))))


def agrees(imported: ImportedModel) -> None:
    """Compare with ONNX Runtime on the example."""
    run = host_run.compile_host_runner(imported.module, imported.weights, HOST)
    answers = run([imported.example[spec.name] for spec in imported.inputs])
    for ours, theirs in zip(answers, imported.reference(imported.example), strict=True):
        np.testing.assert_allclose(
            ours, theirs, atol=1e-5 * max(1, np.abs(theirs).max()), rtol=1e-5
        )


@pytest.mark.parametrize("name", CUT_LOOPS)
def test_a_loop_cut_at_conditions_of_loops_outside_computes_each_element_once(name, tmp_path):
    agrees(imported_from(tmp_path, CUT_LOOPS[name]))


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_follows_a_main_block_is_written_completely(name, tmp_path):
    agrees(imported_from(tmp_path, FOLLOWED[name]))


def test_a_lookup_in_rows_that_do_not_fill_vectors_is_compiled(tmp_path):
    agrees(imported_from(tmp_path, gather_concat()))


def test_functions_of_functions_are_compiled_in_seconds_not_hours(tmp_path):
    """Nested, each would take twelve times as long as the one in it: six of them 40 hours."""
    agrees(imported_from(tmp_path, functions(6)))


def test_a_reshape_and_a_padding_of_two_axes_move_no_element(tmp_path):
    agrees(imported_from(tmp_path, reshape_pad()))


def test_an_activation_that_a_kernel_computes_twice_has_the_values_of_each_place(tmp_path):
    agrees(imported_from(tmp_path, function_split()))


OF_PADDING = {"silu": silu_of_padding, "sigmoid alone": sigmoid_of_padding_alone}


@pytest.mark.parametrize("name", OF_PADDING)
def test_a_function_of_a_padding_is_that_of_its_value(name, tmp_path):
    agrees(imported_from(tmp_path, OF_PADDING[name]()))


@pytest.mark.parametrize("profile", ["x86-v3", "rk3399", "rasp3b"])
@pytest.mark.parametrize("name", OF_PADDING)
def test_a_function_of_a_padding_is_compiled(name, profile, tmp_path):
    """Its steps are constants there, which TVM's passes do not all fold at the same time."""
    imported = imported_from(tmp_path, OF_PADDING[name]())
    target = resolve_target(load_fleet(None).profile(profile))
    compile_executable(lower_module(imported.module, imported.weights, target, {}).module, target)
