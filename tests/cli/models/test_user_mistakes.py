"""What a user gets wrong: one clear error each, the documented exit code, and nothing left
behind.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from farm_processes import Farm
from onnx import TensorProto, helper, numpy_helper

import farm as package

DIGITS = Path(package.__file__).parent / "zoo" / "digits" / "digits.onnx"


def write_model(path: Path, *operators: tuple[str, str]) -> None:
    """A chain of operators, each (name, domain), from x to y: float32[1, 4]."""
    names = ["x", *(f"t{number}" for number in range(1, len(operators))), "y"]
    nodes = [
        helper.make_node(name, [before], [after], domain=domain)
        for (name, domain), before, after in zip(operators, names, names[1:], strict=False)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def test_a_model_file_that_does_not_exist(farm: Farm) -> None:
    (farm.folder / "resnet.onnx").touch()
    done = farm.run("deploy", "--device", "host", "resnt.onnx")
    assert done.code == 3
    assert "resnt.onnx" in done.error["error"]
    assert "resnet.onnx" in done.error["why"], "what it could have been"
    farm.assert_nothing_is_left()


@pytest.mark.parametrize("nbytes", [0, 3000])
def test_a_truncated_onnx_file(farm: Farm, nbytes: int) -> None:
    (farm.folder / "part.onnx").write_bytes(DIGITS.read_bytes()[:nbytes])
    done = farm.run("deploy", "--device", "host", "part.onnx")
    assert done.code == 3
    assert "part.onnx" in done.error["error"]
    assert f"{nbytes} bytes" in done.error["why"]
    assert "again" in done.error["fix"]
    farm.assert_nothing_is_left()


def test_all_operators_that_cannot_be_imported_are_named_at_once(farm: Farm) -> None:
    write_model(
        farm.folder / "odd.onnx",
        ("Relu", ""),
        ("Frobnicate", "acme"),
        ("Twist", "acme"),
        ("Relu", ""),
    )
    done = farm.run("deploy", "--device", "host", "odd.onnx")
    assert done.code == 3
    said = " ".join(done.error.values())
    assert "acme::Frobnicate" in said and "acme::Twist" in said and "Relu" not in said
    farm.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"image": np.zeros((1, 1, 9, 9), "float32")}, ("[1, 1, 9, 9]", "[1, 1, 8, 8]")),
        (
            {"picture": np.zeros((1, 1, 8, 8), "float32"), "frame": np.zeros(1, "int64")},
            ("picture", "image"),
        ),
        ({"image": np.zeros((1, 1, 8, 8), "complex64")}, ("complex64", "float32")),
        ({}, ("image",)),
    ],
    ids=["shape", "name", "dtype", "nothing"],
)
def test_an_input_that_does_not_fit_the_model(
    farm: Farm, inputs: dict[str, np.ndarray], expected: tuple[str, ...]
) -> None:
    np.savez(farm.folder / "x.npz", **inputs)
    done = farm.run("run", "--device", "host", "digits", "--input", "x.npz", "--output", "y.npz")
    assert done.code == 3
    assert all(word in " ".join(done.error.values()) for word in expected), done.error
    assert not (farm.folder / "y.npz").exists()
    farm.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("deploy", "--device", "hots", "digits"), 2, ("hots", "did you mean 'host'")),
        (("deploy", "--device", "host", "digts"), 2, ("digts", "did you mean 'digits'")),
        (("compile", "digits", "--profile", "rasp3"), 2, ("rasp3", "did you mean 'rasp3b'")),
        (("run", "--device", "pi", "digits", "--input", "x.png"), 2, ("pi", "did you mean 'pi3'")),
        (("run", "--device", "host", "digits", "--input", "x.png"), 3, ("x.png",)),
        (("benhc",), 2, ("benhc", "did you mean 'bench'")),
        (("bench", "--al"), 2, ("--al", "--all")),
        (("bench", "--tag", "lab"), 2, ("lab",)),
        (("bench", "digits"), 2, ("--device", "--all")),
        (("bench", "--all", "--deadline", "soon"), 2, ("soon", "--deadline")),
        (("bench", "--all", "--count", "0"), 2, ("--count",)),
        (("bench", "--all", "--against", ","), 2, ("--against", "onnxruntime")),
        (("bench", "--all", "--min-snr", "nan"), 2, ("--min-snr", "finite")),
        (("deploy", "--all", "--min-top1", "nan"), 2, ("--min-top1", "finite")),
        (("tune", "--device", "host", "digits", "--minutes", "nan"), 2, ("--minutes", "finite")),
        (("compare", "--in-turns", "a", "b", "--seconds", "inf"), 2, ("--seconds", "finite")),
        (
            ("records", "export", "nowhere/records.jsonl"),
            2,
            ("nowhere/records.jsonl", "No such file"),
        ),
        (("tracker", "--host", "no-such-host.invalid"), 2, ("no-such-host.invalid",)),
        (("devices", "--config", "nowhere.toml"), 2, ("nowhere.toml",)),
        (("devices", "--config", "."), 2, ("folder", "devices.toml")),
        (("devices", "--config", "/dev/null/devices.toml"), 2, ("/dev/null/devices.toml",)),
        (("compile", "digits", "--output", "."), 2, ("exists",)),
        (("history", "--limit", "none"), 2, ("none",)),
    ],
    ids=lambda value: (
        " ".join(value) if isinstance(value, tuple) and isinstance(value[0], str) else ""
    ),
)
def test_a_wrong_argument(
    farm: Farm, arguments: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    done = farm.run(*arguments)
    assert done.code == code
    assert all(word in " ".join(done.error.values()) for word in words), done.error
    assert done.error["fix"]
    assert done.out == "" and "Errno" not in done.err
    farm.assert_nothing_is_left()


def test_every_mistake_of_a_configuration_is_shown_at_once_with_its_line(farm: Farm) -> None:
    farm.configure(
        '[devices.a]\nprofile = "rasp3"\nurl = "local:"\n'  # 1-3
        '[devices.b]\nprofile = "x86"\nurl = "lokal:"\ntagz = ["x"]\n'  # 4-7
        "[bench]\ncount = -1\n"  # 8-9
    )
    done = farm.run("devices")
    assert done.code == 2
    said = "\n".join(done.error.values())
    assert all(f"devices.toml:{line}" in said for line in (2, 6, 7, 9)), said
    assert "rasp3b" in said and "local" in said and "tags" in said


def test_a_configuration_that_is_no_toml(farm: Farm) -> None:
    farm.configure('[devices.a\nprofile = "x86"\n')
    done = farm.run("devices")
    assert done.code == 2
    assert "devices.toml:1" in "\n".join(done.error.values())


def test_a_configuration_that_is_no_text(farm: Farm) -> None:
    (farm.folder / "devices.toml").write_bytes(b"[devices.a]\nprofile = '\xff'\n")
    done = farm.run("devices")
    assert done.code == 2
    assert "line 2" in done.error["why"]


@pytest.mark.parametrize(
    ("token", "is_right"), [(9, True), (-10, True), (10, False), (2**40, False)]
)
def test_an_index_beyond_a_table_ends_nothing_and_is_said(
    farm: Farm, token: int, is_right: bool
) -> None:
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    node = helper.make_node("Gather", ["table", "tokens"], ["rows"])
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, [3])
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [3, 4])
    graph = helper.make_graph(
        [node], "rows", [tokens], [rows], [numpy_helper.from_array(table, "table")]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        farm.folder / "rows.onnx",
    )
    np.save(farm.folder / "x.npy", np.array([0, token, 1]))
    done = farm.run("run", "--device", "host", "rows.onnx", "--input", "x.npy", "--output", "y.npz")
    assert done.code == 0, done.err
    found = np.load(farm.folder / "y.npz")["rows"]
    np.testing.assert_array_equal(found[[0, 2]], table[:2])
    np.testing.assert_array_equal(found[1], table[token] if is_right else np.full(4, np.nan))
    assert ("4 of 12 values of rows are no numbers" in done.err) is not is_right
