// Descriptors, files, the clock and the log: what the rest of the agent stands on.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error_code.h"

namespace farm {

// Something outside failed. The text is for the person at the other end: what was tried, and why it
// failed. what() begins with the code.
struct IoError : std::runtime_error {
  IoError(ErrorCode code, const std::string& text)
      : std::runtime_error(Coded(code, text)), code(code) {}
  std::string text() const { return what() + std::string(code.name()).size() + 2; }

  ErrorCode code;
};

// Throws an IoError that ends with errno's text. Its code says whether a disk or the memory is
// full.
[[noreturn]] void Fail(const std::string& what);

// One line on stderr, with the time.
void Log(const std::string& text);

// Seconds of the monotonic clock.
double Now();

// "1.5 s"
std::string InSeconds(double seconds);

// Owns a descriptor.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~Fd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release();
  void Reset(int fd = -1);

 private:
  int fd_;
};

// Write or read exactly `size` bytes; IoError when that is not possible.
void WriteAll(int fd, const void* data, size_t size);

// What one small file says, without the white space at its end; empty when it cannot be read.
std::string ReadText(const std::string& path);

// A whole file. IoError when it cannot be read.
std::string ReadFile(const std::string& path);

// Writes under a temporary name, then renames: `path` is whole or as it was, and never shares its
// bytes with a hard link made before. IoError with the system's reason, "No space left on device"
// for one. `durable`: even if the power fails right after.
void WriteFile(const std::string& path, const void* data, size_t size, bool durable = false);

// Copies a file the same way, durably. Both may be the same: a file of its own then, apart from
// hard links and open descriptors.
void CopyFile(const std::string& from, const std::string& to);

// Has what was renamed, linked or removed in a directory reach the disk.
void SyncDirectory(const std::string& path);

// Makes a directory and those above it, for this user only; one that exists stays as it is.
void MakeDirectories(const std::string& path);

// The names in a directory, sorted; those that start with a dot only if asked for. Empty when there
// is no such directory.
std::vector<std::string> ListDirectory(const std::string& path, bool hidden = false);

// Removes a file or a directory with all that is in it; follows no symbolic link.
void RemoveTree(const std::string& path);

// `count` random bytes as lowercase hexadecimal digits.
std::string RandomHex(int count);

}  // namespace farm
