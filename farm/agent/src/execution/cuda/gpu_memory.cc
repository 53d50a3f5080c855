#include "execution/cuda/gpu_memory.h"

#include <tvm/ffi/reflection/registry.h>

namespace farm::cuda {

GpuMemory& GpuMemory::Global() {
  static auto* all = new GpuMemory;  // never destroyed: tensors may outlive everything
  return *all;
}

GpuMemory::Buffer GpuMemory::Alloc(DLDevice device, size_t bytes, size_t alignment,
                                   DLDataType type) {
  if (!apart_) return PooledAllocator::Alloc(device, bytes, alignment, type);
  Buffer buffer = apart_->Alloc(device, bytes, alignment, type);
  in_use_apart_[buffer.data] = {buffer, apart_};
  return buffer;
}

void GpuMemory::Free(const Buffer& buffer) {
  if (!FreeApart(buffer.data)) PooledAllocator::Free(buffer);
}

bool GpuMemory::FreeApart(void* data) {
  auto found = in_use_apart_.find(data);
  if (found == in_use_apart_.end()) return false;
  const auto [buffer, pool] = found->second;
  in_use_apart_.erase(found);
  pool->Free(buffer);
  return true;
}

namespace {

// Under this name, less the kind of the device, which is empty for CUDA and for others, TVM's
// memory manager asks for an allocator; where it gets none, it makes its own.
TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("DeviceAllocator.", [](DLDevice device, int type) -> void* {
    using namespace tvm::runtime::memory;
    return device.device_type == kDLCUDA && type == kPooled
               ? static_cast<Allocator*>(&GpuMemory::Global())
               : nullptr;
  });
}

}  // namespace
}  // namespace farm::cuda
