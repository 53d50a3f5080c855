// Files that stay on the device from one session to the next, named by their SHA-256: present means identical.
#pragma once
#include <cstdint>
#include <string>

namespace farm {

class Store {
 public:
  // `directory` holds the kept files, `work` is the session's work directory.
  Store(std::string directory, std::string work);

  // Its size in bytes, or -1 when it is not there.
  int64_t Has(const std::string& digest) const;

  // Makes the kept file appear in the work directory as `name`.
  void Link(const std::string& digest, const std::string& name) const;

  // Keeps the work directory's file `name`, whose digest must be `digest`.
  void Keep(const std::string& name, const std::string& digest) const;

 private:
  std::string Kept(const std::string& digest) const;
  std::string Work(const std::string& name) const;

  std::string directory_, work_;
};

// Removes what sessions that were killed have left half-written in a store.
void SweepStore(const std::string& directory);

}  // namespace farm
