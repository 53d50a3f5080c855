// Own stand-in for a header that the apache-tvm wheel leaves out: tensors as JSON are not
// something a device agent does, so these streams only refuse.
#pragma once
#include "bytes_io.h"
namespace tvm {
namespace support {
struct NoBase64Stream : Stream {
  using Stream::Read;
  using Stream::Write;
  explicit NoBase64Stream(Stream*) {}
  size_t Read(void*, size_t) override { return Refuse(); }
  size_t Write(const void*, size_t) override { return Refuse(); }
  void InitPosition() {}
  void Finish() {}
  static size_t Refuse() {
    TVM_FFI_THROW(InternalError) << "base64 tensors are not supported on the device";
    return 0;
  }
};
using Base64InStream = NoBase64Stream;
using Base64OutStream = NoBase64Stream;
}  // namespace support
}  // namespace tvm
