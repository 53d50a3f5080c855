#include "base/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace farm {

void Fail(const std::string& what) {
  const ErrorCode code = errno == ENOSPC || errno == EDQUOT ? error::kDiskFull
                         : errno == ENOMEM                  ? error::kNoMemory
                                                            : error::kFile;
  throw IoError(code, what + ": " + strerror(errno));
}

void Log(const std::string& text) {
  time_t now = time(nullptr);
  tm local;
  localtime_r(&now, &local);
  char stamp[32];
  strftime(stamp, sizeof(stamp), "%F %T", &local);
  std::string line =
      std::string(stamp) + " farm-agent[" + std::to_string(getpid()) + "] " + text + "\n";
  ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  static_cast<void>(written);  // there is nobody to tell
}

double Now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::string InSeconds(double seconds) {
  char text[40];
  snprintf(text, sizeof(text), "%.1f s", seconds);
  return text;
}

int Fd::Release() {
  int fd = fd_;
  fd_ = -1;
  return fd;
}

void Fd::Reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

void WriteAll(int fd, const void* data, size_t size) {
  auto p = static_cast<const char*>(data);
  while (size) {
    ssize_t n = write(fd, p, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail("write");
    p += n;
    size -= static_cast<size_t>(n);
  }
}

std::string ReadText(const std::string& path) {
  Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char piece[4096];
  ssize_t n;
  while (file.valid() && text.size() < (1 << 20) &&
         (n = read(file.get(), piece, sizeof(piece))) > 0)
    text.append(piece, n);
  while (!text.empty() && (isspace(static_cast<unsigned char>(text.back())) || !text.back()))
    text.pop_back();
  return text;
}

std::string ReadFile(const std::string& path) {
  Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (!file.valid() || fstat(file.get(), &info)) Fail("cannot read " + path);
  if (!S_ISREG(info.st_mode))
    throw IoError(error::kFile, "cannot read " + path + ": not a regular file");
  std::string data(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < data.size()) {
    ssize_t n = read(file.get(), &data[done], data.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail("cannot read " + path);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  data.resize(done);
  return data;
}

namespace {

// Gives `write` the descriptor of a new file, which takes the place of `path` when all of it is
// written.
template <typename Write>
void Replace(const std::string& path, Write write) {
  std::string temporary = path + "." + RandomHex(4) + ".part";
  Fd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.valid()) Fail("cannot write " + path);
  try {
    write(file.get());
    if (close(file.Release()) || rename(temporary.c_str(), path.c_str())) Fail("close");
  } catch (const IoError& e) {
    unlink(temporary.c_str());
    throw IoError(e.code, "cannot write " + path + ": " + e.text());
  }
}

}  // namespace

void WriteFile(const std::string& path, const void* data, size_t size, bool durable) {
  Replace(path, [&](int file) {
    WriteAll(file, data, size);
    if (durable && fsync(file)) Fail("fsync");
  });
}

void CopyFile(const std::string& from, const std::string& to) {
  Fd source(open(from.c_str(), O_RDONLY | O_CLOEXEC));
  if (!source.valid()) Fail("cannot read " + from);
  Replace(to, [&](int file) {
    std::string piece(1 << 16, '\0');
    ssize_t n;
    while ((n = read(source.get(), &piece[0], piece.size())) != 0) {
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) Fail("read");
      WriteAll(file, piece.data(), static_cast<size_t>(n));
    }
    if (fsync(file)) Fail("fsync");
  });
}

void SyncDirectory(const std::string& path) {
  Fd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot, and do it by themselves.
  if (!directory.valid() || (fsync(directory.get()) && errno != EINVAL))
    Fail("cannot sync " + path);
}

void MakeDirectories(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    std::string part = path.substr(0, end);
    if (!part.empty() && mkdir(part.c_str(), 0700) && errno != EEXIST)
      Fail("cannot make directory " + part);
    if (end == std::string::npos) return;
  }
}

std::vector<std::string> ListDirectory(const std::string& path, bool hidden) {
  std::vector<std::string> names;
  if (DIR* d = opendir(path.c_str())) {
    while (dirent* entry = readdir(d)) {
      const std::string name = entry->d_name;
      if (hidden ? name != "." && name != ".." : name[0] != '.') names.push_back(name);
    }
    closedir(d);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void RemoveTree(const std::string& path) {
  auto remove_one = [](const char* name, const struct stat*, int, FTW*) {
    remove(name);
    return 0;
  };
  nftw(path.c_str(), remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

std::string RandomHex(int count) {
  std::string bytes(static_cast<size_t>(count), '\0'), hex;
  Fd source(open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  if (!source.valid() ||
      read(source.get(), &bytes[0], bytes.size()) != static_cast<ssize_t>(bytes.size()))
    Fail("/dev/urandom");
  for (unsigned char byte : bytes) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

}  // namespace farm
