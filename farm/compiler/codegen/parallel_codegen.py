"""Generate the machine code of a model's kernels on all cores.

TVM lowers and compiles a module with one thread. The kernels of a model do not call each other, so
they are divided into parts, and each part becomes a library of its own. The parts depend on the
model only, not on the number of cores: what is built is the same on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import tvm

_MOST_PARTS = 8
_KERNELS = 6  # the least number in a part, as a part costs 25 ms besides its kernels
_LLVM = "llvm"

Item = TypeVar("Item")
Result = TypeVar("Result")


def compile_primfuncs_to_libraries(
    module: tvm.IRModule,
    target: tvm.target.Target,
    pipeline: str,
    *,
    load: bool,
    workspace: Path | None = None,
) -> list[Any]:
    """Return the libraries with the machine code of a module's PrimFuncs.

    `pipeline` is the name of TVM's pipeline of passes for loop nests. With `load`, the code is also
    loaded into this process, which LLVM would otherwise do one library after the other at the first
    calls. The object files for `export_shared_library` are written to the folder `workspace`, if
    there is one. Raises what TVM raises.
    """
    kernels = sorted(module.functions_items(), key=lambda item: str(item[0].name_hint))
    count = min(_MOST_PARTS, -(-len(kernels) // _KERNELS))

    def built(first: int) -> Any:
        part = kernels[first::count]
        library = tvm.tirx.build(
            tvm.IRModule(dict(part), attrs=module.attrs), target=target, pipeline=pipeline
        )
        if workspace:
            # TVM collects the first library of an executable first and the others from the last
            library.write_to_file(str(_object(workspace, -first % count)))
        if load:
            library.get_function(str(part[0][0].name_hint))
        return library

    return parallel_map(built, range(count))


def export_shared_library(
    executable: Any, file: Path, link: Callable[..., None], workspace: Path
) -> None:
    """Write an executable as a shared library, like `export_library`, using all cores.

    `link` is called with the path of the library and those of its objects, which lie in the folder
    `workspace`. Objects that are there are those of the executable's libraries.
    """
    module = executable.mod
    parts = module._collect_dso_modules()
    if not parts or any(part.kind != _LLVM for part in parts):
        executable.export_library(str(file), fcompile=link, workspace_dir=str(workspace))
        return
    objects = [_object(workspace, number) for number in range(len(parts))]
    missing = [pair for pair in zip(parts, objects, strict=True) if not pair[1].exists()]
    parallel_map(lambda pair: pair[0].write_to_file(str(pair[1])), missing)
    if module.imports:
        target = parts[0].get_function("_get_target_string")()
        described = tvm.get_global_func("runtime.ModulePackImportsToLLVM")(
            module, False, target, ""
        )
        objects.append(workspace / "devc.o")
        described.write_to_file(str(objects[-1]))
    link(str(file), [str(path) for path in objects])


def _object(workspace: Path, number: int) -> Path:
    return workspace / f"lib{number}.o"


def parallel_map(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the results of a function of TVM for each item, several at a time.

    TVM's functions let other threads run; its current target and pass context are those of a
    thread.
    """
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(function, items))
