// One process at a time: flock(2) on a file that is there for nothing else.
#pragma once
#include <string>

#include "base/io.h"

namespace farm {

// Holds the lock for as long as it lives; the system lets go of it with the process, however that
// ends.
class FileLock {
 public:
  // Waits for those who have it, a minute at most; IoError then.
  explicit FileLock(const std::string& path);

 private:
  Fd file_;
};

}  // namespace farm
