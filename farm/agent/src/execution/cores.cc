#include "execution/cores.h"

#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "base/io.h"

namespace farm {
namespace {

const char kCpuPrefix[] = "/sys/devices/system/cpu/cpu";
// Of the strongest core: a weaker one is little. Clocks of one kind of core differ by some percent,
// capacities of two kinds by half.
constexpr double kLittleCapacity = 0.6, kLittleClock = 0.85;
// Arm's part numbers of its little cores: Cortex-A5, A7, A32, A35, A53, A55, A510, A520 (Arm,
// MIDR_EL1.PartNum).
const std::set<long> kLittleParts = {0xc05, 0xc07, 0xd01, 0xd04, 0xd03, 0xd05, 0xd46, 0xd80};

double NumberOfFile(const std::string& path) { return strtod(ReadText(path).c_str(), nullptr); }

// "CPU part" of each processor in /proc/cpuinfo.
std::map<int, long> Parts() {
  std::istringstream lines(ReadText("/proc/cpuinfo"));
  std::map<int, long> parts;
  int processor = 0;
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const char* value = line.c_str() + colon + 1;
    if (line.compare(0, 9, "processor") == 0) processor = atoi(value);
    if (line.compare(0, 8, "CPU part") == 0) parts[processor] = strtol(value, nullptr, 16);
  }
  return parts;
}

// Those that reach less than a share of the largest value of a file; none unless the file is there
// for all.
std::set<int> WeakBy(const std::vector<int>& cpus, const std::string& file, double share) {
  std::map<int, double> values;
  for (int cpu : cpus) values[cpu] = NumberOfFile(kCpuPrefix + std::to_string(cpu) + file);
  double largest = 0;
  for (const auto& [cpu, value] : values) largest = std::max(largest, value);
  std::set<int> weak;
  for (const auto& [cpu, value] : values) {
    if (value <= 0) return {};
    if (value < share * largest) weak.insert(cpu);
  }
  return weak;
}

std::set<int> LittleOnes(const std::vector<int>& cpus) {
  std::set<int> little = WeakBy(cpus, "/cpu_capacity", kLittleCapacity);
  if (little.empty()) {
    const std::map<int, long> parts = Parts();
    for (int cpu : cpus) {
      if (parts.count(cpu) && kLittleParts.count(parts.at(cpu))) little.insert(cpu);
    }
    if (little.size() == cpus.size()) little.clear();
  }
  return little.empty() ? WeakBy(cpus, "/cpufreq/cpuinfo_max_freq", kLittleClock) : little;
}

std::vector<int> FoundAllowed() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
    }
  }
  return cpus.empty() ? std::vector<int>{0} : cpus;
}

Cores FoundCores() {
  std::vector<int> cpus;
  std::set<std::string> seen;
  for (int cpu : AllowedCpus()) {
    const std::string number = std::to_string(cpu),
                      siblings = ReadText(kCpuPrefix + number + "/topology/thread_siblings_list");
    if (seen.insert(siblings.empty() ? number : siblings).second) cpus.push_back(cpu);
  }
  const std::set<int> little = LittleOnes(cpus);
  Cores cores;
  for (int cpu : cpus) (little.count(cpu) ? cores.little : cores.big).push_back(cpu);
  return cores;
}

// The CPUs that a quota and its period amount to; 0 where the texts are no such numbers.
int CpusOfQuota(double quota, double period) {
  return quota > 0 && period > 0 ? std::max(1, static_cast<int>(std::ceil(quota / period))) : 0;
}

// Of a directory of control groups and those above it: the second version's cpu.max,
// "MICROSECONDS|max PERIOD", or the first one's files.
int QuotaOf(const std::string& root, std::string group) {
  int least = 0;
  for (;;) {
    const std::string folder = root + group, both = ReadText(folder + "/cpu.max");
    const size_t space = both.find(' ');
    const int cpus =
        space != std::string::npos
            ? CpusOfQuota(strtod(both.c_str(), nullptr), strtod(both.c_str() + space, nullptr))
            : CpusOfQuota(NumberOfFile(folder + "/cpu.cfs_quota_us"),
                          NumberOfFile(folder + "/cpu.cfs_period_us"));
    if (cpus) least = least ? std::min(least, cpus) : cpus;
    const size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return least;
    group.resize(slash);
  }
}

int NumberOf(const std::string& text) {
  if (text.empty() || text.size() > 5 ||
      text.find_first_not_of("0123456789") != std::string::npos) {
    throw IoError(error::kThreads, "cores are big, little, all, or numbers such as 0,2-3");
  }
  return atoi(text.c_str());
}

std::vector<int> Listed(const std::string& text) {
  std::set<int> cpus;
  std::istringstream parts(text + (text.empty() || text.back() == ',' ? ",," : ""));
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const int first = NumberOf(part.substr(0, dash)),
              last = dash == std::string::npos ? first : NumberOf(part.substr(dash + 1));
    if (last < first || last >= CPU_SETSIZE)
      throw IoError(error::kThreads, "cores " + part + ": no range");
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return {cpus.begin(), cpus.end()};
}

}  // namespace

std::vector<int> Cores::all() const {
  std::vector<int> both = big;
  both.insert(both.end(), little.begin(), little.end());
  return both;
}

const std::vector<int>& AllowedCpus() {
  static const std::vector<int> allowed = FoundAllowed();
  return allowed;
}

const Cores& UsableCores() {
  static const Cores cores = FoundCores();
  return cores;
}

int CpuQuota() {
  std::istringstream lines(ReadText("/proc/self/cgroup"));  // NUMBER:CONTROLLERS:/GROUP
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                      group = line.substr(second + 1);
    const bool is_first_version = controllers.find(",cpu,") != std::string::npos;
    if (!is_first_version && controllers != ",,") continue;
    const std::string root = std::string("/sys/fs/cgroup") + (is_first_version ? "/cpu" : "");
    if (const int cpus = QuotaOf(root, group == "/" ? "" : group)) return cpus;
  }
  return 0;
}

std::vector<int> CpusOf(const std::string& text) {
  const Cores& cores = UsableCores();
  if (text == "all") return cores.all();
  if (text == "big") return cores.big;
  if (text == "little") {
    if (cores.little.empty())
      throw IoError(error::kThreads, "this device has no little cores: all of its cores (" +
                                         InRanges(cores.big) + ") are of a kind");
    return cores.little;
  }
  const std::vector<int> wanted = Listed(text);
  for (int cpu : wanted) {
    if (!std::binary_search(AllowedCpus().begin(), AllowedCpus().end(), cpu)) {
      throw IoError(error::kThreads, "core " + std::to_string(cpu) +
                                         " is not there, or not for this process: it may use " +
                                         InRanges(AllowedCpus()));
    }
  }
  return wanted;
}

std::string InRanges(const std::vector<int>& cpus) {
  std::string out;
  for (size_t i = 0, last = 0; i < cpus.size(); i = last + 1) {
    for (last = i; last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1;) ++last;
    out += (out.empty() ? "" : ",") + std::to_string(cpus[i]) +
           (last > i ? "-" + std::to_string(cpus[last]) : "");
  }
  return out;
}

}  // namespace farm
