// Own stand-in for a header that the apache-tvm wheel leaves out: streams from and to bytes in
// memory.
#pragma once
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tvm {
namespace support {

// Reads from bytes that outlive the stream.
class BytesInStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;
  BytesInStream(const char* data, size_t size) : data_(data), left_(size) {}
  explicit BytesInStream(const std::string& bytes) : BytesInStream(bytes.data(), bytes.size()) {}
  explicit BytesInStream(const ffi::Bytes& bytes) : BytesInStream(bytes.data(), bytes.size()) {}

  size_t Read(void* out, size_t size) override {
    size = std::min(size, left_);
    if (size) std::memcpy(out, data_, size);
    data_ += size;
    left_ -= size;
    return size;
  }
  size_t Write(const void*, size_t) override {
    TVM_FFI_THROW(InternalError) << "this stream can only be read";
    return 0;
  }

 private:
  const char* data_;
  size_t left_;
};

class BytesOutStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;
  explicit BytesOutStream(std::string* out) : out_(out) {}

  size_t Read(void*, size_t) override {
    TVM_FFI_THROW(InternalError) << "this stream can only be written";
    return 0;
  }
  size_t Write(const void* data, size_t size) override {
    out_->append(static_cast<const char*>(data), size);
    return size;
  }

 private:
  std::string* out_;
};

}  // namespace support
}  // namespace tvm
