#include "execution/run_many_inputs.h"

#include <tvm/ffi/extra/module.h>
#include <tvm/runtime/tensor.h>

#include <string>
#include <vector>

#include "base/io.h"

namespace farm {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Bytes;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::ffi::PackedArgs;
using tvm::runtime::Tensor;

constexpr int32_t kInputs = 4;                   // the first input's place among the arguments
constexpr size_t kMostBytes = size_t{64} << 20;  // of an answer, as the host takes it

// The part of an input that belongs to a sample. It refers to the input's memory and shape.
DLTensor PartOf(const DLTensor& input, int64_t sample) {
  DLTensor part = input;
  part.ndim -= 1;
  part.shape += 1;
  part.strides = nullptr;
  part.byte_offset += tvm::ffi::GetDataSize(part) * sample;
  return part;
}

void CheckInput(const DLTensor& input, int64_t count) {
  if (input.ndim < 1 || input.shape[0] != count || input.device.device_type != kDLCPU) {
    throw IoError(error::kSamples, "an input does not hold the samples");
  }
}

}  // namespace

Bytes RunSamples(PackedArgs arguments) {
  if (arguments.size() < kInputs) throw IoError(error::kSamples, "the samples have no model");
  const Module machine = arguments[0].cast<Module>();
  const std::string function = arguments[1].cast<std::string>();
  const int64_t count = arguments[2].cast<int64_t>();
  const int64_t inputs = arguments[3].cast<int64_t>();
  if (inputs < 0 || inputs > arguments.size() - kInputs)
    throw IoError(error::kSamples, "the samples have too few inputs");

  std::vector<DLTensor> stacked;
  for (int64_t i = 0; i < inputs; ++i) {
    stacked.push_back(*arguments[kInputs + i].cast<DLTensor*>());
    CheckInput(stacked.back(), count);
  }
  const Function set_input = machine->GetFunction("set_input").value();
  const Function invoke = machine->GetFunction("invoke_stateful").value();
  const Function arity = machine->GetFunction("get_output_arity").value();
  const Function output = machine->GetFunction("get_output").value();

  std::string answers;
  std::vector<DLTensor> parts(stacked.size());
  for (int64_t sample = 0; sample < count; ++sample) {
    std::vector<AnyView> values = {function};
    for (size_t i = 0; i < stacked.size(); ++i) {
      parts[i] = PartOf(stacked[i], sample);
      values.push_back(&parts[i]);
    }
    for (int32_t i = kInputs + static_cast<int32_t>(inputs); i < arguments.size(); ++i)
      values.push_back(arguments[i]);
    Any nothing;
    set_input.CallPacked(values.data(), static_cast<int32_t>(values.size()), &nothing);
    invoke(function);
    // The first output: of a tuple its first part.
    const bool is_tuple = arity(function).cast<int64_t>() >= 0;
    const Tensor answer = (is_tuple ? output(function, 0) : output(function)).cast<Tensor>();
    const size_t size = tvm::ffi::GetDataSize(*answer.operator->());
    if (size > kMostBytes - answers.size())
      throw IoError(error::kSamples, "the answers to the samples are too large");
    answers.resize(answers.size() + size);
    Tensor::CopyToBytes(answer.operator->(), answers.data() + answers.size() - size, size);
  }
  return Bytes(answers);
}

}  // namespace farm
