// What one session may take of the device.
#pragma once
#include <cstdint>

namespace farm {

// 90 % of the device's memory: a session that wants more ends before the kernel ends something
// else.
uint64_t DefaultMemoryBytes();

struct Limits {
  uint64_t memory_bytes = DefaultMemoryBytes();  // of address space; of an agent for GPUs, of
                                                 // private memory that can be written
  uint64_t work_bytes = uint64_t{4} << 30;       // of files in its work directory
};

// Has the kernel hold this process and its children to that: memory that is refused becomes an
// error which names the limit. No file may be larger than `file_bytes`, and a crash leaves no core
// file.
void ApplyLimits(const Limits& limits, uint64_t file_bytes);

}  // namespace farm
