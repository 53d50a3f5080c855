// A folder for one session, which goes with it.
#pragma once
#include <string>

#include "base/io.h"

namespace farm {

class WorkDirectory {
 public:
  // Makes one in the folder `base`, and locks it: the lock goes when this process and its children
  // have ended, however they end.
  explicit WorkDirectory(const std::string& base);
  ~WorkDirectory();
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Fd lock_;
};

// Removes the ones in `base` that nobody has locked any more.
void SweepWorkDirectories(const std::string& base);

// Bytes of the files in a folder and below it; a file that has another name elsewhere (in the
// store) takes no room of its own.
uint64_t BytesIn(const std::string& path);

}  // namespace farm
