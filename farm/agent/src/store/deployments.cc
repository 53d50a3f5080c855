#include "store/deployments.h"

#include "base/io.h"

namespace farm {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

bool AreTheSame(const Manifest& a, const Manifest& b) {
  return a.Text("artifact") == b.Text("artifact") && a.files() == b.files();
}

}  // namespace

int64_t Deployments::Install(const std::string& text) {
  Manifest manifest(text);
  FileLock lock = store_->Lock();
  for (const auto& [file, digest] : manifest.files()) {
    if (store_->Has(digest) < 0)
      throw IoError(error::kStoreLost, "the store has no file " + digest + ", which is " + file +
                                           " of " + manifest.name());
  }
  const int current = releases_.Current(manifest.name());
  auto before = releases_.Read(manifest.name(), current);
  if (before && AreTheSame(*before, manifest)) return current;
  const auto numbers = releases_.Numbers(manifest.name());
  manifest.SetRelease(numbers.empty() ? 1 : numbers.front() + 1);
  releases_.Add(manifest);
  releases_.SetCurrent(manifest.name(), manifest.release());
  releases_.Prune(manifest.name());
  return manifest.release();
}

std::string Deployments::ListAsJson() const {
  json::Array all;
  for (const std::string& name : releases_.Names()) {
    json::Array manifests;
    for (int release : releases_.Numbers(name)) {
      if (auto manifest = releases_.Read(name, release)) manifests.push_back(manifest->json());
    }
    const int current = releases_.Current(name);
    if (!current) continue;  // its first installation was interrupted
    json::Object entry;
    entry.Set(String("name"), String(name));
    entry.Set(String("current"), int64_t{current});
    entry.Set(String("releases"), manifests);
    all.push_back(entry);
  }
  return json::Stringify(all);
}

Manifest Deployments::Open(const std::string& name) {
  FileLock lock = store_->Lock();
  Manifest manifest = Read(name, Current(name));
  for (const auto& [file, digest] : manifest.files()) store_->Link(digest, file);
  return manifest;
}

Manifest Deployments::Rollback(const std::string& name, int64_t release) {
  FileLock lock = store_->Lock();
  const int current = Current(name);
  int found = 0;
  for (int number : releases_.Numbers(name)) {
    if (!found && (release ? number == release : number < current)) found = number;
  }
  if (!found && !release)
    throw IoError(error::kNoRelease,
                  name + " has no earlier release than " + std::to_string(current));
  if (!found) throw IoError(error::kNoRelease, name + " has no release " + std::to_string(release));
  Manifest manifest = Read(name, found);
  releases_.SetCurrent(name, found);
  return manifest;
}

void Deployments::Remove(const std::string& name) {
  FileLock lock = store_->Lock();
  Current(name);
  releases_.Remove(name);
}

int Deployments::Current(const std::string& name) const {
  const int current = releases_.Current(name);
  if (!current) throw IoError(error::kNotDeployed, "nothing named \"" + name + "\" is deployed");
  return current;
}

Manifest Deployments::Read(const std::string& name, int release) const {
  auto manifest = releases_.Read(name, release);
  if (!manifest)
    throw IoError(error::kStoreLost, "release " + std::to_string(release) + " of " + name +
                                         " is damaged: deploy it again");
  return *manifest;
}

}  // namespace farm
