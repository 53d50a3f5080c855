// Own stand-in for a header that the apache-tvm wheel leaves out: the byte queue of an RPC endpoint.
// Kept linear (bytes live in buf_[head_, head_ + size_)), which one big memmove per message allows.
#pragma once
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>
#include <vector>
namespace tvm {
namespace support {
class RingBuffer {
 public:
  static const int kInitCapacity = 4 << 10;
  RingBuffer() : buf_(kInitCapacity) {}
  size_t bytes_available() const { return size_; }
  size_t capacity() const { return buf_.size(); }
  // Make room for n bytes in all, the ones already held included.
  void Reserve(size_t n) {
    n = std::max(n, size_);
    if (head_ + n <= buf_.size() && !(buf_.size() > n * 8 && buf_.size() > kInitCapacity)) return;
    if (n > buf_.size() || buf_.size() > n * 8) {
      std::vector<char> next(std::max<size_t>(n + n / 8, kInitCapacity));
      if (size_) std::memcpy(next.data(), buf_.data() + head_, size_);
      buf_.swap(next);
    } else if (size_) {
      std::memmove(buf_.data(), buf_.data() + head_, size_);
    }
    head_ = 0;
  }
  void Read(void* out, size_t n) {
    TVM_FFI_ICHECK_GE(size_, n);
    if (n) std::memcpy(out, buf_.data() + head_, n);
    Drop(n);
  }
  void Write(const void* data, size_t n) {
    Reserve(size_ + n);
    if (n) std::memcpy(buf_.data() + head_ + size_, data, n);
    size_ += n;
  }
  template <typename FSend>
  size_t ReadWithCallback(FSend send, size_t max_nbytes) {
    size_t n = send(buf_.data() + head_, std::min(max_nbytes, size_));
    Drop(n);
    return n;
  }
  template <typename FRecv>
  size_t WriteWithCallback(FRecv recv, size_t max_nbytes) {
    Reserve(size_ + max_nbytes);
    size_t n = recv(buf_.data() + head_ + size_, max_nbytes);
    size_ += n;
    return n;
  }

 private:
  void Drop(size_t n) {
    size_ -= n;
    head_ = size_ ? head_ + n : 0;
  }
  std::vector<char> buf_;
  size_t head_{0}, size_{0};
};
}  // namespace support
}  // namespace tvm
