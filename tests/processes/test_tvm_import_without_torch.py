"""What a worker imports: TVM without torch, and torch where a model is made with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def _python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_tvm_comes_without_torch_and_torch_later_all_the_same() -> None:
    assert _python("""
import sys
from farm.tvm_import_without_torch import hide_torch_from_now_on
hide_torch_from_now_on()
import tvm.relax, tvm.relax.frontend.onnx
print("torch" in sys.modules)
import torch
print(tvm.runtime.from_dlpack(torch.ones(3)).numpy().sum(), torch.from_dlpack(tvm.runtime.tensor(torch.ones(2).numpy())).sum().item())
""").splitlines() == ["False", "3.0 2.0"]  # noqa: E501


def test_where_torch_is_there_first_nothing_is_kept_from_tvm() -> None:
    assert (
        _python("""
import sys
import torch
from farm.tvm_import_without_torch import hide_torch_from_now_on
hide_torch_from_now_on()
import tvm_ffi._convert
print(tvm_ffi._convert.torch is torch)
""")
        == "True"
    )


def test_a_missing_tvm_is_told_as_ever_and_torch_is_not_lost_with_it() -> None:
    assert _python("""
import sys
from farm.tvm_import_without_torch import hide_torch_from_now_on
hide_torch_from_now_on()
sys.path_importer_cache.clear()
places, sys.path[:] = list(sys.path), []
try:
    import tvm
except ModuleNotFoundError as error:
    print(error)
print("torch" in sys.modules)
""").splitlines() == ["No module named 'tvm'", "False"]


def test_tvm_is_the_same_as_when_it_is_imported_at_length() -> None:
    """The functions and types of all its modules, though what is not there is answered briefly and
    names are read once.
    """
    shown = """
import tvm, sys
from tvm_ffi import core, registry
for name, module in sorted(sys.modules.items()):
    if name.startswith("tvm.") and name.endswith("_ffi_api"):
        print(name, sorted(vars(module)))
print(sorted(key for key in map(str, registry.get_registered_type_keys()) if core._object_type_key_to_index(key) is None))
print(core._object_type_key_to_index("there.is.none"), registry.list_global_func_names.__module__)
"""  # noqa: E501
    for alone in ("", "import os; os.environ['TVM_USE_RUNTIME_LIB'] = '1'"):
        briefly = _python(
            f"{alone}\nfrom farm.tvm_import_without_torch import hide_torch_from_now_on\n"
            f"hide_torch_from_now_on()\n{shown}"
        )
        assert briefly == _python(f"{alone}\nimport sys; sys.modules['torch'] = None\n{shown}")
        assert briefly.count("_ffi_api") >= 10 and briefly.endswith("None tvm_ffi.registry")


def test_a_type_that_the_runtime_has_not_is_answered_without_c() -> None:
    """Which would read the symbols of all libraries."""
    assert _python("""
import os
os.environ["TVM_USE_RUNTIME_LIB"] = "1"
from farm.tvm_import_without_torch import hide_torch_from_now_on
hide_torch_from_now_on()
from tvm_ffi import core
index, asked = core._object_type_key_to_index, []
core._object_type_key_to_index = lambda key: asked.append(key) or index(key)
import tvm
print(len(asked), [key for key in asked if index(key) is None])
""").endswith(" []")


def test_what_a_worker_and_a_command_do_not_need_is_not_loaded() -> None:
    assert _python("import sys, farm.cli, farm.pipeline; print('numpy' in sys.modules)") == "False"
    assert (
        _python(
            "import sys, farm.pipeline.worker_tasks, farm.executor; print({'pydantic', 'rich', "
            "'sqlalchemy', 'farm.pipeline.run_jobs', 'farm.types.tuning'} & {*sys.modules})"
        )
        == "set()"
    )


def test_a_file_that_tvm_would_take_for_the_kernels_library_is_refused(tmp_path: Path) -> None:
    """TVM's libbacktrace opens it by its name alone: one of another user, or a FIFO for ever."""
    os.mkfifo(tmp_path / "linux-vdso.so.1")
    code = "from farm import tvm_import_without_torch as t\nt.hide_torch_from_now_on()\nimport tvm"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode and "there is a file linux-vdso.so.1" in done.stderr


def test_tvms_parts_for_gpus_come_with_a_target_that_needs_them() -> None:
    assert (
        _python("""
from farm.tvm_import_without_torch import hide_torch_from_now_on
hide_torch_from_now_on()
from farm.compiler.lower import resolve_target
from farm.types import Profile
from tvm.backend.loader import is_loaded
resolve_target(Profile("host", {"kind": "llvm", "mcpu": "native"}, ""))
before = is_loaded("cuda")
resolve_target(Profile("gpu", {"kind": "cuda", "arch": "sm_80"}, ""))
print(before, is_loaded("cuda"))
""")
        == "False True"
    )
