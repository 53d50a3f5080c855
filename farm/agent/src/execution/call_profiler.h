// A model's inferences with the time of every call that the virtual machine makes.
#pragma once
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <string>

namespace farm {

// Runs `function` of a loaded machine, whose inputs are set, plainly and recorded in turns, until
// `pairs` of inferences are done, `seconds` are over or the records are many; one pair at the
// least. The answer is the names of the functions called, each on a line of its own, an empty line,
// and records in order of their end, little-endian:
//   uint32 the function's place among the names; for an inference itself 0xffffffff (plain) or
//   0xfffffffe (recorded) uint32 how many calls it lies within int64  its begin on the monotonic
//   clock, int64 its duration, both in nanoseconds; on a GPU, by events in its stream
tvm::ffi::Bytes Profile(const tvm::ffi::Module& machine, const std::string& function, int64_t pairs,
                        double seconds);

}  // namespace farm
