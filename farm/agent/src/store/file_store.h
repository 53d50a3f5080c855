// Files that stay on the device from one session to the next, named by their SHA-256: present means
// identical.
//
//   DIGEST         a whole file, never written to again; its time of modification is that of its
//   last use DIGEST.part    what has come of one so far, from its first byte on models/ which files
//   are deployed; see releases.h .lock          held by whoever changes something: several agents
//   may share a store
//
// All files together stay within a budget: the one that was used longest ago goes first, one that
// is deployed never.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "base/file_lock.h"

namespace farm {

class Store {
 public:
  // `directory` holds the kept files, `work` is the session's work directory.
  Store(std::string directory, std::string work, uint64_t budget_bytes);

  const std::string& directory() const { return directory_; }
  FileLock Lock() const;

  // Its size in bytes, or -1 when it is not there. Counts as a use, and so do Finish and Link: what
  // a session has used, it does not push out itself.
  int64_t Has(const std::string& digest);

  // Makes room for a file of `size` bytes. Returns how many of them are here already: where to go
  // on.
  int64_t Begin(const std::string& digest, int64_t size);

  // Some bytes of a file that was begun, at most at the end of what has come.
  void Write(const std::string& digest, int64_t offset, const void* data, size_t size);

  // All has come: keeps the file if its digest is right, else removes what came.
  void Finish(const std::string& digest);

  // Makes the kept file appear in the work directory as `name`.
  void Link(const std::string& digest, const std::string& name);

  std::string UsageAsJson() const;

 private:
  std::string Kept(const std::string& digest) const;
  std::string Part(const std::string& digest) const { return Kept(digest) + ".part"; }
  void MakeRoom(const std::string& digest, uint64_t size, uint64_t missing);
  void VerifyAndKeep(const std::string& digest, const std::string& file);

  std::string directory_, work_;
  uint64_t budget_bytes_;
  std::set<std::string> used_;
  std::map<std::string, uint64_t> begun_;  // digest -> size
};

// Removes what sessions that were killed have left in a store: half-written files of which nothing
// came for a day.
void SweepStore(const std::string& directory);

}  // namespace farm
