"""Build a stub of NVIDIA's driver library, for machines without one.

TVM loads modules of device code only with its CUDA runtime, which needs the functions of libcuda.
This module does not import TVM: the stub is built by a process that starts a sandbox.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.store import Store, digest_of_parts

DRIVER = "libcuda.so.1"
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_LINK_S = 120.0


def tvm_cuda_runtime_path() -> Path:
    """Return the path of TVM's CUDA runtime."""
    found = importlib.util.find_spec("tvm")
    assert found and found.origin, "TVM is installed with farm"
    return Path(found.origin).parent / "lib" / "libtvm_runtime_cuda.so"


def build_driver_stub(store: Store) -> Path:
    """Return a stub of the driver's library; each of its functions returns CUDA_ERROR_NO_DEVICE.

    It is built once and kept in the store.
    """
    names = sorted(
        {
            name.decode()
            for name in re.findall(rb"\0(cu[A-Z]\w+)(?=\0)", tvm_cuda_runtime_path().read_bytes())
        }
    )
    source = "".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in names)
    digest = digest_of_parts(source)
    if not (kept := store.find("cuda-driver", digest)):
        with store.publish("cuda-driver", digest) as folder:
            (folder / "driver.c").write_text(source)
            command = [
                sys.executable,
                "-P",
                "-m",
                "ziglang",
                "cc",
                "-shared",
                "-nostdlib",
                "-fPIC",
                f"-Wl,-soname,{DRIVER}",
            ]
            subprocesses.run_program(
                [*command, "-o", str(folder / DRIVER), str(folder / "driver.c")],
                deadline=Deadline(_LINK_S),
                what="building what stands in for NVIDIA's driver",
                fix="reinstall the bundled toolchain: pip install --force-reinstall ziglang",
            )
        kept = store.find("cuda-driver", digest)
        assert kept is not None, "published, and not there"
    return kept / DRIVER
