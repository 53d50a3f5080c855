// Whose file is this? Reads an ELF header, of any machine, and says so in words.
#pragma once
#include <string>

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

// Empty when this agent can load the library; else why not, naming what the file is and what this
// device is.
std::string WhyNotLoadable(const std::string& file);

}  // namespace farm
