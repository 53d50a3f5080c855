"""Parameters written as files come back exactly, through TVM's own loader."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tvm

from farm.compiler.parameter_files import (
    INDEX,
    PREFIX,
    SHARD,
    array_bytes,
    read_stored_parameters,
    write_parameters,
)
from farm.errors import BuildError

CPU = 1  # DLPack's kDLCPU


@pytest.fixture
def load():
    """What TVM's loader makes of a folder."""
    clear = tvm.get_global_func("vm.builtin.tensor_cache.clear")

    def run(folder):
        tvm.get_global_func("vm.builtin.tensor_cache.load")(str(folder), CPU, 0)
        return [
            value.numpy()
            for value in tvm.get_global_func("vm.builtin.param_array_from_cache")(PREFIX, -1)
        ]

    clear()
    yield run
    clear()


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]
)
def test_every_type_comes_back_exactly(dtype, tmp_path, load):
    values = [
        np.arange(24).reshape(2, 3, 4).astype(dtype),
        np.zeros((1, 17), dtype),
        np.array(1, dtype),
    ]
    write_parameters(tmp_path / "parameters", values)
    read = list(read_stored_parameters(tmp_path / "parameters").values())
    for found in (load(tmp_path / "parameters"), read):
        for ours, theirs in zip(found, values, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_array_equal(ours, theirs)


def test_every_bit_comes_back(tmp_path, load):
    bits = (
        np.random.default_rng(0).integers(0, 256, 4096, np.uint8).view("float32")
    )  # NaNs with payloads among them
    write_parameters(tmp_path / "parameters", [bits])
    assert load(tmp_path / "parameters")[0].tobytes() == bits.tobytes()


def test_the_order_holds_beyond_ten(tmp_path, load):
    write_parameters(tmp_path / "parameters", [np.full(3, index, "int32") for index in range(25)])
    assert [value[0] for value in load(tmp_path / "parameters")] == list(range(25))


def test_arrays_that_begin_alike_and_differ_later_are_both_there(tmp_path, load):
    first, second = np.zeros((2, 100), "float32")
    second[99] = 1
    write_parameters(tmp_path / "parameters", [first, second, first.copy()])
    assert [value[99] for value in load(tmp_path / "parameters")] == [0, 1, 0]


def test_arrays_that_are_no_block_of_memory_are_written_in_order(tmp_path, load):
    value = np.arange(12, dtype="float32").reshape(3, 4).T[:, ::-1]
    write_parameters(tmp_path / "parameters", [value])
    np.testing.assert_array_equal(load(tmp_path / "parameters")[0], value)


def test_no_parameters_are_an_index_of_none_and_an_empty_file(tmp_path, load):
    write_parameters(tmp_path / "parameters", [])
    assert json.loads((tmp_path / "parameters" / INDEX).read_text())["records"] == []
    assert (tmp_path / "parameters" / SHARD).stat().st_size == 0
    assert load(tmp_path / "parameters") == []


def test_the_bytes_of_an_array_are_in_c_order_whatever_its_type():
    half = np.array([[1, 2], [3, 4]], ml_dtypes.bfloat16)
    for value in (
        half,
        np.arange(6, dtype="float32").reshape(2, 3).T,
        np.zeros((0, 3), "int8"),
        np.array(2.5),
    ):
        assert array_bytes(value).tobytes() == value.tobytes()


@pytest.mark.parametrize("dtype", ["O", "O,O", "M8[s]", "U2"])
def test_parameters_of_a_type_other_than_numbers_are_not_read(dtype: str, tmp_path: Path) -> None:
    """Of objects, numpy takes the bytes in the file as addresses."""
    write_parameters(tmp_path / "parameters", [np.full(16, 0x41, "uint8")])
    index = tmp_path / "parameters" / INDEX
    content = json.loads(index.read_text())
    content["records"][0]["records"][0].update(dtype=dtype, shape=[1])
    index.write_text(json.dumps(content))
    with pytest.raises(BuildError, match="are damaged"):
        read_stored_parameters(tmp_path / "parameters")
