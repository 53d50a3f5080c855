"""A change of farm's own sources changes the digests under which results are kept, wherever in a
room it is made.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import farm
from farm import quantize
from farm.agent import recipe
from farm.compiler import build_digests
from farm.importers import fingerprints
from farm.store import source_digests
from farm.types import Model, QuantizeSettings

ROOT = Path(farm.__file__).parent


def folders_of(room: Path) -> list[Path]:
    inside = [path for path in room.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    return [room, *(folder for folder in inside if any(folder.rglob("*.py")))]


@pytest.fixture
def sources_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of the package's Python files, of which the digests are taken in this test."""
    for path in ROOT.rglob("*.py"):
        copy = tmp_path / "farm" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    monkeypatch.setattr(source_digests, "_PACKAGE", tmp_path / "farm")
    return tmp_path / "farm"


def compiled() -> str:
    build_digests.compiler_sources_digest.cache_clear()
    return build_digests.compiler_sources_digest()


def imported() -> str:
    fingerprints._importers_digest.cache_clear()
    return fingerprints._importers_digest()


@pytest.fixture(autouse=True)
def no_digest_is_left(monkeypatch: pytest.MonkeyPatch):
    yield
    monkeypatch.undo()
    compiled(), imported()


def changes_with_each_folder(digest: Callable[[], str], room: Path) -> None:
    seen = {digest()}
    for number, folder in enumerate(folders := folders_of(room)):
        (folder / "added.py").write_text(f"ADDED = {number}\n")
        seen.add(digest())
    assert len(seen) == len(folders) + 1


def test_a_module_added_anywhere_in_the_compiler_changes_what_is_built(sources_in: Path) -> None:
    changes_with_each_folder(compiled, sources_in / "compiler")


def test_a_module_added_anywhere_in_the_importers_changes_what_is_imported(
    sources_in: Path,
) -> None:
    changes_with_each_folder(imported, sources_in / "importers")


def test_a_module_added_anywhere_in_quantize_changes_what_is_quantized(
    sources_in: Path, tmp_path: Path
) -> None:
    (tmp_path / "m.tflite").write_bytes(b"model")
    model = Model("m", str(tmp_path / "m.tflite"), quantize=QuantizeSettings(dtype="float16"))

    def quantized() -> str:
        digest = quantize.quantized_import_fingerprint(model, tmp_path)
        assert digest is not None
        return digest

    changes_with_each_folder(quantized, sources_in / "quantize")


@pytest.mark.parametrize("digest", [compiled, imported])
def test_how_layers_are_named_belongs_to_both_digests(
    digest: Callable[[], str], sources_in: Path
) -> None:
    before = digest()
    with (sources_in / "types" / "layer_variable_names.py").open("a") as file:
        file.write("# another way to name them\n")
    assert digest() != before


@pytest.mark.parametrize(("arch", "left_out"), [("armv7", "cuda"), ("x86_64-cuda", "cpu")])
def test_a_source_added_anywhere_in_the_agent_makes_another_agent(
    arch: str, left_out: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(
        recipe.HERE, tmp_path / "agent", ignore=shutil.ignore_patterns("prebuilt", "__pycache__")
    )
    monkeypatch.setattr(recipe, "HERE", tmp_path / "agent")
    before = recipe.executable_build_inputs_digest(arch)
    for folder in [path for path in (tmp_path / "agent").rglob("*") if path.is_dir()]:
        (folder / "added.h").write_text("// added\n")
        in_other_kind = left_out in folder.parts and "tvm_stand_ins" not in folder.parts
        assert (recipe.executable_build_inputs_digest(arch) == before) == in_other_kind, folder
        (folder / "added.h").unlink()
