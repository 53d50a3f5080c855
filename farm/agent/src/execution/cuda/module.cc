// Modules of kind "cuda", as TVM's compiler puts them into a library: machine code for a GPU, and
// how each kernel is called.
#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>

#include <string>

#include "base/error_code.h"
#include "execution/cuda/open_gpu.h"
#include "runtime/metadata.h"
#include "runtime/pack_args.h"
#include "runtime/thread_storage_scope.h"
#include "support/bytes_io.h"

namespace farm::cuda {
namespace {

using tvm::runtime::FunctionInfo;
using tvm::runtime::LaunchParamConfig;
using tvm::runtime::ThreadWorkLoad;

constexpr size_t kSharedWithoutAsking = 48 << 10;  // bytes a block gets without cuFuncSetAttribute

std::string Triple(size_t x, size_t y, size_t z) {
  return std::to_string(x) + " x " + std::to_string(y) + " x " + std::to_string(z);
}

class CudaModule final : public tvm::ffi::ModuleObj {
 public:
  CudaModule(tvm::ffi::Bytes code, tvm::ffi::Map<tvm::ffi::String, FunctionInfo> functions)
      : code_(std::move(code)), functions_(std::move(functions)) {}
  ~CudaModule() {
    if (module_) TheDriver().cuModuleUnload(module_);
  }

  const char* kind() const final { return "cuda"; }
  int GetPropertyMask() const final { return tvm::ffi::Module::kRunnable; }
  tvm::ffi::Optional<tvm::ffi::Function> GetFunction(const tvm::ffi::String& name) final;

  // The kernel on the GPU that is open; the code is loaded at the first call.
  Handle Kernel(const std::string& name);

 private:
  const tvm::ffi::Bytes code_;
  const tvm::ffi::Map<tvm::ffi::String, FunctionInfo> functions_;
  Handle module_ = nullptr;
};

// A kernel, and how it is launched. Keeps its module.
class Launcher {
 public:
  Launcher(tvm::ffi::ObjectPtr<CudaModule> module, const std::string& name,
           const FunctionInfo& info)
      : module_(std::move(module)), name_(name) {
    launch_.Init(info->arg_types.size(), info->launch_param_tags);
    if (launch_.use_cluster_launch()) {
      TVM_FFI_THROW(RuntimeError) << Coded(error::kLibrary, "kernel ") << name
                                  << " is launched in clusters, which farm does not do";
    }
  }

  void operator()(tvm::ffi::PackedArgs arguments, tvm::ffi::Any*, void** addresses) const {
    const ThreadWorkLoad work = launch_.Extract(arguments);
    const size_t shared = work.dyn_shmem_size;
    if (!kernel_) kernel_ = module_->Kernel(name_);
    if (shared > allowed_) {
      FARM_DRIVER(cuFuncSetAttribute, kernel_, kMaxDynamicShared, static_cast<int>(shared));
      allowed_ = shared;
    }
    auto size = [&work](size_t axis) { return static_cast<unsigned>(work.work_size[axis]); };
    const unsigned bytes = static_cast<unsigned>(shared);
    const Driver& driver = TheDriver();
    const int error =
        launch_.use_cooperative_launch()
            ? driver.cuLaunchCooperativeKernel(kernel_, size(0), size(1), size(2), size(3), size(4),
                                               size(5), bytes, CurrentStream(), addresses)
            : driver.cuLaunchKernel(kernel_, size(0), size(1), size(2), size(3), size(4), size(5),
                                    bytes, CurrentStream(), addresses, nullptr);
    if (error) {
      TVM_FFI_THROW(RuntimeError) << Coded(error::kGpu, "the GPU failed: kernel ") << name_
                                  << " (grid " << Triple(size(0), size(1), size(2)) << ", block "
                                  << Triple(size(3), size(4), size(5)) << ", " << bytes
                                  << " bytes shared): " << driver.Words(error);
    }
  }

 private:
  tvm::ffi::ObjectPtr<CudaModule> module_;
  std::string name_;
  LaunchParamConfig launch_;
  mutable Handle kernel_ = nullptr;
  mutable size_t allowed_ = kSharedWithoutAsking;
};

tvm::ffi::Optional<tvm::ffi::Function> CudaModule::GetFunction(const tvm::ffi::String& name) {
  auto found = functions_.Get(name);
  if (!found.has_value()) return std::nullopt;
  const FunctionInfo& info = found.value();
  Launcher launcher(tvm::ffi::GetObjectPtr<CudaModule>(this), name, info);
  return tvm::runtime::PackFuncVoidAddr(std::move(launcher), info->arg_types, info->arg_extra_tags);
}

Handle CudaModule::Kernel(const std::string& name) {
  const SessionGpu* gpu = OpenedGpu();
  if (!gpu) TVM_FFI_THROW(RuntimeError) << Coded(error::kNoGpu, "no GPU: none is in use");
  if (!module_) {
    const int error = TheDriver().cuModuleLoadData(&module_, code_.data());
    if (error == kNoBinary) {
      TVM_FFI_THROW(RuntimeError) << Coded(error::kLibrary,
                                           "cannot load library: it has no code for ")
                                  << gpu->name << ", which is " << gpu->architecture;
    }
    Check(error, "cuModuleLoadData");
  }
  Handle kernel = nullptr;
  FARM_DRIVER(cuModuleGetFunction, &kernel, module_, name.c_str());
  return kernel;
}

// As CUDAModuleNode of TVM's own runtime writes it: format, functions, code. CUDA source would need
// a compiler here.
tvm::ffi::Module LoadModule(const tvm::ffi::Bytes& bytes) {
  tvm::support::BytesInStream stream(bytes);
  tvm::ffi::String format;
  tvm::ffi::Map<tvm::ffi::String, FunctionInfo> functions;
  tvm::ffi::Bytes code;
  if (!stream.Read(&format) || !stream.Read(&functions) || !stream.Read(&code)) {
    TVM_FFI_THROW(RuntimeError) << Coded(
        error::kLibrary, "cannot load library: corrupted: its code for a GPU ends early");
  }
  if (format != "cubin") {
    TVM_FFI_THROW(RuntimeError)
        << Coded(error::kLibrary,
                 "cannot load library: its code for a GPU is no machine code (cubin), but ")
        << std::string(format);
  }
  return tvm::ffi::Module(tvm::ffi::make_object<CudaModule>(std::move(code), std::move(functions)));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("ffi.Module.load_from_bytes.cuda", LoadModule);
}

}  // namespace
}  // namespace farm::cuda
