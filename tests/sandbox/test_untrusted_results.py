"""What a sandboxed process leaves or answers is read as data of an enemy: values of other types and
files of other forms are refused.
"""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from farm import checked_model_import
from farm.compiler.build import GenerationResult
from farm.errors import ModelError
from farm.sandbox import restricted_pickle
from farm.sandbox.array_files import read_arrays
from farm.sandbox.field_types import is_of_type
from farm.types import Agreement, Progress, Stage, TensorSpec

SPEC = TensorSpec("x", (1, 8), "float32")


class _Made:
    """A dataclass or an error that is pickled with any arguments."""

    def __init__(self, cls: type, *arguments: Any) -> None:
        self._made = (cls, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made


BYTES, NUMBERS = bytes(1 << 20), list(range(1 << 16))
GENERATED = ("core", ("key",), (), ("lib0.o",), {"kind": "llvm"}, {"code": 1.0})


@pytest.mark.parametrize(
    "made",
    [
        _Made(TensorSpec, "x", [1, 8], "float32"),
        _Made(TensorSpec, "x", (1, "8"), "float32"),
        _Made(TensorSpec, 5, (1, 8), "float32"),
        _Made(TensorSpec, "x", (1, True), "float32"),
        _Made(Progress, Stage.COMPILING, {"not": "text"}),
        _Made(Progress, "compiling", "text"),
        _Made(
            GenerationResult,
            "core",
            ("key",),
            (_Made(TensorSpec, "x", (1, 8), "float32"),),
            (),
            {},
            {},
        ),
        _Made(GenerationResult, "core", ("key",), (), "lib0.o", {}, {}),
        _Made(GenerationResult, 7, *GENERATED[1:]),
        _Made(GenerationResult, *GENERATED[:5], {"code": "long"}),
        _Made(ModelError, {"what": 1}),
        _Made(ModelError, "what", None),
    ],
)
def test_a_value_with_a_field_of_another_type_does_not_pass_out(made: _Made) -> None:
    with pytest.raises(TypeError):
        restricted_pickle.loads(restricted_pickle.dumps(made), (GenerationResult,))


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"Nr\xff\xff\xff\x7f", "LONG_BINPUT"),  # the second entry of a table of 64 GiB
        (b"](" + b"]" * 1000 + b"e", "too many values"),
    ],
    ids=["place", "values"],
)
def test_a_few_bytes_cannot_ask_for_much_memory(
    content: bytes, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restricted_pickle, "_MOST_OPERATIONS", 1000)
    with pytest.raises(pickle.UnpicklingError, match=refusal):
        restricted_pickle.loads(b"\x80\x04" + content + b".")


@pytest.mark.parametrize(
    "copied",
    [
        lambda: [
            _Made(restricted_pickle.rebuild_array, "|u1", (1 << 20,), BYTES) for _ in range(40)
        ],
        lambda: [_Made(set, NUMBERS) for _ in range(40)],
        lambda: [_Made(Counter, NUMBERS) for _ in range(40)],
    ],
    ids=["array", "set", "Counter"],
)
def test_values_that_share_their_content_are_no_larger_than_what_was_sent(
    copied: Callable[[], list[_Made]],
) -> None:
    with pytest.raises(pickle.UnpicklingError, match="larger than what was sent"):
        restricted_pickle.loads(pickle.dumps(copied(), protocol=4))


@pytest.mark.parametrize("cls", [Stage, restricted_pickle.rebuild_array])
def test_a_value_of_which_the_text_is_endless_is_not_put_into_words(cls: Any) -> None:
    nested: list[Any] = []
    for _ in range(60):
        nested = [nested, nested]
    arguments = (nested,) if cls is Stage else (nested, (1,), b"1")
    with pytest.raises((TypeError, pickle.UnpicklingError)):
        restricted_pickle.loads(pickle.dumps(_Made(cls, *arguments), protocol=4))


def test_all_values_that_tasks_return_pass_out() -> None:
    values = [
        *(True, None, 1.5, -5, 70_000, 1 << 40, 10**800, complex(1, 2), "x" * 70_000, "y" * 300),
        *(b"x" * 300, b"x" * 70_000, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [1], [1, 2]),
        *({1: 2}, {1: 2, 3: 4}, {1, 2}, frozenset({1, 2}), Counter("aab"), OrderedDict(a=1, b=2)),
        *(Path("/x/y"), SPEC, Progress(Stage.COMPILING, "half", 0.5), [str(i) for i in range(300)]),
        [Path("/long" * 100, str(i)) for i in range(300)],
    ]
    assert restricted_pickle.loads(restricted_pickle.dumps(values + values)) == values + values
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    both = restricted_pickle.loads(restricted_pickle.dumps([array, array]))
    assert all((one == array).all() for one in both)


def test_a_dataclass_passes_only_through_its_constructor() -> None:
    made = GenerationResult(*GENERATED)
    assert restricted_pickle.loads(restricted_pickle.dumps(made), (GenerationResult,)) == made
    name = b"\x8c\x17farm.types.fleet_config\x8c\nTensorSpec\x93"
    empty = pickle.PROTO + b"\x04" + name + b")\x81."  # NEWOBJ
    with pytest.raises((TypeError, pickle.UnpicklingError)):
        restricted_pickle.loads(empty)


@pytest.mark.parametrize(
    ("value", "hint", "right"),
    [
        (True, int, False),
        (1, float, True),
        (1, bool, False),
        (None, int | None, True),
        ("a", int | None, False),
        ((1, "a"), tuple[int, str], True),
        ((1,), tuple[int, str], False),
        ([1], tuple[int, ...], False),
        ({"a": 1}, dict[str, int], True),
        ({1: 1}, dict[str, int], False),
        ({"a": {"b": "c"}}, dict[str, dict[str, int]], False),
        (Path("x"), Path, True),
        ("x", Path, False),
        ("x", list[str], False),
        (["x", "y"], list[str], True),
        (["x", "y"], Sequence[str], True),
        (("x",), Sequence[str], True),
        ("xy", Sequence[str], False),
        (b"xy", Sequence[int], False),
        (frozenset("x"), Set[str], True),
        (frozenset([1]), Set[str], False),
        (1, Literal[1], True),
        (["x", 1], list[str], False),
        ({1, "x"}, set[int], False),
        ((1, 2, "x"), tuple[int, ...], False),
        ("once", Literal["once", "twice"], True),
        ("thrice", Literal["once", "twice"], False),
        (True, Literal[1], False),
        (Stage.COMPILING, Stage, True),
        ("x", "unknown", False),
    ],
)
def test_a_value_fits_what_an_annotation_says(value: Any, hint: Any, right: bool) -> None:
    assert is_of_type(value, hint) == right


def stored(folder: Path) -> dict[str, Any]:
    """The content of a prepared model's file."""
    spec = asdict(SPEC)
    check = asdict(Agreement(0.0, 90.0, None, True))
    return {
        "inputs": [spec],
        "outputs": [spec],
        "engine": "ONNX Runtime",
        "check": check,
        "fixed": "",
        "precision": "float32",
        "reference_correct": None,
        "reference_total": None,
        "seconds": {"import": 1.0},
    }


def spec(**changed: Any) -> dict[str, Any]:
    return {"inputs": [{**asdict(SPEC), **changed}]}


HOSTILE: list[dict[str, Any]] = [
    {"engine": 5},
    {"engine": {"a": "b"}},
    {"check": []},
    {"check": {"max_abs": "much"}},
    {"check": {**asdict(Agreement(0.0, 90.0, None, True)), "right": "yes"}},
    {"precision": "float128"},
    {"precision": ["float32"]},
    {"seconds": {"import": "long"}},
    {"seconds": None},
    {"reference_correct": "all"},
    {"inputs": {"x": 1}},
    {"inputs": [5]},
    {"unknown": 1},
    spec(dtype="O"),
    spec(dtype="float32,O"),
    spec(dtype="float32\n"),
    spec(shape=[-1, 8]),
    spec(shape=["1", 8]),
    spec(shape=[1.5, 8]),
    spec(shape=[1] * 100),
    spec(name=None),
    spec(open="yes"),
    spec(unknown=1),
]


@pytest.mark.parametrize("changed", HOSTILE, ids=lambda changed: json.dumps(changed)[:40])
def test_a_prepared_model_of_another_form_is_one_error(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / checked_model_import.PREPARED).write_text(json.dumps(stored(tmp_path)))
    assert checked_model_import.load_prepared_model("net", tmp_path, cached=True).inputs == (SPEC,)
    (tmp_path / checked_model_import.PREPARED).write_text(
        json.dumps({**stored(tmp_path), **changed})
    )
    with pytest.raises(ModelError, match=r"prepared\.json is damaged"):
        checked_model_import.load_prepared_model("net", tmp_path, cached=True)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"\xff\xfe", b"[" * 200_000, b"5", b" " * (17 << 20)],
    ids=lambda content: str(content[:4]),
)
def test_a_prepared_model_that_is_no_such_json_is_one_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / checked_model_import.PREPARED).write_bytes(content)
    with pytest.raises(ModelError, match=r"prepared\.json is damaged"):
        checked_model_import.load_prepared_model("net", tmp_path, cached=True)


def header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def archive(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as opened:
        opened.writestr("a.npy", content)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    np.savez(path.with_name("elsewhere.npz"), a=np.ones(3))
    path.symlink_to("elsewhere.npz")


def objects(path: Path) -> None:
    np.savez(path, a=np.array([{"a": 1}], dtype=object))


ARCHIVES: dict[str, Callable[[Path], None]] = {
    "a link": link,
    "a pipe": pipe,
    "objects": objects,
    "a folder": Path.mkdir,
    "missing": lambda path: None,
    "empty": lambda path: path.write_bytes(b"") and None,
    "compressed": lambda path: np.savez_compressed(path, a=np.zeros(1 << 20)),
    "a terabyte": lambda path: archive(path, header("(1099511627776,)")),
    "more than memory": lambda path: archive(
        path, header("(9223372036854775807, 9223372036854775807)")
    ),
    "negative": lambda path: archive(path, header("(-1, -4)") + bytes(16)),
    "too short": lambda path: archive(path, header("(4,)") + bytes(12)),
    "too long": lambda path: archive(path, header("(4,)") + bytes(20)),
    "a pickle": lambda path: archive(path, pickle.dumps(_Made(os.system, "touch hostile"))),
    "addresses": lambda path: archive(path, header("(1,)", "|O") + bytes(8)),
    "code in its header": lambda path: archive(
        path, header("(__import__('os').mkdir('hostile'),)")
    ),
    "deep": lambda path: archive(path, header("(" * 3000 + ")" * 3000)),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_arrays_are_read_only_from_a_file_that_holds_all_of_them(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "arrays.npz"
    ARCHIVES[kind](path)
    with pytest.raises(ModelError, match=r"arrays\.npz is damaged"):
        read_arrays(path)
    assert not Path("hostile").exists()


def test_entries_that_share_their_bytes_are_no_larger_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("a.npy", header("(65536,)") + bytes(4 * 65536))
        opened.filelist += [opened.filelist[0]] * 1000
        opened._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="damaged"):
        read_arrays(path)


def test_arrays_of_numbers_are_read_as_they_were_written(tmp_path: Path) -> None:
    given = {
        "float": np.arange(6, dtype="float32").reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "scalar": np.array(5),
        "empty": np.zeros((0, 3), "int8"),
        "bool": np.array([True, False]),
        "input:x y/z": np.ones(1, "uint8"),
    }
    np.savez(tmp_path / "arrays.npz", **given)  # type: ignore[arg-type]
    found = read_arrays(tmp_path / "arrays.npz")
    assert list(found) == list(given)
    for name, value in given.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)
