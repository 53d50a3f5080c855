#include "execution/gpu.h"

#include <memory>
#include <string>
#include <vector>

#include "execution/cuda/graph.h"
#include "execution/cuda/nvml.h"
#include "execution/cuda/open_gpu.h"

namespace farm {
namespace cuda {
namespace {

// Marks are events, which are used again.
class EventClock final : public GpuClock {
 public:
  ~EventClock() final {
    for (Handle event : events_) TheDriver().cuEventDestroy_v2(event);
  }

  int64_t Mark() final {
    if (used_ == events_.size()) {
      events_.push_back(nullptr);
      FARM_DRIVER(cuEventCreate, &events_.back(), 0);
    }
    FARM_DRIVER(cuEventRecord, events_[used_], CurrentStream());
    return static_cast<int64_t>(used_++);
  }

  std::vector<int64_t> Times() final {
    std::vector<int64_t> times(used_);
    if (used_) FARM_DRIVER(cuEventSynchronize, events_[used_ - 1]);
    for (size_t i = 1; i < used_; ++i) {
      float milliseconds = 0;
      FARM_DRIVER(cuEventElapsedTime, &milliseconds, events_[0], events_[i]);
      times[i] = static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
    }
    used_ = 0;
    return times;
  }

 private:
  std::vector<Handle> events_;
  size_t used_ = 0;
};

}  // namespace
}  // namespace cuda

namespace json = tvm::ffi::json;
using tvm::ffi::String;

const bool kForGpu = true;

json::Object OpenGpu(int64_t index) {
  json::Object answer;
  try {
    const cuda::SessionGpu& gpu = cuda::TheGpu(index);
    answer.Set(String("name"), String(gpu.name));
    answer.Set(String("architecture"), String(gpu.architecture));
    answer.Set(String("index"), int64_t{gpu.index});
  } catch (const cuda::Problem& problem) {
    answer.Set(String("problem"), String(problem.kind));
    answer.Set(String("why"), String(problem.what()));
  }
  return answer;
}

json::Object GpuFacts() {
  json::Object facts;
  const cuda::SessionGpu* gpu = cuda::OpenedGpu();
  if (!gpu) return facts;
  facts.Set(String("gpu"), String(gpu->name));
  facts.Set(String("gpu_index"), int64_t{gpu->index});
  facts.Set(String("gpu_architecture"), String(gpu->architecture));
  facts.Set(String("gpu_cuda"), String(cuda::VersionText(gpu->driver_version)));
  facts.Set(String("gpu_multiprocessors"), int64_t{gpu->Attribute(cuda::kMultiprocessors)});
  size_t free = 0, total = 0;
  if (!cuda::TheDriver().cuMemGetInfo_v2(&free, &total)) {
    facts.Set(String("gpu_memory_total_bytes"), static_cast<int64_t>(total));
    facts.Set(String("gpu_memory_free_bytes"), static_cast<int64_t>(free));
  }
  cuda::AddLaunchFacts(&facts);
  cuda::AddManagementFacts(gpu->bus_id, &facts);
  return facts;
}

std::unique_ptr<GpuClock> MakeGpuClock() {
  return cuda::OpenedGpu() ? std::make_unique<cuda::EventClock>() : std::unique_ptr<GpuClock>();
}

}  // namespace farm
