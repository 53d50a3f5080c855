#include "store/file_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/io.h"
#include "base/paths.h"
#include "base/sha256.h"
#include "store/releases.h"

namespace farm {
namespace {

constexpr time_t kAbandonedS = 24 * 3600,
                 kIdleS =
                     3600;  // since something came: to be swept; to make room like a whole file
constexpr int64_t kMaxFileBytes = int64_t{1} << 40;
const char kPart[] = ".part";

// A file in the store's directory, whole or not.
struct StoredFile {
  std::string name;
  uint64_t size, freed;  // bytes; `freed` when it goes
  timespec used;
};

std::vector<StoredFile> StoredFiles(const std::string& directory) {
  std::vector<StoredFile> files;
  for (const std::string& name : ListDirectory(directory)) {
    struct stat info;
    if (lstat((directory + "/" + name).c_str(), &info) || !S_ISREG(info.st_mode)) continue;
    auto size = static_cast<uint64_t>(info.st_size);
    files.push_back({name, size, info.st_nlink > 1 ? 0 : size, info.st_mtim});
  }
  return files;
}

uint64_t FreeBytes(const std::string& directory) {
  struct statvfs disk;
  return statvfs(directory.c_str(), &disk) ? 0 : uint64_t{disk.f_bavail} * disk.f_frsize;
}

// Another name for the same bytes where the file system allows it, else a copy. Takes the place of
// `to`, if there is one.
void LinkOrCopy(const std::string& from, const std::string& to) {
  std::string temporary = to + "." + RandomHex(4) + kPart;
  if (link(from.c_str(), temporary.c_str()) == 0) {
    if (rename(temporary.c_str(), to.c_str()) == 0) {
      unlink(
          temporary.c_str());  // rename(2) does nothing where both names already are the same file
      return;
    }
    unlink(temporary.c_str());
  }
  CopyFile(from, to);
}

// A sender whose connection has broken may be about to write still. The kernel grants a lease when
// there is none; see fcntl(2).
bool IsBeingWritten(const std::string& path) {
  Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return false;
  if (fcntl(file.get(), F_SETLEASE, F_RDLCK) == 0) {
    fcntl(file.get(), F_SETLEASE, F_UNLCK);
    return false;
  }
  return errno == EAGAIN;
}

void Touch(const std::string& path) { utimensat(AT_FDCWD, path.c_str(), nullptr, 0); }

}  // namespace

Store::Store(std::string directory, std::string work, uint64_t budget_bytes)
    : directory_(std::move(directory)), work_(std::move(work)), budget_bytes_(budget_bytes) {}

FileLock Store::Lock() const {
  MakeDirectories(directory_);
  return FileLock(directory_ + "/.lock");
}

std::string Store::Kept(const std::string& digest) const {
  if (!IsDigest(digest))
    throw IoError(error::kUpload, "not a SHA-256 digest (64 lowercase hexadecimal digits): " +
                                      digest.substr(0, 100));
  return directory_ + "/" + digest;
}

int64_t Store::Has(const std::string& digest) {
  const std::string kept = Kept(digest);
  struct stat info;
  if (stat(kept.c_str(), &info) || !S_ISREG(info.st_mode)) return -1;
  Touch(kept);
  used_.insert(digest);
  return info.st_size;
}

int64_t Store::Begin(const std::string& digest, int64_t size) {
  const std::string part = Part(digest);
  if (size < 0 || size > kMaxFileBytes)
    throw IoError(error::kUpload, "a file cannot have " + std::to_string(size) + " bytes");
  FileLock lock = Lock();
  begun_[digest] = static_cast<uint64_t>(size);
  if (Has(digest) >= 0) return size;
  struct stat info;
  bool begun = lstat(part.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  if (begun && info.st_size > size) begun = unlink(part.c_str()) != 0;
  const int64_t offset = begun ? info.st_size : 0;
  MakeRoom(digest, static_cast<uint64_t>(size), static_cast<uint64_t>(size - offset));
  // Apart from one who was cut off, and whose last bytes may come yet.
  if (offset && offset < size && IsBeingWritten(part)) CopyFile(part, part);
  Fd file(open(part.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) Fail("cannot write to the store");
  return offset;
}

void Store::MakeRoom(const std::string& digest, uint64_t size, uint64_t missing) {
  const std::set<std::string> deployed = Releases(directory_).Digests();
  const time_t now = time(nullptr);
  std::vector<StoredFile> evictable;
  uint64_t fixed = 0, loose = 0, freeable = 0;
  for (StoredFile& file : StoredFiles(directory_)) {
    if (file.name == digest + kPart) continue;
    const bool on_its_way = !IsDigest(file.name) && now - file.used.tv_sec < kIdleS;
    if (on_its_way || deployed.count(file.name) || used_.count(file.name)) {
      fixed += file.size;
    } else {
      loose += file.size;
      freeable += file.freed;
      evictable.push_back(std::move(file));
    }
  }
  if (fixed + size > budget_bytes_) {
    throw IoError(error::kStoreFull,
                  "the store's budget of " + std::to_string(budget_bytes_) +
                      " bytes has no room for " + std::to_string(size) + ": " +
                      std::to_string(fixed) +
                      " are deployed or in use; undeploy something, or raise the budget");
  }
  uint64_t available = FreeBytes(directory_);
  if (available + freeable < missing) {
    throw IoError(error::kDiskFull, "No space left on device: the store's disk has " +
                                        std::to_string(available) + " bytes free, " +
                                        std::to_string(missing) + " are wanted");
  }
  auto earlier = [](const StoredFile& a, const StoredFile& b) {
    return std::make_pair(a.used.tv_sec, a.used.tv_nsec) <
           std::make_pair(b.used.tv_sec, b.used.tv_nsec);
  };
  std::sort(evictable.begin(), evictable.end(), earlier);
  for (const StoredFile& file : evictable) {
    if (fixed + loose + size <= budget_bytes_ && available >= missing) break;
    if (unlink((directory_ + "/" + file.name).c_str())) Fail("cannot make room in the store");
    loose -= file.size;
    available += file.freed;
  }
}

void Store::Write(const std::string& digest, int64_t offset, const void* data, size_t size) {
  const std::string part = Part(digest);
  auto begun = begun_.find(digest);
  if (begun == begun_.end())
    throw IoError(error::kUpload, "nothing was begun in this session for " + digest);
  if (offset < 0 || static_cast<uint64_t>(offset) > begun->second ||
      size > begun->second - static_cast<uint64_t>(offset)) {
    throw IoError(error::kUpload,
                  "what was sent for " + digest + " leads past the size it was begun with");
  }
  Fd file(open(part.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid() && errno == ENOENT) {
    FileLock lock = Lock();  // another session was faster, and may be verifying it still
    if (Has(digest) >= 0) return;
    throw IoError(error::kUpload, "nothing was begun for " + digest + ", or it is there no longer");
  }
  struct stat info;
  if (!file.valid() || fstat(file.get(), &info)) Fail("cannot write to the store");
  if (offset > info.st_size) {
    throw IoError(error::kUpload, "what was sent for " + digest + " leaves a gap after " +
                                      std::to_string(info.st_size) + " bytes");
  }
  if (lseek(file.get(), offset, SEEK_SET) != offset) Fail("cannot write to the store");
  WriteAll(file.get(), data, size);
}

void Store::Finish(const std::string& digest) {
  const std::string part = Part(digest), mine = Kept(digest) + "." + RandomHex(4) + kPart;
  FileLock lock =
      Lock();  // until it is verified: another session that sends the same waits, and finds it here
  if (Has(digest) >= 0) {
    unlink(part.c_str());
    return;
  }
  struct stat info;
  if (lstat(part.c_str(), &info)) throw IoError(error::kUpload, "nothing was begun for " + digest);
  auto begun = begun_.find(digest);
  if (begun != begun_.end() && static_cast<uint64_t>(info.st_size) < begun->second) {
    throw IoError(error::kUpload, "incomplete: of " + digest + " came " +
                                      std::to_string(info.st_size) + " of " +
                                      std::to_string(begun->second) + " bytes");
  }
  if (rename(part.c_str(), mine.c_str())) Fail("cannot keep " + digest);
  try {
    VerifyAndKeep(digest, mine);
  } catch (...) {
    unlink(mine.c_str());
    throw;
  }
  used_.insert(digest);
}

void Store::VerifyAndKeep(const std::string& digest, const std::string& file) {
  if (IsBeingWritten(file)) CopyFile(file, file);
  std::string found = Sha256OfFile(file);
  if (found != digest)
    throw IoError(error::kDigest, "digest mismatch: what came has " + found + ", not " + digest);
  // On the disk before it has its name there: a board that loses power must not find half a file.
  Fd whole(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!whole.valid() || fchmod(whole.get(), 0400) || fsync(whole.get()))
    Fail("cannot keep " + digest);
  if (rename(file.c_str(), Kept(digest).c_str())) Fail("cannot keep " + digest);
  SyncDirectory(directory_);
  Touch(Kept(digest));
}

void Store::Link(const std::string& digest, const std::string& name) {
  CheckPlainName(name);
  if (Has(digest) < 0) throw IoError(error::kStoreLost, "the store has no file " + digest);
  LinkOrCopy(Kept(digest), Inside(work_, name));
}

std::string Store::UsageAsJson() const {
  const std::set<std::string> deployed = Releases(directory_).Digests();
  uint64_t bytes = 0, files = 0, deployed_bytes = 0;
  for (const StoredFile& file : StoredFiles(directory_)) {
    bytes += file.size;
    files += IsDigest(file.name);
    deployed_bytes += deployed.count(file.name) ? file.size : 0;
  }
  const std::pair<const char*, uint64_t> usage[] = {{"bytes", bytes},
                                                    {"files", files},
                                                    {"deployed_bytes", deployed_bytes},
                                                    {"budget_bytes", budget_bytes_},
                                                    {"free_bytes", FreeBytes(directory_)}};
  std::string out;
  for (const auto& [name, value] : usage)
    out += std::string(out.empty() ? "{\"" : ", \"") + name + "\": " + std::to_string(value);
  return out + "}";
}

void SweepStore(const std::string& directory) {
  SweepReleases(directory);
  for (const StoredFile& file : StoredFiles(directory)) {
    const size_t stem = file.name.size() - std::min(file.name.size(), sizeof(kPart) - 1);
    bool half = file.name.compare(stem, std::string::npos, kPart) == 0;
    if (half && time(nullptr) - file.used.tv_sec > kAbandonedS)
      unlink((directory + "/" + file.name).c_str());
  }
}

}  // namespace farm
