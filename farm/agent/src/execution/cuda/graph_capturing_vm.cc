// TVM's virtual machine on a GPU, whose inferences can be recorded: the same functions, and
// `record`.
//
// Its inputs stay where they are: new ones of the same shapes are copied to where the old ones lie,
// so that a graph reads them.
#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/tensor.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "execution/cuda/graph.h"

namespace farm::cuda {
namespace {

class Machine final : public tvm::ffi::ModuleObj {
 public:
  using Any = tvm::ffi::Any;
  using AnyView = tvm::ffi::AnyView;
  using Function = tvm::ffi::Function;
  using PackedArgs = tvm::ffi::PackedArgs;
  using Tensor = tvm::runtime::Tensor;

  explicit Machine(tvm::ffi::Module machine) : machine_(std::move(machine)) { TellLaunches(0, ""); }

  const char* kind() const final { return "farm.GpuMachine"; }
  int GetPropertyMask() const final { return tvm::ffi::Module::kRunnable; }
  tvm::ffi::Optional<Function> GetFunction(const tvm::ffi::String& name) final;

 private:
  struct Inference {
    std::vector<Any> inputs;
    std::unique_ptr<Graph> graph;
  };

  void SetInput(PackedArgs arguments);
  void Invoke(const std::string& function);
  void Record(const std::string& function);
  void Forget();

  Function Get(const char* name) const { return machine_->GetFunction(name).value(); }
  void InvokePlainly(const std::string& function) { Get("invoke_stateful")(function); }

  const tvm::ffi::Module machine_;
  std::map<std::string, Inference> inferences_;
};

using MachinePointer = tvm::ffi::ObjectPtr<Machine>;

tvm::ffi::Optional<tvm::ffi::Function> Machine::GetFunction(const tvm::ffi::String& name) {
  MachinePointer self = tvm::ffi::GetObjectPtr<Machine>(this);
  if (name == "vm_load_executable")
    return Function::FromTyped([self] { return tvm::ffi::Module(self); });
  if (name == "set_input")
    return Function([self](PackedArgs arguments, Any*) { self->SetInput(arguments); });
  if (name == "invoke_stateful")
    return Function::FromTyped([self](const std::string& function) { self->Invoke(function); });
  if (name == "record")
    return Function::FromTyped([self](const std::string& function) { self->Record(function); });
  if (name == "set_instrument") {  // which wants to hear of each step
    return Function([self](PackedArgs arguments, Any* result) {
      self->Forget();
      self->Get("set_instrument").CallPacked(arguments, result);
    });
  }
  return machine_->GetFunction(name);
}

// The tensor that an argument is, wherever it lies; null for anything else.
const DLTensor* TensorIn(tvm::ffi::AnyView argument) {
  const auto found = argument.try_cast<DLTensor*>();
  return found.has_value() ? found.value() : nullptr;
}

bool Alike(const DLTensor& one, const DLTensor& other) {
  return one.ndim == other.ndim && one.dtype == other.dtype &&
         std::equal(one.shape, one.shape + one.ndim, other.shape);
}

// Whether an input can take the place of the one before: a tensor whose content can be copied
// there, or the very same thing.
bool TakesPlaceOf(tvm::ffi::AnyView before, tvm::ffi::AnyView now) {
  const DLTensor *kept = TensorIn(before), *given = TensorIn(now);
  if (kept || given) return kept && given && Alike(*kept, *given);
  const auto one = before.as<tvm::ffi::ObjectRef>(), other = now.as<tvm::ffi::ObjectRef>();
  return one && other && one->same_as(*other);
}

void Machine::SetInput(PackedArgs arguments) {
  Inference& inference = inferences_[arguments[0].cast<std::string>()];
  std::vector<Any>& inputs = inference.inputs;
  const size_t count = arguments.size() - 1;
  bool fits = inputs.size() == count && count > 0;
  for (size_t i = 0; fits && i < count; ++i) fits = TakesPlaceOf(inputs[i], arguments[i + 1]);
  if (!fits) {
    if (inference.graph)
      TellLaunches(0, "its inputs have changed their shapes since it was recorded");
    inference.graph.reset();
    inputs.clear();
    for (size_t i = 0; i < count; ++i) {
      const DLTensor* given = TensorIn(arguments[i + 1]);
      if (!given) {
        inputs.emplace_back(arguments[i + 1]);
        continue;
      }
      const DLDevice gpu{kDLCUDA, OpenedGpu()->index};
      inputs.emplace_back(Tensor::Empty(tvm::ffi::Shape(given->shape, given->shape + given->ndim),
                                        given->dtype, gpu));
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (const DLTensor* given = TensorIn(arguments[i + 1]))
      inputs[i].cast<Tensor>().CopyFrom(given);
  }
  if (fits) return;
  std::vector<AnyView> all = {arguments[0]};
  all.insert(all.end(), inputs.begin(), inputs.end());
  Any nothing;
  Get("set_input").CallPacked(all.data(), static_cast<int32_t>(all.size()), &nothing);
}

void Machine::Invoke(const std::string& function) {
  const auto found = inferences_.find(function);
  if (found != inferences_.end() && found->second.graph) {
    found->second.graph->Launch();
  } else {
    InvokePlainly(function);
  }
}

// From now on, an inference is one launch, where that is possible. The outputs are those of an
// inference afterwards.
void Machine::Record(const std::string& function) {
  std::unique_ptr<Graph>& graph = inferences_[function].graph;
  graph.reset();
  InvokePlainly(function);
  try {
    graph = std::make_unique<Graph>([this, &function] { InvokePlainly(function); });
    TellLaunches(graph->steps(), "");
  } catch (const tvm::ffi::Error& error) {
    TellLaunches(0, error.message());
  }
  Invoke(function);
}

void Machine::Forget() {
  for (auto& [function, inference] : inferences_) inference.graph.reset();
  TellLaunches(0, "");
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("farm.gpu.machine", [](const tvm::ffi::Module& library) {
    const auto load = library->GetFunction("vm_load_executable");
    if (!load.has_value())
      TVM_FFI_THROW(ValueError) << "the library has no executable of TVM's virtual machine";
    return tvm::ffi::Module(tvm::ffi::make_object<Machine>((*load)().cast<tvm::ffi::Module>()));
  });
}

}  // namespace
}  // namespace farm::cuda
