// With how many threads a session computes, and on which cores.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace farm {

// What was asked for: 0 threads stand for TVM_NUM_THREADS or one a core of those meant, no cores
// for the big ones.
struct ThreadOptions {
  int count = 0;
  std::string cores;
};

// What is in force. The threads share the cores, or each has one of its own.
struct Threads {
  int count = 0;
  std::vector<int> cpus;
  bool pinned = false;
};

// IoError for what CpusOf refuses, and for more threads than there are cores for.
void CheckThreads(const ThreadOptions& options);

// At the beginning of a session or a run, before TVM has started any thread. Errors as above.
void BeginThreads(const ThreadOptions& options);

// Before a library is run: TVM's pool, which by itself would count the cores otherwise.
void StartThreads();

// Another setting in a session that has begun. Errors as above, and for more threads than TVM's
// pool was started with.
void ChangeThreads(int64_t count, const std::string& cores, bool pinned);

const Threads& ThreadsInForce();

}  // namespace farm
