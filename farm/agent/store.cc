#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io.h"
#include "sha256.h"

namespace farm {
namespace {

constexpr size_t kDigestDigits = 64;
constexpr time_t kHalfWrittenS = 3600;  // no write takes this long

// Another name for the same bytes where the file system allows it, else a copy. Takes the place of `to`, if there is one.
void LinkOrCopy(const std::string& from, const std::string& to) {
  std::string temporary = to + "." + RandomHex(4) + ".part";
  if (link(from.c_str(), temporary.c_str()) == 0) {
    if (rename(temporary.c_str(), to.c_str()) == 0) {
      unlink(temporary.c_str());  // rename(2) does nothing where both names already are the same file
      return;
    }
    unlink(temporary.c_str());
  }
  CopyFile(from, to);
}

}  // namespace

Store::Store(std::string directory, std::string work) : directory_(std::move(directory)), work_(std::move(work)) {}

std::string Store::Kept(const std::string& digest) const {
  if (digest.size() != kDigestDigits || digest.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw IoError("not a SHA-256 digest (64 lowercase hexadecimal digits): " + digest.substr(0, 100));
  }
  return directory_ + "/" + digest;
}

std::string Store::Work(const std::string& name) const {
  if (name.empty() || name == "." || name.find('/') != std::string::npos || name.find("..") != std::string::npos) {
    throw IoError("not a plain file name: " + name.substr(0, 100));
  }
  return work_ + "/" + name;
}

int64_t Store::Has(const std::string& digest) const {
  struct stat info;
  if (stat(Kept(digest).c_str(), &info) || !S_ISREG(info.st_mode)) return -1;
  return info.st_size;
}

void Store::Link(const std::string& digest, const std::string& name) const {
  std::string kept = Kept(digest), path = Work(name);
  if (Has(digest) < 0) throw IoError("the store has no file " + digest);
  LinkOrCopy(kept, path);
}

void Store::Keep(const std::string& name, const std::string& digest) const {
  std::string kept = Kept(digest), path = Work(name);
  std::string found = Sha256OfFile(path);
  if (found != digest) throw IoError("digest mismatch: " + name + " has " + found + ", not " + digest);
  MakeDirectories(directory_);
  // On the disk before it has its name there: a board that loses power must not find half a file.
  Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() || fsync(file.get())) Fail("cannot keep " + name);
  LinkOrCopy(path, kept);
}

void SweepStore(const std::string& directory) {
  for (const std::string& name : ListDirectory(directory)) {
    std::string path = directory + "/" + name;
    struct stat info;
    bool half = name.size() > kDigestDigits && lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
    if (half && time(nullptr) - info.st_mtime > kHalfWrittenS) unlink(path.c_str());
  }
}

}  // namespace farm
