"""A recipe is read outside of the sandbox, and anyone may have written it."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from farm.errors import ModelError
from farm.quantize import recipe

PLAIN = {
    "schema": "farm/float16/1",
    "source": "net.onnx",
    "shapes": {},
    "dtypes": {},
    "module": None,
    "weights": "",
    "quantize": {"dtype": "float16"},
    "data": "",
    "tensors": [],
}


def archive(content: bytes, kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as made:
        made.writestr("x.npy", content)
    return file.getvalue()


def array(shape: str, content: bytes = b"", descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + content


def damaged() -> bytes:
    content = bytearray(archive(np.random.default_rng(0).bytes(4000)))
    content[200:260] = bytes(60)
    return bytes(content)


def lying() -> bytes:
    """An entry of gigabytes whose header and directory tell of few bytes."""
    content = archive(bytes(1 << 20))
    return content.replace((1 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little"))


@pytest.mark.parametrize(
    "example",
    [
        archive(array(f"({1 << 44},)")),
        archive(array("(2,)", bytes(4))),
        archive(array("(1,)", bytes(8), "|O")),
        archive(b"no array"),
        damaged(),
        lying(),
        b"PK\5\6" + bytes(18),
        b"",
    ],
    ids=["terabytes", "short", "objects", "no array", "damaged", "lying", "empty", "nothing"],
)
def test_an_example_that_is_none_is_refused(example: bytes, tmp_path: Path) -> None:
    content = {**PLAIN, "example": base64.b64encode(example).decode()}
    (tmp_path / "net.float16").write_text(json.dumps(content))
    if example.startswith(b"PK\5\6"):
        assert recipe.read_recipe(tmp_path / "net.float16").example == {}
        return
    with pytest.raises(ModelError, match="is no quantized model") as raised:
        recipe.read_recipe(tmp_path / "net.float16")
    assert all(raised.value.parts())


def test_an_example_that_unpacks_to_gigabytes_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "_MOST_EXAMPLE_BYTES", 1 << 20)
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("it is unpacked"))
    packed = base64.b64encode(archive(array("(1048576,)", bytes(4 << 20)))).decode()
    (tmp_path / "net.float16").write_text(json.dumps({**PLAIN, "example": packed}))
    with pytest.raises(ModelError, match="is no quantized model") as raised:
        recipe.read_recipe(tmp_path / "net.float16")
    assert "unpacks to 4,194," in raised.value.why


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"schema": ' + "9" * 5000 + "}", "[]", "null", "\x00", ""]
)
def test_what_is_no_recipe_is_one_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "net.float16").write_text(text)
    with pytest.raises(ModelError, match="is no quantized model"):
        recipe.read_recipe(tmp_path / "net.float16")
