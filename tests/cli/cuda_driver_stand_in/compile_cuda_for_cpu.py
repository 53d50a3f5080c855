"""TVM's CUDA source as a library for the host, whose kernels the stand-in for the driver runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from farm.agent.recipe import zig_flags
from farm.agent.zig_cache import zig_environment
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.store import user_cache_dir

HERE = Path(__file__).resolve().parent
_KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\(\d+\) (\w+)\(([^)]*)\) \{')
_EACH_ROUNDS = ("-Xclang", "-ffloat16-excess-precision=none")  # operation of float16, as on a GPU
_TABLE = """
extern "C" void** stand_in_kept(const char* name, void** p) {{
{copies}
  return nullptr;
}}
alignas(64) uchar buf_dyn_shmem_ptr[stand_in::kMostShared];

extern "C" int stand_in_run(const char* name, const unsigned* sizes, void** arguments) {{
  stand_in::body = nullptr;
{rows}
  if (!stand_in::body) return 1;
  if (!sizes) return 0;
  stand_in::body_arguments = arguments;
  gridDim = {{sizes[0], sizes[1], sizes[2]}};
  blockDim = {{sizes[3], sizes[4], sizes[5]}};
  if (sizes[6] > stand_in::kMostShared) return 1;
  stand_in::count = sizes[3] * sizes[4] * sizes[5];
  for (unsigned z = 0; z < gridDim.z; ++z) for (unsigned y = 0; y < gridDim.y; ++y) for (unsigned x = 0; x < gridDim.x; ++x) {{
    blockIdx = {{x, y, z}};
    __builtin_memset(buf_dyn_shmem_ptr, 0xa5, sizes[6]);
    stand_in::RunBlock();
  }}
  return 0;
}}
"""  # noqa: E501


def built(source: str, folder: Path) -> Path:
    """A library in a folder."""
    rows, callers, copies = [], [], []
    for name, parameters in _KERNEL.findall(source):
        kinds = [
            parameter.replace("__restrict__", "").rsplit(None, 1)[0]
            for parameter in parameters.split(",")
            if parameter.strip()
        ]
        given = ", ".join(f"*static_cast<{kind}*>(p[{index}])" for index, kind in enumerate(kinds))
        callers.append(f"static void call_{name}(void** p) {{ {name}({given}); }}")
        kept = ", ".join(
            f"new {kind}(*static_cast<{kind}*>(p[{index}]))" for index, kind in enumerate(kinds)
        )
        copies.append(f'  if (!__builtin_strcmp(name, "{name}")) return new void*[]{{{kept}}};')
        rows.append(f'  if (!__builtin_strcmp(name, "{name}")) stand_in::body = call_{name};')
    text = source.replace("#include <cuda.h>", "").replace(
        "#include <cstdint>", "#include <cuda_on_cpu.h>"
    )
    text = text.replace("extern __shared__ __align__(64)", "extern").replace(
        "__shared__ alignas(64)", "alignas(64) __shared__"
    )
    (folder / "kernels.cc").write_text(
        "\n".join([text, *callers, _TABLE.format(rows="\n".join(rows), copies="\n".join(copies))])
    )
    return _compiled(
        "c++", folder / "kernels.cc", folder / "kernels.so", "-w", *_EACH_ROUNDS, f"-I{HERE}", "-O1"
    )


def driver(folder: Path, *more: str) -> Path:
    """A folder with both of NVIDIA's libraries, for LD_LIBRARY_PATH."""
    _compiled("cc", HERE / "driver.c", folder / "libcuda.so.1", "-Wall", *more)
    _compiled("cc", HERE / "management.c", folder / "libnvidia-ml.so.1", "-Wall")
    return folder


def _compiled(language: str, source: Path, library: Path, *more: str) -> Path:
    command = [
        sys.executable,
        "-m",
        "ziglang",
        language,
        *zig_flags("x86_64-cuda"),
        "-shared",
        *more,
        source,
        "-o",
        library,
        "-ldl",
    ]
    subprocesses.run_program(
        command,
        deadline=Deadline(600),
        what=f"compiling {source.name}",
        env=zig_environment(user_cache_dir() / "zig"),
    )
    return library
