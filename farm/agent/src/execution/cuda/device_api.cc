// TVM's device "cuda" over the driver: memory, copies, streams, and the timer, which asks the GPU's
// own clock.
#include <string.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>
#include <tvm/runtime/timer.h>

#include <algorithm>
#include <string>

#include "base/error_code.h"
#include "execution/cuda/gpu_memory.h"
#include "execution/cuda/graph.h"
#include "execution/cuda/open_gpu.h"
#include "runtime/workspace_pool.h"

namespace farm::cuda {
namespace {

using Device = DLDevice;
using tvm::runtime::DeviceAttrKind;

constexpr size_t kAlignment = 256;  // of cuMemAlloc

// The GPU of a TVM device; in words where it cannot be had, as a client may ask for any.
const SessionGpu& GpuOf(Device device) try {
  const SessionGpu& gpu = TheGpu(device.device_id);
  FARM_DRIVER(cuCtxSetCurrent, gpu.context);  // TVM may come from any of its threads
  return gpu;
} catch (const Problem& problem) {
  TVM_FFI_THROW(RuntimeError) << Coded(error::kNoGpu, "no GPU: ") << problem.what();
  throw;
}

Address AddressOf(const void* data, size_t offset) {
  return reinterpret_cast<Address>(data) + offset;
}

class CudaDeviceApi final : public tvm::runtime::DeviceAPI {
 public:
  void SetDevice(Device device) final { GpuOf(device); }

  void GetAttr(Device device, DeviceAttrKind kind, tvm::ffi::Any* value) final;

  void* AllocDataSpace(Device device, size_t bytes, size_t alignment, DLDataType) final {
    const SessionGpu& gpu = GpuOf(device);
    if (kAlignment % alignment)
      TVM_FFI_THROW(ValueError) << "memory of the GPU is aligned at " << kAlignment << " bytes";
    Address memory = 0;
    const int error = TheDriver().cuMemAlloc_v2(&memory, std::max<size_t>(bytes, 1));
    if (error == kOutOfMemory) {
      size_t free = 0, total = 0;
      TheDriver().cuMemGetInfo_v2(&free, &total);
      TVM_FFI_THROW(RuntimeError) << Coded(error::kNoMemory, "out of memory: ") << gpu.name
                                  << " has " << free << " bytes free of " << total
                                  << ": no room for " << bytes;
    }
    Check(error, "cuMemAlloc");
    return reinterpret_cast<void*>(memory);
  }

  // What fails here failed before, and was told: after an error of a kernel the driver refuses
  // everything, until the process ends.
  void FreeDataSpace(Device, void* data) final {
    const SessionGpu* gpu = OpenedGpu();
    if (gpu && !TheDriver().cuCtxSetCurrent(gpu->context))
      TheDriver().cuMemFree_v2(AddressOf(data, 0));
  }

  Handle CreateStream(Device device) final {
    GpuOf(device);
    Handle stream = nullptr;
    FARM_DRIVER(cuStreamCreate, &stream, kNonBlocking);
    return stream;
  }

  void FreeStream(Device device, Handle stream) final {
    GpuOf(device);
    FARM_DRIVER(cuStreamDestroy_v2, stream);
  }

  void StreamSync(Device device, Handle stream) final {
    GpuOf(device);
    MustNotBeRecorded("waits for the GPU");
    FARM_DRIVER(cuStreamSynchronize, stream);
  }

  void SyncStreamFromTo(Device device, Handle from, Handle to) final {
    GpuOf(device);
    MustNotBeRecorded("uses a second stream");
    Handle event = nullptr;
    FARM_DRIVER(cuEventCreate, &event, 0);
    FARM_DRIVER(cuEventRecord, event, from);
    FARM_DRIVER(cuStreamWaitEvent, to, event, 0);
    FARM_DRIVER(cuEventDestroy_v2, event);
  }

  void* AllocWorkspace(Device device, size_t bytes, DLDataType type) final {
    GpuMemory& memory = GpuMemory::Global();
    return memory.is_apart() ? memory.Alloc(device, bytes, kAlignment, type).data
                             : Pool().AllocWorkspace(device, bytes);
  }
  void FreeWorkspace(Device device, void* data) final {
    if (!GpuMemory::Global().FreeApart(data)) Pool().FreeWorkspace(device, data);
  }

  bool SupportsDevicePointerArithmeticsOnHost() final { return true; }

  static CudaDeviceApi* Global() {
    static auto* api = new CudaDeviceApi;  // never destroyed: tensors may outlive everything
    return api;
  }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset,
                      size_t bytes, Device from_device, Device to_device, DLDataType,
                      Handle stream) final;

 private:
  static tvm::runtime::WorkspacePool& Pool() {
    static thread_local tvm::runtime::WorkspacePool pool(kDLCUDA, Global());
    return pool;
  }
};

void CudaDeviceApi::GetAttr(Device device, DeviceAttrKind kind, tvm::ffi::Any* value) {
  namespace attribute = tvm::runtime;
  if (kind == attribute::kExist) {
    try {
      TheGpu(device.device_id);
      *value = 1;
    } catch (const Problem&) {
      *value = 0;
    }
    return;
  }
  const SessionGpu& gpu = GpuOf(device);
  size_t free = 0, total = 0;
  switch (kind) {
    case attribute::kMaxThreadsPerBlock:
      *value = gpu.Attribute(kMaxThreadsPerBlock);
      return;
    case attribute::kWarpSize:
      *value = gpu.Attribute(kWarp);
      return;
    case attribute::kMaxSharedMemoryPerBlock:
      *value = gpu.Attribute(kMaxSharedPerBlock);
      return;
    case attribute::kComputeVersion:
      *value = std::to_string(gpu.Attribute(kMajor)) + "." + std::to_string(gpu.Attribute(kMinor));
      return;
    case attribute::kDeviceName:
      *value = gpu.name;
      return;
    case attribute::kMaxClockRate:
      *value = gpu.Attribute(kClockKhz);
      return;
    case attribute::kMultiProcessorCount:
      *value = gpu.Attribute(kMultiprocessors);
      return;
    case attribute::kMaxThreadDimensions: {
      const int x = kMaxBlockX;
      *value = "[" + std::to_string(gpu.Attribute(x)) + ", " +
               std::to_string(gpu.Attribute(x + 1)) + ", " + std::to_string(gpu.Attribute(x + 2)) +
               "]";
      return;
    }
    case attribute::kMaxRegistersPerBlock:
      *value = gpu.Attribute(kMaxRegisters);
      return;
    case attribute::kApiVersion:
      *value = gpu.driver_version;
      return;
    case attribute::kL2CacheSizeBytes:
      *value = gpu.Attribute(kL2Bytes);
      return;
    case attribute::kTotalGlobalMemory:
    case attribute::kAvailableGlobalMemory:
      FARM_DRIVER(cuMemGetInfo_v2, &free, &total);
      *value = static_cast<int64_t>(kind == attribute::kTotalGlobalMemory ? total : free);
      return;
    default:
      return;
  }
}

void CudaDeviceApi::CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset,
                                   size_t bytes, Device from_device, Device to_device, DLDataType,
                                   Handle stream) {
  const bool from_gpu = from_device.device_type == kDLCUDA,
             to_gpu = to_device.device_type == kDLCUDA;
  const void* source = static_cast<const char*>(from) + from_offset;
  void* target = static_cast<char*>(to) + to_offset;
  if (from_gpu) GpuOf(from_device);
  if (to_gpu) GpuOf(to_device);
  if (from_gpu != to_gpu)
    MustNotBeRecorded(from_gpu ? "copies to the host" : "copies from the host");
  if (from_gpu && to_gpu) {
    if (IsRecording()) stream = CurrentStream();
    FARM_DRIVER(cuMemcpyDtoDAsync_v2, AddressOf(target, 0), AddressOf(source, 0), bytes, stream);
  } else if (from_gpu) {
    FARM_DRIVER(cuMemcpyDtoHAsync_v2, target, AddressOf(source, 0), bytes, stream);
  } else if (to_gpu) {
    FARM_DRIVER(cuMemcpyHtoDAsync_v2, AddressOf(target, 0), source, bytes, stream);
  } else {
    memcpy(target, source, bytes);
  }
}

// Between two events in the stream: what the GPU took, without the way there and back.
class EventTimer final : public tvm::runtime::TimerNode {
 public:
  EventTimer() {
    FARM_DRIVER(cuEventCreate, &begin_, 0);
    FARM_DRIVER(cuEventCreate, &end_, 0);
  }
  ~EventTimer() final {
    TheDriver().cuEventDestroy_v2(begin_);
    TheDriver().cuEventDestroy_v2(end_);
  }
  void Start() final { FARM_DRIVER(cuEventRecord, begin_, CurrentStream()); }
  void Stop() final { FARM_DRIVER(cuEventRecord, end_, CurrentStream()); }
  int64_t SyncAndGetElapsedNanos() final {
    float milliseconds = 0;
    FARM_DRIVER(cuEventSynchronize, end_);
    FARM_DRIVER(cuEventElapsedTime, &milliseconds, begin_, end_);
    return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  }
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("farm.CudaEventTimer", EventTimer, tvm::runtime::TimerNode);

 private:
  Handle begin_ = nullptr, end_ = nullptr;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("device_api.cuda", [] { return static_cast<void*>(CudaDeviceApi::Global()); })
      .def("runtime.timer.cuda", [](Device device) {
        GpuOf(device);
        return tvm::runtime::Timer(tvm::ffi::make_object<EventTimer>());
      });
}

}  // namespace
}  // namespace farm::cuda
