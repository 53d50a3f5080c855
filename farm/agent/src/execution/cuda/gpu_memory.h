// The memory of the tensors that TVM's virtual machine makes on the GPU: a pool for all; and, for a
// recorded inference, one of its own, as its kernels go on using the addresses that they were
// recorded with.
#pragma once
#include <memory>
#include <unordered_map>

#include "runtime/memory/pooled_allocator.h"

namespace farm::cuda {

// What a graph uses. Gives nothing back before its end: where there is no room, TVM's pool would
// give back what recorded kernels write to.
class GraphMemory final : public tvm::runtime::memory::PooledAllocator {
  void ReleaseAll() final {}
};

class GpuMemory final : public tvm::runtime::memory::PooledAllocator {
 public:
  using Buffer = tvm::runtime::memory::Buffer;

  static GpuMemory& Global();

  Buffer Alloc(DLDevice device, size_t bytes, size_t alignment, DLDataType type) final;
  void Free(const Buffer& buffer) final;

  // From now on, memory comes from this pool, which lives until the last tensor in it has gone;
  // with null, from the one for all again.
  void SetApart(std::shared_ptr<GraphMemory> pool) { apart_ = std::move(pool); }
  bool is_apart() const { return apart_ != nullptr; }

  // Whether this lies in a pool apart, which has it back now.
  bool FreeApart(void* data);

 private:
  std::shared_ptr<GraphMemory> apart_;
  std::unordered_map<void*, std::pair<Buffer, std::shared_ptr<GraphMemory>>> in_use_apart_;
};

}  // namespace farm::cuda
