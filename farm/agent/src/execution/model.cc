#include "execution/model.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include "store/manifest.h"

namespace farm {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::runtime::Tensor;

constexpr int kPooled = 2;  // the VM's pooled allocator, as tvm/runtime/vm.py has it
const char kMain[] = "main", kPrefix[] = "parameter", kWiden[] = "widen_parameters";

// Whether it carries, among the modules below it, one that a GPU computes.
bool HasCodeForGpu(const Module& library) {
  for (const Any& one : library->imports()) {
    const Module module = one.cast<Module>();
    if (std::string(module->kind()) == "cuda" || HasCodeForGpu(module)) return true;
  }
  return false;
}

template <typename... Arguments>
Any Call(const char* name, Arguments... arguments) {
  return Function::GetGlobalRequired(name)(arguments...);
}

}  // namespace

// The same functions, in the same order, as a host calls by RPC.
Model::Model(const std::string& folder, bool has_parameters, int gpu)
    : Model(Module::LoadFromFile(folder + "/" + kLibraryFile)) {
  const bool on_gpu = HasCodeForGpu(library_);
  const int kind = on_gpu ? kDLCUDA : kDLCPU, number = on_gpu ? gpu : 0;
  if (has_parameters) Call("vm.builtin.tensor_cache.load", folder, kind, number);
  if (on_gpu) {
    Get("vm_initialization")(kind, number, kPooled, static_cast<int>(kDLCPU), 0, kPooled);
  } else {
    Get("vm_initialization")(kind, number, kPooled);
  }
  if (!has_parameters) return;
  // Parameters that lie in the file in half precision and that the code does not take so.
  if (auto widen = machine_->GetFunction(kWiden)) (*widen)();
  parameters_.push_back(Call("vm.builtin.param_array_from_cache", kPrefix, -1));
}

Model::Model(const Module& library)
    : library_(library),
      machine_(library->GetFunction("vm_load_executable").value()().cast<Module>()) {}

Function Model::Get(const char* name) const { return machine_->GetFunction(name).value(); }

std::vector<Tensor> Model::Run(const std::vector<Tensor>& inputs) {
  std::vector<AnyView> arguments = {kMain};
  arguments.insert(arguments.end(), inputs.begin(), inputs.end());
  arguments.insert(arguments.end(), parameters_.begin(), parameters_.end());
  Any nothing;
  Get("set_input").CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &nothing);
  Get("invoke_stateful")(kMain);
  std::vector<Tensor> outputs;
  Collect({}, &outputs);
  return outputs;
}

void Model::Collect(std::vector<int64_t> index, std::vector<Tensor>* outputs) {
  std::vector<AnyView> arguments = {kMain};
  arguments.insert(arguments.end(), index.begin(), index.end());
  Any arity, value;
  Get("get_output_arity")
      .CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &arity);
  if (arity.cast<int>() < 0) {
    Get("get_output").CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &value);
    outputs->push_back(value.cast<Tensor>());
    return;
  }
  for (int i = 0; i < arity.cast<int>(); ++i) {
    index.push_back(i);
    Collect(index, outputs);
    index.pop_back();
  }
}

}  // namespace farm
