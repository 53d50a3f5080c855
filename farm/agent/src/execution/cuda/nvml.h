// What NVIDIA's management library (NVML, nvml.h) says of a GPU. A Jetson may have none.
#pragma once
#include <tvm/ffi/extra/json.h>

#include <string>

namespace farm::cuda {

// Clocks, temperature, power, energy, what slows it down, and the driver's version: those that are
// told, by the names of the agent's facts. `bus_id` is as the driver gives it.
void AddManagementFacts(const std::string& bus_id, tvm::ffi::json::Object* facts);

}  // namespace farm::cuda
