#include "execution/gpu.h"

#include <string>

namespace farm {

const bool kForGpu = false;

tvm::ffi::json::Object OpenGpu(int64_t) {
  tvm::ffi::json::Object answer;
  answer.Set(tvm::ffi::String("problem"), tvm::ffi::String("cpu agent"));
  answer.Set(
      tvm::ffi::String("why"),
      tvm::ffi::String("the agent that runs there is the static one, which computes on CPUs"));
  return answer;
}

tvm::ffi::json::Object GpuFacts() { return {}; }

std::unique_ptr<GpuClock> MakeGpuClock() { return nullptr; }

}  // namespace farm
