#include "execution/threads.h"

#include <sched.h>
#include <stdlib.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <set>

#include "base/io.h"
#include "execution/cores.h"

namespace farm {
namespace {

constexpr int kShareCores = -3;  // threading::ThreadGroup::kSpecifyThreadShareAllCore

struct State {
  Threads now;
  std::set<int> others;  // threads that were there before TVM's: this one, and an emulator's own
  bool started = false;
};

State& TheState() {
  static State state;
  return state;
}

std::vector<int> ThreadIds() {
  std::vector<int> ids;
  for (const std::string& name : ListDirectory("/proc/self/task"))
    ids.push_back(atoi(name.c_str()));
  std::sort(ids.begin(), ids.end());
  return ids;
}

// TVM's own, in the order in which it has started them.
std::vector<int> Workers() {
  std::vector<int> workers;
  for (int id : ThreadIds()) {
    if (!TheState().others.count(id)) workers.push_back(id);
  }
  return workers;
}

void Bind(int thread, const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(cpu, &set);
  if (sched_setaffinity(thread, sizeof(set), &set))
    Fail("cannot bind a thread to the cores " + InRanges(cpus));
}

// `count` of 0 is one thread a core, as far as the time that our control group gets allows.
Threads Chosen(int64_t count, const std::string& cores, bool pinned) {
  Threads chosen;
  chosen.cpus = CpusOf(cores.empty() ? "big" : cores);
  const int64_t room = static_cast<int64_t>(chosen.cpus.size()), quota = CpuQuota();
  if (count < 0) throw IoError(error::kThreads, "threads: a number above 0, or 0 for one a core");
  if (count > room) {
    throw IoError(error::kThreads, std::to_string(count) + " threads on " + std::to_string(room) +
                                       (room == 1 ? " core (" : " cores (") +
                                       InRanges(chosen.cpus) + "): a core takes one");
  }
  chosen.count = static_cast<int>(count ? count : quota ? std::min(room, quota) : room);
  chosen.pinned = pinned;
  return chosen;
}

void Put(const Threads& chosen) {
  const std::vector<int> workers = Workers();
  auto cpus_of = [&chosen](size_t thread) {
    return chosen.pinned && thread < chosen.cpus.size() ? std::vector<int>{chosen.cpus[thread]}
                                                        : chosen.cpus;
  };
  Bind(0, cpus_of(0));
  for (size_t i = 0; i < workers.size(); ++i) Bind(workers[i], cpus_of(i + 1));
  TheState().now = chosen;
}

// Has TVM's pool use so many of its threads; its first call starts the pool. With so many CPUs,
// too, it counts: see MaxConcurrency.
void Configure(int count) {
  tvm::ffi::Array<tvm::ffi::String> cpus;
  for (int i = 0; i < count; ++i) cpus.push_back(std::to_string(i));
  tvm::ffi::Function::GetGlobalRequired("runtime.config_threadpool")(kShareCores, count, cpus);
  TheState().started = true;
}

void SetPoolSize(size_t size) { setenv("TVM_NUM_THREADS", std::to_string(size).c_str(), 1); }

}  // namespace

void CheckThreads(const ThreadOptions& options) { Chosen(options.count, options.cores, false); }

void BeginThreads(const ThreadOptions& options) {
  const std::vector<int> ids = ThreadIds();
  TheState().others.insert(ids.begin(), ids.end());
  const char* variable = getenv("TVM_NUM_THREADS");
  const bool by_variable = !options.count && variable && atoi(variable) > 0;
  Threads chosen = Chosen(options.count, options.cores, false);
  if (by_variable) chosen.count = atoi(variable);
  setenv("TVM_BIND_THREADS", "0", 1);  // TVM binds by frequency, whatever cores we may use
  SetPoolSize(chosen.count);
  Put(chosen);
}

void StartThreads() {
  const Threads chosen = TheState().now;
  if (TheState().started || chosen.count < 2) return;
  Configure(chosen.count);
  Put(chosen);
}

void ChangeThreads(int64_t count, const std::string& cores, bool pinned) {
  const Threads chosen = Chosen(count, cores, pinned);
  if (!TheState().started) {
    SetPoolSize(std::max<size_t>(AllowedCpus().size(), 2));  // whatever the session asks for later
  } else if (chosen.count > static_cast<int>(Workers().size()) + 1) {
    throw IoError(error::kThreads, std::to_string(chosen.count) +
                                       " threads: this session has begun with " +
                                       std::to_string(Workers().size() + 1) +
                                       "; ask for more before its first inference");
  }
  Configure(chosen.count);
  Put(chosen);
}

const Threads& ThreadsInForce() { return TheState().now; }

}  // namespace farm
