#include "base/file_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace farm {
namespace {

constexpr double kMaxWaitS = 60;
constexpr useconds_t kPollUs = 10000;

}  // namespace

FileLock::FileLock(const std::string& path)
    : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
  if (!file_.valid()) Fail("cannot lock " + path);
  const double began = Now();
  while (flock(file_.get(), LOCK_EX | LOCK_NB)) {
    if (errno != EWOULDBLOCK && errno != EINTR) Fail("cannot lock " + path);
    if (Now() - began > kMaxWaitS)
      throw IoError(
          error::kStoreBusy,
          "cannot lock " + path + ": another session has held it for " + InSeconds(kMaxWaitS));
    usleep(kPollUs);
  }
}

}  // namespace farm
