"""What the agent declares of NVIDIA's driver, against NVIDIA's own header."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from farm.agent.recipe import SOURCES, zig_flags
from farm.agent.zig_cache import zig_environment
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.store import user_cache_dir

CHECK = """
#include <type_traits>
#include "execution/cuda/driver.h"
#define __CUDA_API_VERSION_INTERNAL  // both versions of what has two, each under its own name
#include <cuda.h>

// A pointer for a pointer, and for every other kind of number one of its size.
template <typename Ours, typename Theirs>
constexpr bool kAlike = sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
template <typename Ours, typename Theirs>
constexpr bool kSame = false;
template <typename A, typename... Ours, typename B, typename... Theirs>
constexpr bool kSame<A (*)(Ours...), B (*)(Theirs...)> = [] {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) return kAlike<A, B> && (kAlike<Ours, Theirs> && ...);
  return false;
}();

#define CHECK(name, arguments) static_assert(kSame<decltype(farm::cuda::Driver::name), decltype(&::name)>, #name);
FARM_DRIVER_FUNCTIONS(CHECK)
FARM_GRAPH_FUNCTIONS(CHECK)
static_assert(farm::cuda::kRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
using namespace farm::cuda;
static_assert(kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY && kNoDevice == CUDA_ERROR_NO_DEVICE && kNoBinary == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(kMaxThreadsPerBlock == CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK && kMaxBlockX == CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
static_assert(kMaxSharedPerBlock == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK && kWarp == CU_DEVICE_ATTRIBUTE_WARP_SIZE);
static_assert(kMaxRegisters == CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK && kClockKhz == CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
static_assert(kMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT && kL2Bytes == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
static_assert(kMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR && kMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kMaxDynamicShared == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && kNonBlocking == CU_STREAM_NON_BLOCKING);
"""  # noqa: E501


def checked(source: str, folder: Path) -> str:
    found = importlib.util.find_spec("nvidia")
    if not found or not found.submodule_search_locations:
        pytest.skip("NVIDIA's headers are not installed: pip install 'tvm-farm[cuda]'")
    (folder / "check.cc").write_text(source)
    includes = [
        f"-I{SOURCES}",
        f"-I{Path(next(iter(found.submodule_search_locations))) / 'cu13' / 'include'}",
    ]
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "c++",
        *zig_flags("x86_64-cuda"),
        "-std=c++17",
        "-c",
        "-o",
        folder / "check.o",
        *includes,
    ]
    return subprocesses.run_program(
        [*command, folder / "check.cc"],
        deadline=Deadline(600),
        what="checking the driver's functions",
        env=zig_environment(user_cache_dir() / "zig"),
    )


def test_every_function_and_number_of_the_driver_is_as_nvidia_has_it(tmp_path: Path) -> None:
    checked(CHECK, tmp_path)


def test_a_function_that_is_declared_otherwise_would_be_found(tmp_path: Path) -> None:
    wrong = CHECK.replace(
        "FARM_DRIVER_FUNCTIONS(CHECK)", "struct Wrong { int (*cuMemFree_v2)(int address); };\n"
    ) + ("static_assert(kSame<decltype(Wrong::cuMemFree_v2), decltype(&::cuMemFree_v2)>);")
    with pytest.raises(Exception, match="static assertion failed"):
        checked(wrong, tmp_path)
