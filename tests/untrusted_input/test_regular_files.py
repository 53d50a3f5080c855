"""A pipe, a device or an array of a terabyte in the place of a file is one error at once."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from farm import config, importers
from farm.data.array_samples import ArraySamples
from farm.errors import ConfigError, FarmError, ModelError
from farm.importers.format_risks import format_risk_of
from farm.inputs import read
from farm.quantize import recipe
from farm.store import file_digest
from farm.types import Model, PreprocessSettings, TensorSpec

SPECS = [TensorSpec("x", (1, 3, 4, 4), "float32")]
READERS: dict[str, Callable[[Path], object]] = {
    "net.onnx": lambda path: importers.import_fingerprint(Model("m", str(path)), path.parent),
    "net.pt2": lambda path: importers.check_source(Model("m", str(path))),
    "net.pt": lambda path: (
        format_risk_of(Model("m", str(path))) or importers.check_source(Model("m", str(path)))
    ),
    "net.tflite": lambda path: importers.import_fingerprint(Model("m", str(path)), path.parent),
    "net.int8": recipe.read_recipe,
    "devices.toml": config.load_fleet,
    "x.npy": lambda path: read.read_inputs(path, SPECS, PreprocessSettings()),
    "x.npz": lambda path: read.read_inputs(path, SPECS, PreprocessSettings()),
    "x.png": lambda path: read.read_inputs(path, SPECS, PreprocessSettings()),
    "labels.txt": read.read_class_names,
    "set.npz": lambda path: ArraySamples(path, SPECS, None),
}


@pytest.mark.parametrize(
    "name", sorted(READERS.keys() - {"x.npy", "x.npz", "x.png"})
)  # an input may come from a pipe
def test_a_named_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(FarmError) as raised:
        READERS[name](tmp_path / name)
    assert (
        isinstance(raised.value, (ModelError, ConfigError)) and "a named pipe" in raised.value.why
    )


def test_a_configuration_that_the_shell_passes_as_a_pipe_is_read() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"[devices.a]\nprofile = 'x86'\nurl = 'local:'\n")
        os.close(writer)
        assert config.load_fleet(Path(f"/dev/fd/{reader}")).devices.keys() == {"a"}
    finally:
        os.close(reader)


@pytest.mark.parametrize("name", READERS)
def test_a_device_is_refused_and_not_read_to_its_end(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(FarmError) as raised:
        READERS[name](tmp_path / name)
    assert "a device" in raised.value.why


def test_the_digest_of_a_pipe_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a named pipe"):
        file_digest(tmp_path / "pipe")


def declaring(shape: tuple[int, ...]) -> bytes:
    """The head of an array that is not there."""
    text = repr({"descr": "<f4", "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def test_an_array_of_a_terabyte_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(declaring((1 << 38,)))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", declaring((1 << 38,)))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(ModelError, match="cannot be read as numpy data"):
            read.read_inputs(tmp_path / name, SPECS, PreprocessSettings())


def test_an_archive_that_unpacks_to_more_than_the_memory_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((64, 1 << 18), "float32"))
    assert (tmp_path / "bomb.npz").stat().st_size < 1 << 20
    monkeypatch.setattr(
        os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 14}[name]
    )
    with pytest.raises(ModelError) as raised:
        read.read_inputs(tmp_path / "bomb.npz", SPECS, PreprocessSettings())
    assert "more than half of this machine's memory" in raised.value.why
