// Own stand-in for TVM's thread pool, with the same functions. Its threads compute the tasks of a
// kernel together.
//
// TVM's main thread waits for each worker, and both yield while they wait. Beside other programs a
// worker may wait for a core for many milliseconds. Here a thread that has nothing to do takes any
// task that no other thread has begun, and fewer threads compute while cores are scarce. The value
// of an element does not depend on the number of tasks, so the results have the same bits.
#include <sys/resource.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/base.h>
#include <tvm/runtime/c_backend_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../support/utils.h"
#include "threading_backend.h"

namespace tvm {
namespace runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCacheLineBytes = 64;
// Waking a thread takes longer than most kernels, so a thread that waits spins before it sleeps.
constexpr Clock::duration kSpin = std::chrono::milliseconds(1);
// Reading the clock takes longer than a turn.
constexpr int kTurnsBetweenClocks = 16;
// A spinning thread that has not run for so long was stopped by the scheduler.
constexpr Clock::duration kStopped = std::chrono::microseconds(500);
// One thread less computes for so long after one was stopped. The time doubles, up to the maximum,
// if the next is stopped less than kCalm after its end.
constexpr Clock::duration kReducedAtFirst = std::chrono::milliseconds(10);
constexpr Clock::duration kReducedAtMost = std::chrono::milliseconds(160);
constexpr Clock::duration kCalm = std::chrono::milliseconds(100);

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ __volatile__("yield");
#endif
}

// Whether the scheduler has given this thread's core to another program since `Remember`.
class Preemptions {
 public:
  void Remember() { before_ = Count(); }
  bool Any() const { return Count() != before_; }

 private:
  static long Count() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
  }

  long before_ = 0;
};

thread_local Preemptions preemptions;

// How many threads compute: fewer after the scheduler has stopped one, because all others wait for
// a thread that is stopped in its task.
class ThreadCount {
 public:
  // May be called by any thread.
  void NoteStoppedThread() { is_one_stopped_.store(true, std::memory_order_relaxed); }

  // Returns how many of `threads` should compute the next launch: at least 1.
  int UsableOf(int threads) {
    if (is_one_stopped_.load(std::memory_order_relaxed)) {
      is_one_stopped_.store(false, std::memory_order_relaxed);
      const Clock::time_point now = Clock::now();
      reduced_for_ =
          now - until_ < kCalm ? std::min(2 * reduced_for_, kReducedAtMost) : kReducedAtFirst;
      until_ = now + reduced_for_;
      left_out_ = std::min(left_out_ + 1, threads - 1);
    } else if (left_out_ && Clock::now() >= until_) {
      until_ = Clock::now() + reduced_for_;
      --left_out_;
    }
    return std::max(threads - left_out_, 1);
  }

 private:
  std::atomic<bool> is_one_stopped_{false};
  int left_out_ = 0;
  Clock::time_point until_{};
  Clock::duration reduced_for_ = kReducedAtFirst;
};

template <typename Condition>
bool IsTrueWithin(int turns, Condition is_true) {
  for (int i = 0; i < turns; ++i) {
    if (is_true()) return true;
    Pause();
  }
  return false;
}

// Waits for a condition that another thread makes true. Returns whether it is, or false once the
// caller should sleep.
template <typename Condition>
bool SpinUntil(Condition is_true, ThreadCount* threads) {
  if (IsTrueWithin(kTurnsBetweenClocks, is_true)) return true;
  preemptions.Remember();
  const Clock::time_point start = Clock::now();
  for (Clock::time_point last = start, now; last - start < kSpin; last = now) {
    if (IsTrueWithin(kTurnsBetweenClocks, is_true)) return true;
    now = Clock::now();
    if (now - last > kStopped && preemptions.Any()) {
      threads->NoteStoppedThread();
      break;
    }
  }
  return is_true();
}

// The place of one task of a launch, where the worker with the same number sleeps.
class alignas(kCacheLineBytes) Slot {
 public:
  // Offers the task, and wakes the worker.
  void Open(uint32_t launch) {
    if (StateOf(word_.exchange(launch << kStateBits | kOpen)) == kAsleep) Wake();
  }

  // Ends the worker.
  void Close() {
    if (StateOf(word_.exchange(kClosed)) == kAsleep) Wake();
  }

  // The launch of the task that was offered last.
  uint32_t launch() const { return word_.load(std::memory_order_relaxed) >> kStateBits; }

  // Returns whether the caller, and nobody else, must compute the task of this launch.
  bool Take(uint32_t launch) {
    uint32_t word = launch << kStateBits | kOpen;
    return word_.load(std::memory_order_relaxed) == word &&
           word_.compare_exchange_strong(word, word - kOpen + kTaken, std::memory_order_acquire);
  }

  // Waits for a task. Returns false if the worker must end.
  bool Wait(ThreadCount* threads) {
    if (!SpinUntil([this] { return StateOf(word_.load()) != kTaken; }, threads)) Sleep();
    return StateOf(word_.load()) != kClosed;
  }

 private:
  enum State : uint32_t { kTaken, kAsleep, kOpen, kClosed };  // kAsleep: taken, and worker sleeps
  static constexpr int kStateBits = 2;

  static State StateOf(uint32_t word) { return static_cast<State>(word & ((1 << kStateBits) - 1)); }

  void Sleep() {
    std::unique_lock<std::mutex> lock(mutex_);
    uint32_t word = word_.load();
    while (StateOf(word) == kTaken) {
      if (word_.compare_exchange_weak(word, word - kTaken + kAsleep)) break;
    }
    changed_.wait(lock, [this] { return StateOf(word_.load()) != kAsleep; });
  }

  void Wake() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
    }
    changed_.notify_one();
  }

  std::atomic<uint32_t> word_{kTaken};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// How many tasks of a launch have not ended.
class alignas(kCacheLineBytes) Pending {
 public:
  void Begin(uint32_t tasks) { word_.store(tasks, std::memory_order_relaxed); }

  // Returns whether this task was the last one, and the launching thread slept until its end.
  bool EndTask() {
    if (word_.fetch_sub(1) != (kSleeps | 1)) return false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
    }
    ended_.notify_one();
    return true;
  }

  void Wait(ThreadCount* threads) {
    if (SpinUntil([this] { return word_.load() == 0; }, threads)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    word_.fetch_or(kSleeps);
    ended_.wait(lock, [this] { return word_.load() == kSleeps; });
  }

 private:
  static constexpr uint32_t kSleeps = 1u << 31;  // the launching thread sleeps

  std::atomic<uint32_t> word_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
};

// Whether this thread computes a task. A launch within it cannot use the other threads.
thread_local bool is_in_task = false;

int ComputeAlone(FTVMParallelLambda function, void* data) {
  std::atomic<uint32_t> arrived{0};
  TVMParallelGroupEnv environment{&arrived, 1};
  return function(0, &environment, data);
}

class ThreadPool {
 public:
  ThreadPool()
      : size_(threading::MaxConcurrency()),
        slots_(std::make_unique<Slot[]>(size_)),
        threads_(
            size_, [this](int number) { Work(number); }, /*exclude_worker0=*/true),
        used_(threads_.Configure(threading::ThreadGroup::kBig, 0, /*exclude_worker0=*/true)) {}

  ~ThreadPool() {
    for (int i = 1; i < size_; ++i) slots_[i].Close();
    threads_.Join();
  }

  // The pool of the kernels that this thread calls.
  static ThreadPool* ThreadLocal() {
    static thread_local ThreadPool pool;
    return &pool;
  }

  void Configure(threading::ThreadGroup::AffinityMode mode, int threads,
                 const std::vector<unsigned int>& cpus) {
    used_ = std::min(size_, threads_.Configure(mode, threads, /*exclude_worker0=*/true, cpus));
  }

  int used() const { return used_; }

  int Launch(FTVMParallelLambda function, void* data, int tasks) {
    if (tasks == 0) tasks = count_.UsableOf(used_);
    if (tasks > used_) {
      TVMFFIErrorSetRaisedFromCStr("ValueError", "more tasks than threads: no barrier would end");
      return -1;
    }
    if (tasks == 1) return ComputeAlone(function, data);
    function_ = function;
    data_ = data;
    arrived_.store(0, std::memory_order_relaxed);
    environment_ = {&arrived_, tasks};
    pending_.Begin(tasks);
    ++launch_;
    for (int i = 1; i < tasks; ++i) slots_[i].Open(launch_);
    Compute(0);
    ComputeWhatNobodyHasBegun(0, launch_);
    pending_.Wait(&count_);
    return errors_.empty() ? 0 : RaiseErrors();
  }

 private:
  // A worker begins with its own task, whose data its cache may contain. If it began with another,
  // nobody would compute its own one while all others wait for it at a barrier.
  void Work(int number) {
    while (slots_[number].Wait(&count_)) {
      const uint32_t launch = slots_[number].launch();
      if (!slots_[number].Take(launch)) continue;
      Compute(number);
      ComputeWhatNobodyHasBegun(number, launch);
    }
  }

  void ComputeWhatNobodyHasBegun(int number, uint32_t launch) {
    for (int i = 1; i < size_; ++i) {
      const int task = (number + i) % size_;
      if (slots_[task].Take(launch)) Compute(task);
    }
  }

  void Compute(int task) {
    is_in_task = true;
    if (function_(task, &environment_, data_)) {
      std::lock_guard<std::mutex> lock(errors_mutex_);
      errors_.push_back("Task " + std::to_string(task) +
                        " error: " + ffi::details::MoveFromSafeCallRaised().what());
    }
    is_in_task = false;
    if (pending_.EndTask() && preemptions.Any()) count_.NoteStoppedThread();
  }

  int RaiseErrors() {
    std::string all;
    for (const std::string& error : errors_) all += error + "\n";
    errors_.clear();
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", all.c_str());
    return -1;
  }

  // The launch. It is written before its tasks are opened, and read after one of them is taken.
  FTVMParallelLambda function_ = nullptr;
  void* data_ = nullptr;
  TVMParallelGroupEnv environment_{};
  uint32_t launch_ = 0;
  std::atomic<uint32_t> arrived_{0};  // at barriers
  Pending pending_;

  std::mutex errors_mutex_;
  std::vector<std::string> errors_;
  ThreadCount count_;
  const int size_;
  std::unique_ptr<Slot[]> slots_;  // that of task 0 is never open: the caller computes it
  threading::ThreadGroup threads_;
  int used_;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def_packed("runtime.config_threadpool",
                  [](ffi::PackedArgs args, ffi::Any*) {
                    std::vector<unsigned int> cpus;
                    if (args.size() >= 3) {
                      for (const ffi::String& cpu : args[2].cast<ffi::Array<ffi::String>>()) {
                        TVM_FFI_ICHECK(support::IsNumber(cpu)) << "CPU '" << cpu << "': no number";
                        cpus.push_back(std::stoi(cpu));
                      }
                    }
                    threading::Configure(
                        static_cast<threading::ThreadGroup::AffinityMode>(args[0].cast<int>()),
                        args[1].cast<int>(), cpus);
                  })
      .def("runtime.NumThreads", []() -> int32_t { return threading::NumThreads(); });
}

}  // namespace

namespace threading {

void Configure(ThreadGroup::AffinityMode mode, int threads, std::vector<unsigned int> cpus) {
  SetMaxConcurrency(static_cast<int>(cpus.size()));
  ThreadPool::ThreadLocal()->Configure(mode, threads, cpus);
}

int32_t NumThreads() { return ThreadPool::ThreadLocal()->used(); }

}  // namespace threading
}  // namespace runtime
}  // namespace tvm

int TVMBackendParallelLaunch(FTVMParallelLambda function, void* data, int tasks) {
  using namespace tvm::runtime;
  if (is_in_task || threading::MaxConcurrency() == 1) return ComputeAlone(function, data);
  return ThreadPool::ThreadLocal()->Launch(function, data, tasks);
}

int TVMBackendParallelBarrier(int, TVMParallelGroupEnv* environment) {
  const uint32_t tasks = static_cast<uint32_t>(environment->num_task);
  auto* arrived = static_cast<std::atomic<uint32_t>*>(environment->sync_handle);
  const uint32_t before = arrived->fetch_add(1);
  const uint32_t all = (before / tasks + 1) * tasks;  // of this barrier and those before it
  while (arrived->load() < all) tvm::runtime::threading::YieldThread();
  return 0;
}
