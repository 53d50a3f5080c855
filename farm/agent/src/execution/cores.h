// The cores that this process may compute on, and which of them are big.
#pragma once
#include <string>
#include <vector>

namespace farm {

// One CPU for each core, by number, without those that this process was kept from when it began;
// what hyper-threading adds to a core is left out. `little` is empty where all cores are of a kind.
struct Cores {
  std::vector<int> big, little;

  std::vector<int> all() const;
};

// Found once, before any thread was bound to a core.
const Cores& UsableCores();

// Every CPU that this process was allowed when it began.
const std::vector<int>& AllowedCpus();

// How many CPUs' time the control group of this process gets; 0 where it is not limited.
int CpuQuota();

// The CPUs that a text means: "big", "little", "all", or numbers and ranges such as "0,2-3".
// IoError for any other, for CPUs that are not there or not allowed, and for "little" where all
// cores are of a kind.
std::vector<int> CpusOf(const std::string& text);

// "0,2-3"
std::string InRanges(const std::vector<int>& cpus);

}  // namespace farm
