#include "execution/cuda/open_gpu.h"

#include <stdlib.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/runtime/base.h>

#include <memory>

namespace farm::cuda {
namespace {

// What farm's compiler, NVRTC 13, makes is for drivers of CUDA 13 on: see "CUDA Compatibility" in
// NVIDIA's documentation.
constexpr int kLeastVersion = 13000;

std::unique_ptr<SessionGpu>& Slot() {
  static std::unique_ptr<SessionGpu> gpu;
  return gpu;
}

std::unique_ptr<SessionGpu> Open(int64_t index) {
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);  // as nvidia-smi counts
  const Driver& driver = TheDriver();
  auto gpu = std::make_unique<SessionGpu>();
  if (!driver.missing.empty())
    throw Problem("no driver", "NVIDIA's driver cannot be loaded: " + driver.missing);
  if (!driver.cuDriverGetVersion(&gpu->driver_version) && gpu->driver_version < kLeastVersion) {
    throw Problem("old driver", "the driver is for CUDA " + VersionText(gpu->driver_version) +
                                    ", the code for " + VersionText(kLeastVersion));
  }
  int count = 0;
  if (int error = driver.cuInit(0)) {
    throw Problem(error == kNoDevice ? "no gpu" : "unusable gpu",
                  "the driver says: " + driver.Words(error));
  }
  if (int error = driver.cuDeviceGetCount(&count))
    throw Problem("unusable gpu", "the driver says: " + driver.Words(error));
  if (count == 0) throw Problem("no gpu", "the driver knows of none");
  if (index < 0 || index >= count) {
    throw Problem("no such gpu", "it has " + std::to_string(count) +
                                     (count == 1 ? " GPU" : " GPUs") + ", counted from 0; " +
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
  gpu->architecture =
      "sm_" + std::to_string(gpu->Attribute(kMajor)) + std::to_string(gpu->Attribute(kMinor));
  demand(driver.cuDevicePrimaryCtxRetain(&gpu->context, gpu->device));
  demand(driver.cuCtxSetCurrent(gpu->context));
  return gpu;
}

}  // namespace

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

int SessionGpu::Attribute(int attribute) const {
  int value = 0;
  return TheDriver().cuDeviceGetAttribute(&value, attribute, device) ? 0 : value;
}

const SessionGpu& TheGpu(int64_t index) {
  if (!Slot()) Slot() = Open(index);
  if (Slot()->index != index) {
    throw Problem("another gpu", "this session computes on GPU " + std::to_string(Slot()->index) +
                                     ", not on " + std::to_string(index));
  }
  return *Slot();
}

const SessionGpu* OpenedGpu() { return Slot().get(); }

Handle CurrentStream() { return TVMFFIEnvGetStream(kDLCUDA, Slot() ? Slot()->index : 0); }

}  // namespace farm::cuda
