#include "rpc/work_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_lock.h"

namespace farm {
namespace {

const char kSessionPrefix[] = "farm-session-";

// Making one and locking it are two steps; a sweep must not come in between.
FileLock LockBase(const std::string& base) { return FileLock(base + "/.lock"); }

Fd OpenFolder(const std::string& path) {
  return Fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

}  // namespace

WorkDirectory::WorkDirectory(const std::string& base) {
  FileLock lock = LockBase(base);
  path_ = base + "/" + kSessionPrefix + std::to_string(getpid()) + "-XXXXXX";
  if (!mkdtemp(&path_[0])) Fail("cannot make a work directory " + path_);
  lock_ = OpenFolder(path_);
  flock(lock_.get(), LOCK_EX | LOCK_NB);
}

WorkDirectory::~WorkDirectory() { RemoveTree(path_); }

void SweepWorkDirectories(const std::string& base) {
  FileLock lock = LockBase(base);
  for (const std::string& name : ListDirectory(base)) {
    const std::string path = base + "/" + name;
    if (name.compare(0, sizeof(kSessionPrefix) - 1, kSessionPrefix)) continue;
    Fd folder = OpenFolder(path);
    struct stat info;
    if (!folder.valid() || fstat(folder.get(), &info) || info.st_uid != geteuid()) continue;
    if (flock(folder.get(), LOCK_EX | LOCK_NB) == 0) RemoveTree(path);
  }
}

uint64_t BytesIn(const std::string& path) {
  uint64_t bytes = 0;
  for (const std::string& name : ListDirectory(path, /*hidden=*/true)) {
    const std::string entry = path + "/" + name;
    struct stat info;
    if (lstat(entry.c_str(), &info)) continue;
    if (S_ISDIR(info.st_mode)) bytes += BytesIn(entry);
    if (S_ISREG(info.st_mode) && info.st_nlink == 1) bytes += static_cast<uint64_t>(info.st_size);
  }
  return bytes;
}

}  // namespace farm
