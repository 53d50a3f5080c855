// Own stand-in for a header that the apache-tvm wheel leaves out.
#pragma once
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string>
namespace tvm {
namespace support {
inline bool IsNumber(const std::string& s) {
  return !s.empty() &&
         std::all_of(s.begin(), s.end(), [](unsigned char c) { return std::isdigit(c); });
}
inline bool StartsWith(const ffi::String& s, const char* prefix) {
  size_t n = std::strlen(prefix);
  return s.size() >= n && std::memcmp(s.data(), prefix, n) == 0;
}
}  // namespace support
}  // namespace tvm
