"""`python:` sources: the user's function is called, and what it depends on is known afterwards."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import farm
from farm import importers
from farm.errors import ModelError
from farm.importers.torch.python_source_dependencies import FileRecorder
from farm.types import Model, TensorSpec

GOOD = """
from pathlib import Path
import torch
from {name}_helper import SCALE

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = torch.nn.Dropout(0.9)
        self.factor = torch.nn.Parameter(torch.tensor([float(word) for word in Path("{folder}/factor.txt").read_text().split()]))
    def forward(self, x, y):
        return self.dropout(x) * self.factor * SCALE, x.sum(1) + y

def net():
    return Net(), (torch.ones(2, 3), torch.ones(2))

def by_name():
    return Net(), {{"y": torch.ones(2), "x": torch.ones(2, 3)}}

def nothing():
    pass

def not_a_module():
    return 3, (torch.ones(1),)

def one_tensor():
    return Net(), torch.ones(1)

def raises():
    raise RuntimeError("no weights today")

def exits():
    raise SystemExit(1)

class Branching(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x

def branching():
    return Branching(), (torch.ones(2),)
"""  # noqa: E501


@pytest.fixture
def project(tmp_path, monkeypatch, request):
    """A folder with a module `NAME`, a module it imports, and a data file; NAME is another one for
    every test.
    """
    folder = tmp_path / "project"
    folder.mkdir()
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    (folder / f"{name}.py").write_text(GOOD.format(name=name, folder=folder))
    (folder / f"{name}_helper.py").write_text("SCALE = 2.0\n")
    (folder / "factor.txt").write_text("1.5 2.5 3.5")
    monkeypatch.chdir(folder)
    return name


def failure(load, source):
    with pytest.raises(ModelError) as caught:
        load(source)
    assert caught.value.what and "\n" not in caught.value.what
    return caught.value


def test_a_function_gives_module_and_example(project, load, agree):
    before = list(sys.path)
    imported = load(f"python:{project}:net")
    assert imported.inputs == (TensorSpec("x", (2, 3), "float32"), TensorSpec("y", (2,), "float32"))
    assert sys.path == before
    assert not Path("__pycache__").exists()
    agree(imported)


def test_a_dict_of_inputs_is_fed_by_name(project, load, agree):
    imported = load(f"python:{project}:by_name")
    assert {spec.name: spec.shape for spec in imported.inputs} == {"x": (2, 3), "y": (2,)}
    agree(imported)


def test_an_override_replaces_the_shape_of_the_example(project, load, agree):
    imported = load(f"python:{project}:net", x=(5, 3), y=(5,))
    assert [spec.shape for spec in imported.outputs] == [(5, 3), (5,)]
    agree(imported)


@pytest.mark.parametrize(
    "source",
    [
        "python:",
        "python:module",
        "python:a.b",
        "python:a:b:c",
        "python:a/b.py:f",
        "python:a b:c",
        "python::f",
    ],
)
def test_a_source_of_the_wrong_form_is_refused(source, load):
    assert "python:package.module:function" in failure(load, source).fix


def test_a_module_that_is_not_there(load):
    assert "no module named 'nowhere'" in failure(load, "python:nowhere.at_all:f").what


def test_a_module_that_needs_a_missing_one(project, load):
    Path(f"{project}_needy.py").write_text("import not_installed_at_all\n")
    error = failure(load, f"python:{project}_needy:net")
    assert "not_installed_at_all" in error.what and f"{project}_needy.py, line 1" in error.why


def test_a_function_that_is_not_there_has_a_near_miss(project, load):
    assert "did you mean 'by_name'?" in failure(load, f"python:{project}:by_nam").why


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("raises", "RuntimeError: no weights today"),
        ("exits", "SystemExit: 1"),
        ("nothing", "returned nothing"),
        ("not_a_module", "returned a tuple of int, tuple"),
        ("one_tensor", "the example inputs are a Tensor"),
        ("branching", "torch.export cannot export"),
    ],
)
def test_a_function_that_does_not_deliver(function, words, project, load):
    error = failure(load, f"python:{project}:{function}")
    assert words in str(error)
    assert error.fix


def test_an_error_in_the_users_code_names_its_line(project, load):
    assert f"{project}.py, line" in failure(load, f"python:{project}:raises").why


def test_a_syntax_error_names_its_place(project, load):
    Path(f"{project}_broken.py").write_text("def net(:\n")
    assert f"{project}_broken.py, line 1" in failure(load, f"python:{project}_broken:net").why


def key_of(project, cache):
    return importers.import_fingerprint(Model("m", f"python:{project}:net"), cache)


def test_a_source_has_no_fingerprint_before_it_is_loaded_and_the_same_one_after(
    project, cache, load
):
    assert key_of(project, cache) is None
    imported = load(f"python:{project}:net")
    assert {file.name for file in imported.files} >= {
        f"{project}.py",
        f"{project}_helper.py",
        "factor.txt",
    }
    first = key_of(project, cache)
    load(f"python:{project}:net")
    assert first is not None and first == key_of(project, cache)


@pytest.mark.parametrize("changed", ["{}.py", "{}_helper.py", "factor.txt"])
def test_an_edit_of_any_file_it_read_is_seen(changed, project, cache, load):
    load(f"python:{project}:net")
    first = key_of(project, cache)
    path = Path(changed.format(project))
    path.write_text(path.read_text() + "\n")
    assert key_of(project, cache) is None
    load(f"python:{project}:net")
    assert key_of(project, cache) not in (None, first)


def test_edited_code_is_run_anew_in_the_same_process(project, load):
    first = load(f"python:{project}:net")
    Path(f"{project}_helper.py").write_text("SCALE = 20.0\n")
    second = load(f"python:{project}:net")
    assert 10 * first.reference(first.example)[0] == pytest.approx(
        second.reference(second.example)[0]
    )


def test_modules_loaded_before_count_for_a_later_source_too(project, load):
    load(f"python:{project}:net")
    imported = load(f"python:{project}:by_name")
    assert {file.name for file in imported.files} >= {
        f"{project}.py",
        f"{project}_helper.py",
        "factor.txt",
    }


def test_a_file_that_it_did_not_read_does_not_matter(project, cache, load):
    load(f"python:{project}:net")
    first = key_of(project, cache)
    Path("unrelated.py").write_text("1")
    assert first == key_of(project, cache)


def test_a_file_that_is_gone_asks_for_a_new_load(project, cache, load):
    load(f"python:{project}:net")
    Path("factor.txt").unlink()
    assert key_of(project, cache) is None


def test_a_process_hooks_into_python_once(tmp_path, monkeypatch):
    """A hook cannot be removed: with one a source, each would make all that follows slower."""
    with FileRecorder():
        pass
    added = []
    monkeypatch.setattr(sys, "addaudithook", added.append)
    file = tmp_path / "factor.txt"
    file.write_text("1")
    with FileRecorder() as recorder:
        file.read_text()
    assert file in recorder.files and added == []


def test_a_damaged_record_asks_for_a_new_load(project, cache, load):
    load(f"python:{project}:net")
    (record,) = (cache / "python-sources").iterdir()
    record.write_text(record.read_text()[:-5])
    assert key_of(project, cache) is None


def test_a_record_of_other_importers_asks_for_a_new_load(project, cache, load):
    load(f"python:{project}:net")
    (record,) = (cache / "python-sources").iterdir()
    written = json.loads(record.read_text())
    record.write_text(json.dumps({**written, "importers": "0" * 64, "files": {}}))
    assert key_of(project, cache) is None
    record.write_text(
        json.dumps({name: value for name, value in written.items() if name != "importers"})
    )
    assert key_of(project, cache) is None


def test_a_record_does_not_count_in_another_folder(project, cache, load, tmp_path, monkeypatch):
    load(f"python:{project}:net")
    monkeypatch.chdir(tmp_path)
    assert key_of(project, cache) is None


def test_the_zoo_is_a_source_like_any_other(tmp_path, monkeypatch, load):
    monkeypatch.chdir(tmp_path)
    imported = load("python:farm.zoo:resnet18")
    assert {file.name for file in imported.files} >= {"__init__.py", "resnet.py", "weights.py"}
    package = Path(farm.__file__).parent
    assert {file.parent for file in imported.files if file.is_relative_to(package)} == {
        package / "zoo"
    }


def test_no_module_comes_from_a_working_directory_that_others_may_write_to(tmp_path, monkeypatch):
    """In /tmp, any user could wait with a module that torch looks for while it exports."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "planted.py").write_text("from pathlib import Path\nPath('PWNED').touch()\n")
    shared.chmod(0o1777)
    monkeypatch.chdir(shared)
    with pytest.raises(ModelError, match="no module named 'planted'") as caught:
        importers.import_model(Model("planted", "python:planted:net"), tmp_path / "cache")
    assert not (shared / "PWNED").exists()
    assert f"every user may write to {shared}" in caught.value.why
