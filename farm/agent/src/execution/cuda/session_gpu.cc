#include "execution/cuda/session_gpu.h"

#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/runtime/base.h>

#include <memory>

#include "execution/gpu.h"
#include "execution/cuda/graph.h"
#include "execution/cuda/nvml.h"

namespace farm {
namespace cuda {
namespace {

// What farm's compiler, NVRTC 13, makes is for drivers of CUDA 13 on: see "CUDA Compatibility" in NVIDIA's documentation.
constexpr int kLeastVersion = 13000;

std::unique_ptr<SessionGpu>& Slot() {
  static std::unique_ptr<SessionGpu> gpu;
  return gpu;
}

std::string VersionText(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

std::unique_ptr<SessionGpu> Open(int64_t index) {
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);  // as nvidia-smi counts
  const Driver& driver = TheDriver();
  auto gpu = std::make_unique<SessionGpu>();
  if (!driver.missing.empty()) throw Problem("no driver", "NVIDIA's driver cannot be loaded: " + driver.missing);
  if (!driver.cuDriverGetVersion(&gpu->driver_version) && gpu->driver_version < kLeastVersion) {
    throw Problem("old driver", "the driver is for CUDA " + VersionText(gpu->driver_version) + ", the code for " +
                                    VersionText(kLeastVersion));
  }
  int count = 0;
  if (int error = driver.cuInit(0)) {
    throw Problem(error == kNoDevice ? "no gpu" : "unusable gpu", "the driver says: " + driver.Words(error));
  }
  if (int error = driver.cuDeviceGetCount(&count)) throw Problem("unusable gpu", "the driver says: " + driver.Words(error));
  if (count == 0) throw Problem("no gpu", "the driver knows of none");
  if (index < 0 || index >= count) {
    throw Problem("no such gpu", "it has " + std::to_string(count) + (count == 1 ? " GPU" : " GPUs") + ", counted from 0; " +
                                     std::to_string(index) + " is asked for");
  }
  gpu->index = static_cast<int>(index);
  auto demand = [&driver](int error) {
    if (error) throw Problem("unusable gpu", "the driver says: " + driver.Words(error));
  };
  demand(driver.cuDeviceGet(&gpu->device, gpu->index));
  char text[256] = "";
  demand(driver.cuDeviceGetName(text, sizeof(text), gpu->device));
  gpu->name = text;
  if (!driver.cuDeviceGetPCIBusId(text, sizeof(text), gpu->device)) gpu->bus_id = text;
  gpu->architecture = "sm_" + std::to_string(gpu->Attribute(kMajor)) + std::to_string(gpu->Attribute(kMinor));
  demand(driver.cuDevicePrimaryCtxRetain(&gpu->context, gpu->device));
  demand(driver.cuCtxSetCurrent(gpu->context));
  return gpu;
}

// Marks are events, which are used again.
class EventClock final : public GpuClock {
 public:
  ~EventClock() final {
    for (Handle event : events_) TheDriver().cuEventDestroy_v2(event);
  }

  int64_t Mark() final {
    if (used_ == events_.size()) {
      events_.push_back(nullptr);
      FARM_DRIVER(cuEventCreate, &events_.back(), 0);
    }
    FARM_DRIVER(cuEventRecord, events_[used_], CurrentStream());
    return static_cast<int64_t>(used_++);
  }

  std::vector<int64_t> Times() final {
    std::vector<int64_t> times(used_);
    if (used_) FARM_DRIVER(cuEventSynchronize, events_[used_ - 1]);
    for (size_t i = 1; i < used_; ++i) {
      float milliseconds = 0;
      FARM_DRIVER(cuEventElapsedTime, &milliseconds, events_[0], events_[i]);
      times[i] = static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
    }
    used_ = 0;
    return times;
  }

 private:
  std::vector<Handle> events_;
  size_t used_ = 0;
};

}  // namespace

int SessionGpu::Attribute(int attribute) const {
  int value = 0;
  return TheDriver().cuDeviceGetAttribute(&value, attribute, device) ? 0 : value;
}

const SessionGpu& TheGpu(int64_t index) {
  if (!Slot()) Slot() = Open(index);
  if (Slot()->index != index) {
    throw Problem("another gpu", "this session computes on GPU " + std::to_string(Slot()->index) + ", not on " + std::to_string(index));
  }
  return *Slot();
}

const SessionGpu* OpenedGpu() { return Slot().get(); }

Handle CurrentStream() { return TVMFFIEnvGetStream(kDLCUDA, Slot() ? Slot()->index : 0); }

}  // namespace cuda

namespace json = tvm::ffi::json;
using tvm::ffi::String;

const bool kForGpu = true;

json::Object OpenGpu(int64_t index) {
  json::Object answer;
  try {
    const cuda::SessionGpu& gpu = cuda::TheGpu(index);
    answer.Set(String("name"), String(gpu.name));
    answer.Set(String("architecture"), String(gpu.architecture));
    answer.Set(String("index"), int64_t{gpu.index});
  } catch (const cuda::Problem& problem) {
    answer.Set(String("problem"), String(problem.kind));
    answer.Set(String("why"), String(problem.what()));
  }
  return answer;
}

json::Object GpuFacts() {
  json::Object facts;
  const cuda::SessionGpu* gpu = cuda::OpenedGpu();
  if (!gpu) return facts;
  facts.Set(String("gpu"), String(gpu->name));
  facts.Set(String("gpu_index"), int64_t{gpu->index});
  facts.Set(String("gpu_architecture"), String(gpu->architecture));
  facts.Set(String("gpu_cuda"), String(cuda::VersionText(gpu->driver_version)));
  facts.Set(String("gpu_multiprocessors"), int64_t{gpu->Attribute(cuda::kMultiprocessors)});
  size_t free = 0, total = 0;
  if (!cuda::TheDriver().cuMemGetInfo_v2(&free, &total)) {
    facts.Set(String("gpu_memory_total_bytes"), static_cast<int64_t>(total));
    facts.Set(String("gpu_memory_free_bytes"), static_cast<int64_t>(free));
  }
  cuda::AddLaunchFacts(&facts);
  cuda::AddManagementFacts(gpu->bus_id, &facts);
  return facts;
}

std::unique_ptr<GpuClock> MakeGpuClock() {
  return cuda::OpenedGpu() ? std::make_unique<cuda::EventClock>() : std::unique_ptr<GpuClock>();
}

}  // namespace farm
