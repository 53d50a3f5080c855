// SHA-256 (FIPS 180-4) of a file.
#pragma once
#include <string>

namespace farm {

// 64 lowercase hexadecimal digits. IoError when the file cannot be read.
std::string Sha256OfFile(const std::string& path);

}  // namespace farm
