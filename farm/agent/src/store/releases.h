// The releases of each deployment, as they lie in a store:
//
//   models/NAME/N.json    the manifest of release N
//   models/NAME/current   a symbolic link to one of them
//
// Whoever changes something holds the store's lock; readers need none.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/manifest.h"

namespace farm {

class Releases {
 public:
  explicit Releases(const std::string& store) : models_(store + "/models") {}

  // Of all deployments, sorted.
  std::vector<std::string> Names() const;
  // The numbers of a deployment's releases, newest first.
  std::vector<int> Numbers(const std::string& name) const;
  // The number of the one in use; 0 when nothing of that name is deployed.
  int Current(const std::string& name) const;
  // Nothing when there is no such release, or it cannot be read.
  std::optional<Manifest> Read(const std::string& name, int release) const;
  // The files that some release names.
  std::set<std::string> Digests() const;

  // Writes a release; it is not the current one yet.
  void Add(const Manifest& manifest);
  // From one to the other in one step, on the disk when it returns.
  void SetCurrent(const std::string& name, int release);
  // Leaves the newest five, and the current one.
  void Prune(const std::string& name);
  void Remove(const std::string& name);

 private:
  std::string Folder(const std::string& name) const;
  std::string File(const std::string& name, int release) const;

  std::string models_;
};

// Removes what was interrupted in the middle of its removal.
void SweepReleases(const std::string& store);

}  // namespace farm
