#include "base/paths.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <sstream>

#include "base/io.h"

namespace farm {
namespace {

constexpr size_t kMaxNameBytes = 100, kMaxPathBytes = 4000, kDigestDigits = 64;

bool IsPrintable(const std::string& text) {
  return std::none_of(text.begin(), text.end(),
                      [](unsigned char c) { return c < ' ' || c == 0x7f; });
}

// For an error: a stranger's text, short and without what a terminal would obey.
std::string Shown(const std::string& text) {
  std::string shown = text.substr(0, kMaxNameBytes);
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

bool IsAtOrUnder(const std::string& path, const std::string& root) {
  return path.compare(0, root.size(), root) == 0 &&
         (path.size() == root.size() || path[root.size()] == '/');
}

// Without symbolic links; empty when it leads nowhere.
std::string Real(const std::string& path) {
  char real[PATH_MAX];
  return realpath(path.c_str(), real) ? real : "";
}

}  // namespace

void CheckPlainName(const std::string& name) {
  bool plain = !name.empty() && name.size() <= kMaxNameBytes && name[0] != '.' &&
               name.find('/') == std::string::npos && name.find("..") == std::string::npos &&
               IsPrintable(name);
  if (!plain) throw IoError(error::kName, "not a plain file name: \"" + Shown(name) + "\"");
}

bool IsDigest(const std::string& text) {
  return text.size() == kDigestDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string Inside(const std::string& root, const std::string& name) {
  const IoError leads_out(error::kName,
                          "not inside the session's work directory: \"" + Shown(name) + "\"");
  if (name.size() > kMaxPathBytes || !IsPrintable(name)) throw leads_out;
  const bool absolute = name.compare(0, 1, "/") == 0;
  if (absolute && !IsAtOrUnder(name, root)) throw leads_out;
  std::istringstream parts(absolute ? name.substr(root.size()) : name);
  std::string path = root;
  for (std::string part; std::getline(parts, part, '/');) {
    if (part.empty() || part == ".") continue;
    if (part == "..") throw leads_out;
    path += "/" + part;
    struct stat info;
    if (lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode) &&
        !IsAtOrUnder(Real(path), Real(root)))
      throw leads_out;
  }
  return path;
}

}  // namespace farm
