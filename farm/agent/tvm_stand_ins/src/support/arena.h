// Own stand-in for a header that the apache-tvm wheel leaves out: memory that lives until
// RecycleAll.
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>
namespace tvm {
namespace support {
class Arena {
 public:
  template <typename T>
  T* allocate_(int count = 1) {
    // TVM passes what its peer says, cut to an int.
    if (count < 0 || static_cast<size_t>(count) > kMax / sizeof(T)) throw std::bad_alloc();
    // double-word aligned: enough for the RPC packet structs and DLTensor
    size_t nbytes = (sizeof(T) * static_cast<size_t>(count) + 15) & ~size_t(15);
    if (nbytes > pages_.back().second - used_) {
      size_t size = std::max<size_t>(nbytes, kPage);
      pages_.emplace_back(std::unique_ptr<Unit[]>(new Unit[size / sizeof(Unit)]), size);
      used_ = 0;
    }
    void* p = reinterpret_cast<char*>(pages_.back().first.get()) + used_;
    used_ += nbytes;
    return static_cast<T*>(p);
  }
  template <typename T, typename... Args>
  T* make(Args&&... args) {
    return new (allocate_<T>()) T(std::forward<Args>(args)...);
  }
  void RecycleAll() {
    pages_.resize(1);
    used_ = 0;
  }
  Arena() { pages_.emplace_back(std::make_unique<Unit[]>(kPage / sizeof(Unit)), kPage); }

 private:
  struct alignas(16) Unit {
    char bytes[16];
  };
  static constexpr size_t kPage = 16 << 10, kMax = size_t(1) << 31;
  std::vector<std::pair<std::unique_ptr<Unit[]>, size_t>> pages_;
  size_t used_{0};
};
}  // namespace support
}  // namespace tvm
