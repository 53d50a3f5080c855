#include "store/releases.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "base/io.h"
#include "base/paths.h"

namespace farm {
namespace {

constexpr size_t kKeptReleases = 5;
const char kSuffix[] = ".json", kCurrent[] = "/current", kRemoved[] = "/.removed";

// The number in "12.json"; 0 for every other name.
int NumberIn(const std::string& file) {
  size_t digits = file.find_first_not_of("0123456789");
  if (digits == 0 || digits > 9 || file.compare(digits, std::string::npos, kSuffix)) return 0;
  return atoi(file.c_str());
}

}  // namespace

std::string Releases::Folder(const std::string& name) const {
  CheckPlainName(name);
  return models_ + "/" + name;
}

std::string Releases::File(const std::string& name, int release) const {
  return Folder(name) + "/" + std::to_string(release) + kSuffix;
}

std::vector<std::string> Releases::Names() const { return ListDirectory(models_); }

std::vector<int> Releases::Numbers(const std::string& name) const {
  std::vector<int> numbers;
  for (const std::string& file : ListDirectory(Folder(name))) {
    if (int number = NumberIn(file)) numbers.push_back(number);
  }
  std::sort(numbers.rbegin(), numbers.rend());
  return numbers;
}

int Releases::Current(const std::string& name) const {
  char target[64] = {};
  ssize_t n = readlink((Folder(name) + kCurrent).c_str(), target, sizeof(target) - 1);
  return n > 0 ? NumberIn(target) : 0;
}

std::optional<Manifest> Releases::Read(const std::string& name, int release) const {
  try {
    Manifest manifest(ReadFile(File(name, release)));
    manifest.SetRelease(release);
    return manifest;
  } catch (const IoError&) {
    return std::nullopt;
  }
}

std::set<std::string> Releases::Digests() const {
  std::set<std::string> digests;
  for (const std::string& name : Names()) {
    for (int release : Numbers(name)) {
      auto manifest = Read(name, release);
      if (!manifest) continue;
      for (const auto& [file, digest] : manifest->files()) digests.insert(digest);
    }
  }
  return digests;
}

void Releases::Add(const Manifest& manifest) {
  const std::string text = manifest.AsJson();
  MakeDirectories(Folder(manifest.name()));
  WriteFile(File(manifest.name(), manifest.release()), text.data(), text.size(), /*durable=*/true);
}

void Releases::SetCurrent(const std::string& name, int release) {
  const std::string target = std::to_string(release) + kSuffix, link = Folder(name) + kCurrent;
  const std::string temporary = Folder(name) + "/." + RandomHex(4);
  if (symlink(target.c_str(), temporary.c_str()) || rename(temporary.c_str(), link.c_str())) {
    int error = errno;
    unlink(temporary.c_str());
    errno = error;
    Fail("cannot switch " + name + " to release " + std::to_string(release));
  }
  SyncDirectory(Folder(name));
}

void Releases::Prune(const std::string& name) {
  const std::vector<int> numbers = Numbers(name);
  const int current = Current(name);
  for (size_t i = kKeptReleases; i < numbers.size(); ++i) {
    if (numbers[i] != current) unlink(File(name, numbers[i]).c_str());
  }
}

void Releases::Remove(const std::string& name) {
  // Renamed first: a half-removed deployment would still look like one.
  const std::string removed = models_ + kRemoved + RandomHex(4);
  if (rename(Folder(name).c_str(), removed.c_str())) Fail("cannot remove the deployment " + name);
  SyncDirectory(models_);
  RemoveTree(removed);
}

void SweepReleases(const std::string& store) {
  const std::string models = store + "/models";
  for (const std::string& name : ListDirectory(models, /*hidden=*/true)) {
    if (name.compare(0, strlen(kRemoved) - 1, kRemoved + 1) == 0) RemoveTree(models + "/" + name);
  }
}

}  // namespace farm
