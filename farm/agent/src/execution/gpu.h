// The GPU that a session, or a run, computes on. cuda/ has it for NVIDIA's GPUs; cpu/ is what takes
// its place in the static agent.
#pragma once
#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace farm {

// Whether this agent is the one for GPUs.
extern const bool kForGpu;

// Opens a GPU, counted from 0 in the order of the PCI bus, for this process, which keeps it; a
// process that forks must not have one. What it is comes as an object with `name`, `architecture`
// ("sm_90") and `index`; what stands in the way as one with `problem`, a kind that the host knows,
// and `why`. Kinds: "cpu agent", "no driver", "old driver", "no gpu", "no such gpu", "unusable
// gpu", "another gpu".
tvm::ffi::json::Object OpenGpu(int64_t index);

// Of the GPU that is open: names as in farm.agent.facts. Empty when none is.
tvm::ffi::json::Object GpuFacts();

// When the GPU passes marks between the things it was given: the device's own clock, which the host
// does not wait for.
class GpuClock {
 public:
  virtual ~GpuClock() = default;
  // The number of a new mark.
  virtual int64_t Mark() = 0;
  // Nanoseconds from the first mark to each; waits for the last, and forgets them all.
  virtual std::vector<int64_t> Times() = 0;
};

// Null when no GPU is open.
std::unique_ptr<GpuClock> MakeGpuClock();

}  // namespace farm
