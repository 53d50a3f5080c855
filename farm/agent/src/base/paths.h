// Names that come from outside, and where they may lead.
#pragma once
#include <string>

namespace farm {

// Throws an IoError unless `name` is that of a file, and no path: without "/" and "..", no leading
// ".", at most 100 bytes.
void CheckPlainName(const std::string& name);

// 64 lowercase hexadecimal digits.
bool IsDigest(const std::string& text);

// The path of `name` in the folder `root`. Relative names are meant from there; absolute ones, ".."
// and symbolic links that lead out of it are refused by an IoError.
std::string Inside(const std::string& root, const std::string& name);

}  // namespace farm
