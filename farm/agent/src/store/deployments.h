// Models that stay on the device: each name has releases, of which one is in use.
#pragma once
#include <memory>
#include <string>

#include "store/file_store.h"
#include "store/releases.h"

namespace farm {

class Deployments {
 public:
  explicit Deployments(std::shared_ptr<Store> store)
      : store_(std::move(store)), releases_(store_->directory()) {}

  // Has what a manifest describes be the current release of its name. Returns its number, which is
  // that of the release before when that has the same artifact and files. All files have to be in
  // the store.
  int64_t Install(const std::string& text);

  // [{"name", "current": N, "releases": [manifests, newest first]}]
  std::string ListAsJson() const;

  // The current release, with its files in the work directory.
  Manifest Open(const std::string& name);

  // Makes another release the current one; 0 means the newest one below the current.
  Manifest Rollback(const std::string& name, int64_t release);

  // All releases. Their files stay in the store until the room is wanted.
  void Remove(const std::string& name);

 private:
  // The number of the current release. IoError where nothing of that name is deployed.
  int Current(const std::string& name) const;
  Manifest Read(const std::string& name, int release) const;

  std::shared_ptr<Store> store_;
  Releases releases_;
};

}  // namespace farm
