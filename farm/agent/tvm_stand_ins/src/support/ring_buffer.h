// Own stand-in for a header that the apache-tvm wheel leaves out: the byte queue of an RPC
// endpoint. Kept linear: the bytes lie in buffer_[head_, head_ + size_), which one memmove for a
// large message allows.
#pragma once
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
namespace tvm {
namespace support {
class RingBuffer {
 public:
  static const int kInitCapacity = 4 << 10;
  RingBuffer() { Resize(kInitCapacity); }
  size_t bytes_available() const { return size_; }
  size_t capacity() const { return capacity_; }
  // TVM asks for as much as its peer promises to send. Memory is taken for what comes, and given
  // back here when little is expected.
  void Reserve(size_t n) {
    if (size_ == 0 && capacity_ > kInitCapacity && n < capacity_ / 8) Resize(kInitCapacity);
  }
  void Read(void* out, size_t n) {
    TVM_FFI_ICHECK_GE(size_, n);
    if (n) std::memcpy(out, buffer_.get() + head_, n);
    Drop(n);
  }
  void Write(const void* data, size_t n) {
    MakeRoom(n);
    if (n) std::memcpy(buffer_.get() + head_ + size_, data, n);
    size_ += n;
  }
  template <typename FSend>
  size_t ReadWithCallback(FSend send, size_t max_nbytes) {
    size_t n = send(buffer_.get() + head_, std::min(max_nbytes, size_));
    Drop(n);
    return n;
  }
  template <typename FRecv>
  size_t WriteWithCallback(FRecv recv, size_t max_nbytes) {
    max_nbytes = std::min(max_nbytes, std::max(kPiece, size_));
    MakeRoom(max_nbytes);
    size_t n = recv(buffer_.get() + head_ + size_, max_nbytes);
    size_ += n;
    return n;
  }

 private:
  static constexpr size_t kPiece = 256 << 10;

  void MakeRoom(size_t n) {
    if (n <= capacity_ - head_ - size_) return;
    if (head_) std::memmove(buffer_.get(), buffer_.get() + head_, size_);
    head_ = 0;
    if (n > capacity_ - size_) Resize(size_ + n + n / 8);
  }
  void Resize(size_t n) {
    void* memory = std::realloc(buffer_.get(), n);
    if (!memory) throw std::bad_alloc();
    static_cast<void>(buffer_.release());
    buffer_.reset(static_cast<char*>(memory));
    capacity_ = n;
  }
  void Drop(size_t n) {
    size_ -= n;
    head_ = size_ ? head_ + n : 0;
  }

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> buffer_;
  size_t capacity_{0}, head_{0}, size_{0};
};
}  // namespace support
}  // namespace tvm
