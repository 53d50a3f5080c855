#include "execution/device_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <cmath>
#include <map>
#include <sstream>
#include <vector>

#include "base/io.h"
#include "execution/cores.h"
#include "execution/gpu.h"
#include "execution/threads.h"
#include "loader/elf_loader.h"

namespace farm {
namespace {

constexpr int kProtocol = 5;  // of the farm.* functions; goes up when one of them changes
const char kNull[] = "null";
const char kCpus[] = "/sys/devices/system/cpu/";

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20 || c > 0x7e) {
      char escape[8];
      snprintf(escape, sizeof(escape), "\\u%04x", c);
      out += escape;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

std::string QuotedOrNull(const std::string& text) { return text.empty() ? kNull : Quoted(text); }

// The number at the start of a text, scaled.
std::string NumberOrNull(const std::string& text, double scale = 1, int base = 10) {
  char* end = nullptr;
  double value = base == 16 ? static_cast<double>(strtoull(text.c_str(), &end, 16))
                            : strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(value)) return kNull;
  std::ostringstream out;
  out.precision(15);
  out << value * scale;
  return out.str();
}

// The value of the first line "name : value" of a file such as /proc/cpuinfo.
std::string Field(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    size_t end = line.find_last_not_of(" \t", colon ? colon - 1 : 0);
    size_t start = line.find_first_not_of(" \t", colon + 1);
    if (end != std::string::npos && line.substr(0, end + 1) == name && start != std::string::npos)
      return line.substr(start);
  }
  return "";
}

std::string Cpu() {
  std::string info = ReadText("/proc/cpuinfo");
#if defined(__x86_64__)
  return Field(info, "model name");
#else
  // A board says more of itself than its CPU does.
  std::string board = ReadText("/proc/device-tree/model");
  if (!board.empty()) return board;
  if (!Field(info, "vendor_id").empty())
    return "";  // an emulator shows us the CPU of the machine it runs on
  for (const char* name : {"Model", "model name", "Hardware", "Processor", "uarch"}) {
    std::string value = Field(info, name);
    if (!value.empty()) return value;
  }
  return "";
#endif
}

// A number for every core, in the order of the cores; null where no core tells.
std::string OfEveryCore(const std::string& file) {
  std::string out;
  bool known = false;
  long count = sysconf(_SC_NPROCESSORS_CONF);
  for (long i = 0; i < count; ++i) {
    std::string value =
        NumberOrNull(ReadText(kCpus + ("cpu" + std::to_string(i)) + "/cpufreq/" + file));
    known = known || value != kNull;
    out += (i ? ", " : "") + value;
  }
  return known ? "[" + out + "]" : kNull;
}

// `gpu` is what it says of itself.
std::string Temperatures(const tvm::ffi::json::Object& gpu) {
  std::map<std::string, std::string> zones;
  auto told = gpu.find(tvm::ffi::String("gpu_temperature_c"));
  if (told != gpu.end()) zones["gpu"] = tvm::ffi::json::Stringify((*told).second);
  const std::string base = "/sys/class/thermal/";
  for (const std::string& zone : ListDirectory(base)) {
    std::string value = NumberOrNull(ReadText(base + zone + "/temp"), 1e-3);
    if (zone.compare(0, 12, "thermal_zone") || value == kNull) continue;
    std::string type = ReadText(base + zone + "/type");
    zones.emplace(type.empty() || zones.count(type) ? zone : type, value);
  }
  std::string out;
  for (const auto& [name, value] : zones)
    out += (out.empty() ? "" : ", ") + Quoted(name) + ": " + value;
  return out.empty() ? kNull : "{" + out + "}";
}

std::vector<std::string> TemperatureFiles() {
  const std::string base = "/sys/class/thermal/";
  std::vector<std::string> files;
  for (const std::string& zone : ListDirectory(base)) {
    if (zone.compare(0, 12, "thermal_zone") == 0) files.push_back(base + zone + "/temp");
  }
  return files;
}

// The bits of the Raspberry Pi's firmware: 0 is under-voltage now, 2 throttled now, 16 and 18 the
// same since it started.
std::string Throttled() {
  for (const char* path : {"/sys/devices/platform/soc/soc:firmware/get_throttled",
                           "/sys/devices/platform/soc@0/soc@0:firmware/get_throttled"}) {
    std::string value = NumberOrNull(ReadText(path), 1, 16);
    if (value != kNull) return value;
  }
  return kNull;
}

// Seconds since the epoch.
std::string Clock() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  char text[40];
  snprintf(text, sizeof(text), "%lld.%03ld", static_cast<long long>(now.tv_sec),
           now.tv_nsec / 1000000);
  return text;
}

// Seconds that this process's threads have stood ready to run while others had the CPUs: see
// schedstats in the kernel's documentation.
std::string CpuWait() {
  const std::string tasks = "/proc/self/task/";
  double nanoseconds = 0;
  bool known = false;
  for (const std::string& task : ListDirectory(tasks)) {
    const std::string text = ReadText(tasks + task + "/schedstat");
    const size_t second = text.find(' ');
    if (second == std::string::npos) continue;
    nanoseconds += strtod(text.c_str() + second, nullptr);
    known = true;
  }
  return known ? NumberOrNull(std::to_string(nanoseconds * 1e-9)) : kNull;
}

// The most memory that this process, which is the session's, has had at once.
std::string MemoryPeak() {
  return NumberOrNull(Field(ReadText("/proc/self/status"), "VmHWM"), 1024);
}

std::string Memory(const std::string& name) {
  return NumberOrNull(Field(ReadText("/proc/meminfo"), name), 1024);
}

}  // namespace

std::string FactsAsJson() {
  const Threads& threads = ThreadsInForce();
  const tvm::ffi::json::Object gpu = GpuFacts();
  utsname system{};
  uname(&system);
  std::string governor = ReadText(std::string(kCpus) + "cpu0/cpufreq/scaling_governor");
  const std::vector<std::pair<const char*, std::string>> facts = {
      {"agent", Quoted(FARM_VERSION)},
      {"protocol", std::to_string(kProtocol)},
      {"tvm", Quoted(FARM_TVM_VERSION)},
      {"machine", Quoted(kMachineName)},
      {"hostname", QuotedOrNull(system.nodename)},
      {"kernel", QuotedOrNull(system.release)},
      {"cpu", QuotedOrNull(Cpu())},
      {"cores", std::to_string(AllowedCpus().size())},
      {"big_cores", Quoted(InRanges(UsableCores().big))},
      {"little_cores", QuotedOrNull(InRanges(UsableCores().little))},
      {"cpu_quota", CpuQuota() ? std::to_string(CpuQuota()) : kNull},
      {"threads", std::to_string(threads.count)},
      {"thread_cores", QuotedOrNull(InRanges(threads.cpus))},
      {"threads_pinned", threads.pinned ? "true" : "false"},
      {"memory_total_bytes", Memory("MemTotal")},
      {"memory_available_bytes", Memory("MemAvailable")},
      {"memory_peak_bytes", MemoryPeak()},
      {"cpu_wait_s", CpuWait()},
      {"load_1m", NumberOrNull(ReadText("/proc/loadavg"))},
      {"time_s", Clock()},
      {"uptime_s", NumberOrNull(ReadText("/proc/uptime"))},
      {"governor", QuotedOrNull(governor)},
      {"frequency_khz", OfEveryCore("scaling_cur_freq")},
      {"max_frequency_khz", OfEveryCore("cpuinfo_max_freq")},
      {"temperatures_c", Temperatures(gpu)},
      {"throttled", Throttled()},
  };
  std::string out;
  for (const auto& [name, value] : facts)
    out += (out.empty() ? "{" : ", ") + Quoted(name) + ": " + value;
  for (const auto& [name, value] : gpu) {
    out += ", " + Quoted(name.cast<tvm::ffi::String>()) + ": " +
           std::string(tvm::ffi::json::Stringify(value));
  }
  return out + "}";
}

std::string StateAsJson(const std::string& folder) {
  static const std::vector<std::string> zones = TemperatureFiles();
  std::string hottest = kNull;
  double highest = 0;
  for (const std::string& zone : zones) {
    const std::string value = NumberOrNull(ReadText(zone), 1e-3);
    if (value == kNull || (hottest != kNull && strtod(value.c_str(), nullptr) <= highest)) continue;
    hottest = value;
    highest = strtod(value.c_str(), nullptr);
  }
  struct statvfs disk{};
  bool known = false;
  for (std::string path = folder; !path.empty() && !known;
       path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'))) {
    known = statvfs(path.c_str(), &disk) == 0;
  }
  return "{\"temperature_c\": " + hottest + ", \"throttled\": " + Throttled() +
         ", \"load_1m\": " + NumberOrNull(ReadText("/proc/loadavg")) + ", \"free_bytes\": " +
         (known ? std::to_string(static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize) : kNull) +
         "}";
}

std::string VersionLine() {
  return "farm-agent " FARM_VERSION " (TVM " FARM_TVM_VERSION ", " + std::string(kMachineName) +
         (kForGpu ? ", for NVIDIA's GPUs)" : ")");
}

}  // namespace farm
