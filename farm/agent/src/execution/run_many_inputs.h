// A model's outputs for many inputs in one call.
#pragma once
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

namespace farm {

// Runs a function of a loaded machine for one sample after the other. The arguments are the
// machine, the function's name, the number of samples, how many inputs follow, the inputs (tensors
// of the CPU; each holds its value for all samples, along a first axis of its own), and what else
// the function takes, the same for each sample. The answer is the first output for each sample, one
// behind the other.
tvm::ffi::Bytes RunSamples(tvm::ffi::PackedArgs arguments);

}  // namespace farm
