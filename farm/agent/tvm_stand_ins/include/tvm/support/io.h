// Own stand-in for a header that the apache-tvm wheel leaves out: the byte stream that TVM
// serializes to.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tvm {
namespace support {

// How a type T goes to and from a stream; see serializer.h.
template <typename T, typename Enable = void>
struct Serializer {
  static constexpr bool enabled = false;
};

class Stream {
 public:
  virtual ~Stream() = default;

  // Returns the number of bytes read, less than `size` at the end of the stream.
  virtual size_t Read(void* data, size_t size) = 0;
  virtual size_t Write(const void* data, size_t size) = 0;

  template <typename T>
  void Write(const T& value) {
    Serializer<T>::Write(this, value);
  }
  template <typename T>
  bool Read(T* value) {
    return Serializer<T>::Read(this, value);
  }
  template <typename T>
  void WriteArray(const T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) Write<T>(values[i]);
  }
  template <typename T>
  bool ReadArray(T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (!Read<T>(values + i)) return false;
    }
    return true;
  }
};

// Bytes need no loop.
template <>
inline void Stream::WriteArray<char>(const char* values, size_t count) {
  Write(static_cast<const void*>(values), count);
}
template <>
inline bool Stream::ReadArray<char>(char* values, size_t count) {
  return Read(static_cast<void*>(values), count) == count;
}

}  // namespace support
}  // namespace tvm
