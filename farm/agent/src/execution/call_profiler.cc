#include "execution/call_profiler.h"

#include <time.h>
#include <tvm/ffi/function.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "base/io.h"
#include "execution/gpu.h"

namespace farm {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::ffi::PackedArgs;

constexpr uint32_t kPlain = 0xffffffff, kRecorded = 0xfffffffe;
constexpr size_t kEnough = 200'000,
                 kMost =
                     1'000'000;  // records: no further inference, and no further call, is recorded
const char kOff[] = "farm.profile.off";

struct Record {
  uint32_t function, depth;
  int64_t begin_ns, duration_ns;
};
static_assert(sizeof(Record) == 24, "what is sent has no gaps");

int64_t Nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// What the machine's instrument writes down: little, as it is part of what is timed. On a GPU, the
// times are marks in its stream at first.
class Recorder {
 public:
  Recorder() : gpu_(MakeGpuClock()) {
    records_.reserve(1 << 14);
    open_.reserve(64);
  }

  int64_t Now() { return gpu_ ? gpu_->Mark() : Nanoseconds(); }

  // The inference that has begun with this is over: its times are known now.
  void Settle(size_t first) {
    if (!gpu_) return;
    const std::vector<int64_t> times = gpu_->Times();
    const int64_t begin = Nanoseconds();
    for (size_t i = first; i < records_.size(); ++i) {
      Record& record = records_[i];
      const int64_t from = times[record.begin_ns];
      record.duration_ns = times[record.begin_ns + record.duration_ns] - from;
      record.begin_ns = begin + from;
    }
  }

  void Enter(const char* name) {
    open_.push_back({Place(name), 0});
    open_.back().second = Now();
  }

  void Leave() {
    const int64_t now = Now();
    const auto [function, begin] = open_.back();
    open_.pop_back();
    Add(function, begin, now);
  }

  void Add(uint32_t function, int64_t begin, int64_t end) {
    if (records_.size() == kMost)
      throw IoError(
          error::kProfile,
          "the model makes more than a million calls in an inference: too many for a profile");
    records_.push_back({function, static_cast<uint32_t>(open_.size()), begin, end - begin});
  }

  size_t size() const { return records_.size(); }

  std::string Text() const {
    std::string text;
    for (const char* name : names_) text += std::string(name) + "\n";
    text += "\n";
    return text.append(reinterpret_cast<const char*>(records_.data()),
                       records_.size() * sizeof(Record));
  }

 private:
  std::unique_ptr<GpuClock> gpu_;

  // The machine keeps its names where they are, so that the address tells one from another.
  uint32_t Place(const char* name) {
    auto [found, is_new] = places_.emplace(name, static_cast<uint32_t>(names_.size()));
    if (is_new) names_.push_back(name);
    return found->second;
  }

  std::vector<Record> records_;
  std::vector<std::pair<uint32_t, int64_t>> open_;  // calls that have not ended: function and begin
  std::vector<const char*> names_;
  std::unordered_map<const char*, uint32_t> places_;
};

// While it lives, the machine's calls are recorded.
class Instrumented {
 public:
  Instrumented(const Function& set_instrument, Recorder* recorder)
      : set_instrument_(set_instrument) {
    // The machine calls it with the function, its name, whether this is before the call, the
    // result, and the arguments.
    set_instrument_(Function([recorder](PackedArgs args, Any*) {
      if (args[2].cast<bool>()) {
        recorder->Enter(args[1].cast<const char*>());
      } else {
        recorder->Leave();
      }
    }));
  }
  ~Instrumented() { set_instrument_(kOff); }
  Instrumented(const Instrumented&) = delete;
  Instrumented& operator=(const Instrumented&) = delete;

 private:
  const Function& set_instrument_;
};

}  // namespace

tvm::ffi::Bytes Profile(const Module& machine, const std::string& function, int64_t pairs,
                        double seconds) {
  // The machine takes no empty function for an instrument, but the name of one that makes it.
  Function::SetGlobal(kOff, Function::FromTyped([] { return Function(nullptr); }),
                      /*override=*/true);
  const Function invoke = machine->GetFunction("invoke_stateful").value();
  const Function set_instrument = machine->GetFunction("set_instrument").value();
  Recorder recorder;
  auto run = [&](uint32_t kind) {
    const size_t first = recorder.size();
    const int64_t begin = recorder.Now();
    invoke(function);
    recorder.Add(kind, begin, recorder.Now());
    recorder.Settle(first);
  };
  const double end = Now() + seconds;
  for (int64_t i = 0; i == 0 || (i < pairs && Now() < end && recorder.size() < kEnough); ++i) {
    run(kPlain);
    const Instrumented instrumented(set_instrument, &recorder);
    run(kRecorded);
  }
  return tvm::ffi::Bytes(recorder.Text());
}

}  // namespace farm
