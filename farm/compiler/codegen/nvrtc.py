"""Compile CUDA code to binaries for one architecture, on a machine that may have no NVIDIA GPU.

NVRTC, the headers and the CUDA runtime are Python packages (the extra `cuda`). TVM can create
modules of device code only with its CUDA runtime loaded, and that needs the driver's library,
libcuda. On a machine without a driver, a stub libcuda is loaded into this process that returns
CUDA_ERROR_NO_DEVICE. NVRTC is called by its C interface (https://docs.nvidia.com/cuda/nvrtc).
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm
import tvm_ffi

from farm.compiler.codegen import cuda_driver_stub
from farm.errors import BuildError
from farm.store import Store

_RUNTIME = "libcudart.so.13"
_COMPILER = "libnvrtc.so.13"
_BUILTINS = "libnvrtc-builtins.so.*"
_INSTALL = "pip install 'tvm-farm[cuda]'"
# TVM's code generator calls it with CUDA source, and puts the result into the module
_CALLBACK = "tvm_callback_cuda_compile"


@contextmanager
def use_nvrtc_for_cuda(target: tvm.target.Target, store: Store) -> Iterator[None]:
    """Let TVM compile CUDA targets to binaries for their architecture within the block.

    Does nothing for other targets. Raises BuildError if NVIDIA's compiler is not installed, does
    not support the architecture, or refuses the code.
    """
    if target.kind.name != "cuda":
        yield
        return
    compiler = _Compiler(str(target.attrs["arch"]))
    _load_runtime(store)
    before = tvm.get_global_func(_CALLBACK)
    tvm_ffi.register_global_func(_CALLBACK, compiler, override=True)
    try:
        yield
    except Exception as exc:
        if compiler.failure is None:
            raise
        raise compiler.failure from exc  # TVM replaces the exception by one of its own
    finally:
        tvm_ffi.register_global_func(_CALLBACK, before, override=True)


def _toolkit() -> Path:
    """Return the folder with `lib` and `include` of the extra's packages.

    Raises BuildError if they are not installed.
    """
    found = importlib.util.find_spec("nvidia")
    for place in found.submodule_search_locations or () if found else ():
        folder = Path(place) / "cu13"
        if (
            all((folder / "lib" / name).is_file() for name in (_COMPILER, _RUNTIME))
            and (folder / "include" / "cccl").is_dir()
        ):
            return folder
    raise BuildError(
        "code for NVIDIA's GPUs needs NVIDIA's compiler",
        "NVRTC 13, its headers and the CUDA runtime are not all here",
        _INSTALL,
    )


def _load_runtime(store: Store) -> None:
    """Load TVM's CUDA runtime, which registers itself.

    With a driver installed, importing TVM does so already.
    """
    if tvm.get_global_func("ffi.Module.create.cuda", allow_missing=True):
        return
    try:
        ctypes.CDLL(cuda_driver_stub.DRIVER)
    except OSError:
        ctypes.CDLL(str(cuda_driver_stub.build_driver_stub(store)))
    try:
        ctypes.CDLL(str(_toolkit() / "lib" / _RUNTIME))
        ctypes.CDLL(str(cuda_driver_stub.tvm_cuda_runtime_path()))
    except OSError as exc:
        raise BuildError(
            "TVM's CUDA runtime cannot be loaded", str(exc), f"{_INSTALL}, and reinstall apache-tvm"
        ) from exc


class _Compiler:
    """NVRTC as a function from CUDA source to a binary for one architecture.

    `failure` is its last error.
    """

    def __init__(self, architecture: str) -> None:
        folder = _toolkit()
        # NVRTC 13.0, which torch 2.13 requires, searches for them in the system's path only
        for builtins in (folder / "lib").glob(_BUILTINS):
            ctypes.CDLL(str(builtins))
        self._library = ctypes.CDLL(str(folder / "lib" / _COMPILER))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        self.failure: BuildError | None = None
        self._architecture = architecture
        self._options = [
            f"--gpu-architecture={architecture}",
            "-default-device",
            # Hide warnings about TVM's code, which would push errors out of the message
            "--disable-warnings",
            *(
                f"--include-path={place}"
                for place in (folder / "include", folder / "include" / "cccl")
            ),
        ]
        built = self._architectures()
        if architecture not in built:
            raise BuildError(
                f"code for {architecture} cannot be built",
                (
                    f"CUDA 13, which TVM's runtime is made for, has {', '.join(built)}; what is "
                    "older than the first is no longer supported"
                ),
                "use a profile of the board's CPUs, which the README lists",
            )

    def __call__(self, source: str) -> bytes:
        try:
            return self._compiled(source)
        except BuildError as error:
            self.failure = error
            raise

    def _compiled(self, source: str) -> bytes:
        program = ctypes.c_void_p()
        plain = "\n".join(
            line for line in source.splitlines() if line.strip() != "#include <cuda.h>"
        )  # a host header, which NVRTC does not have
        self._check(
            self._library.nvrtcCreateProgram(
                ctypes.byref(program), plain.encode(), b"kernels.cu", 0, None, None
            )
        )
        try:
            options = [option.encode() for option in self._options]
            code = self._library.nvrtcCompileProgram(
                program, len(options), (ctypes.c_char_p * len(options))(*options)
            )
            self._check(code, log=program)
            return self._text(program, "CUBIN")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _architectures(self) -> list[str]:
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        numbers = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(numbers))
        return [f"sm_{number}" for number in numbers]

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        content = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, content))
        return content.raw

    def _check(self, code: int, log: ctypes.c_void_p | None = None) -> None:
        if code:
            why = (
                self._text(log, "ProgramLog").decode(errors="replace").strip("\0").strip()
                if log
                else ""
            )
            told = str(self._library.nvrtcGetErrorString(code).decode())
            raise BuildError(
                f"NVIDIA's compiler refuses the code for {self._architecture}",
                f"{told}: {why[:600]}" if why else told,
                "report it with the model",
            )
