// Loads model libraries (ELF shared objects made by TVM's LLVM back end) without dlopen, which a static executable lacks.
#pragma once

namespace farm {

// This agent's architecture, as the farm names it: x86_64, aarch64, armv7 or riscv64.
#if defined(__x86_64__)
constexpr char kMachineName[] = "x86_64";
#elif defined(__aarch64__)
constexpr char kMachineName[] = "aarch64";
#elif defined(__arm__)
constexpr char kMachineName[] = "armv7";
#elif defined(__riscv) && __riscv_xlen == 64
constexpr char kMachineName[] = "riscv64";
#else
#error "an architecture that the agent does not know"
#endif

// Has TVM load ".so" files with this loader.
void RegisterElfLoader();

}  // namespace farm
