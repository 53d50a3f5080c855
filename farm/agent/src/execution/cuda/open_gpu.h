// The one GPU that this process computes on.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "execution/cuda/driver.h"

namespace farm::cuda {

// Why there is none: `kind` as OpenGpu has it.
struct Problem : std::runtime_error {
  Problem(const char* kind, const std::string& why) : std::runtime_error(why), kind(kind) {}
  const char* kind;
};

// A version of CUDA as the driver counts it, as text: 13000 is "13.0".
std::string VersionText(int version);

struct SessionGpu {
  int index = 0, device = 0, driver_version = 0;
  Handle context = nullptr;
  std::string name, architecture, bus_id;

  // An attribute of the device, 0 where the driver does not tell.
  int Attribute(int attribute) const;
};

// Opens it at the first call, for the calling thread; the same afterwards. Throws a Problem.
const SessionGpu& TheGpu(int64_t index);

// The one that is open; null before.
const SessionGpu* OpenedGpu();

// The stream that this thread's work goes to.
Handle CurrentStream();

}  // namespace farm::cuda
