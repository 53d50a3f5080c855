#include "rpc/session_limits.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "base/error_code.h"
#include "execution/gpu.h"

namespace farm {
namespace {

char out_of_memory[120];  // written ahead: later there is no memory for it

struct OutOfMemory : std::bad_alloc {
  const char* what() const noexcept override { return out_of_memory; }
};

void SetLimit(int resource, uint64_t bytes) {
  rlimit limit;
  if (getrlimit(resource, &limit)) return;
  limit.rlim_cur = std::min<rlim_t>(bytes, limit.rlim_max);
  setrlimit(resource, &limit);
}

}  // namespace

uint64_t DefaultMemoryBytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) / 10 * 9
                               : UINT64_MAX;
}

void ApplyLimits(const Limits& limits, uint64_t file_bytes) {
  snprintf(out_of_memory, sizeof(out_of_memory),
           "%s: out of memory: the session may use %llu bytes (--max-memory)",
           error::kNoMemory.name(), static_cast<unsigned long long>(limits.memory_bytes));
  std::set_new_handler([] { throw OutOfMemory(); });
  // A GPU's driver reserves more addresses than there is memory. What is written counts for the
  // other limit, and what it reserves does not.
  SetLimit(kForGpu ? RLIMIT_DATA : RLIMIT_AS, limits.memory_bytes);
  SetLimit(RLIMIT_FSIZE, file_bytes);
  SetLimit(RLIMIT_CORE, 0);
  signal(SIGXFSZ, SIG_IGN);
}

}  // namespace farm
