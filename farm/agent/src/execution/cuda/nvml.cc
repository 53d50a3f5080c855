#include "execution/cuda/nvml.h"

#include "execution/cuda/dynamic_library.h"

namespace farm::cuda {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

#define FARM_NVML_FUNCTIONS(X)                                                            \
  X(nvmlInit_v2, ())                                                                      \
  X(nvmlSystemGetDriverVersion, (char* version, unsigned size))                           \
  X(nvmlDeviceGetHandleByPciBusId_v2, (const char* bus_id, void** device))                \
  X(nvmlDeviceGetTemperature, (void* device, int sensor, unsigned* celsius))              \
  X(nvmlDeviceGetClockInfo, (void* device, int kind, unsigned* mhz))                      \
  X(nvmlDeviceGetMaxClockInfo, (void* device, int kind, unsigned* mhz))                   \
  X(nvmlDeviceGetPowerUsage, (void* device, unsigned* milliwatts))                        \
  X(nvmlDeviceGetEnforcedPowerLimit, (void* device, unsigned* milliwatts))                \
  X(nvmlDeviceGetTotalEnergyConsumption, (void* device, unsigned long long* millijoules)) \
  X(nvmlDeviceGetCurrentClocksThrottleReasons, (void* device, unsigned long long* bits))

constexpr int kGpuSensor = 0, kMultiprocessorClock = 1, kMemoryClock = 2;

// nvmlClocksEventReasons: those that make it slower than it could be.
struct Reason {
  unsigned long long bit;
  const char* words;
};
constexpr Reason kReasons[] = {{0x4, "power cap"},
                               {0x8, "hardware slowdown"},
                               {0x20, "temperature, by the driver"},
                               {0x40, "temperature, by the hardware"},
                               {0x80, "power brake"}};

struct Management {
  FARM_NVML_FUNCTIONS(FARM_DECLARE_POINTER)
  bool there = false;
};

Management Opened() {
  Management management;
  std::string why;
  void* library = LoadLibrary("libnvidia-ml.so.1", &why);
  if (!library) return management;
#define FARM_SET_NVML(name, arguments) management.FARM_SET_POINTER(name, arguments)
  FARM_NVML_FUNCTIONS(FARM_SET_NVML)
  management.there = management.nvmlInit_v2 && management.nvmlDeviceGetHandleByPciBusId_v2 &&
                     !management.nvmlInit_v2();
  return management;
}

// Every function but the two above may be missing, and what a GPU does not support is no error.
template <typename F, typename... Arguments>
bool Told(F function, Arguments... arguments) {
  return function && !function(arguments...);
}

}  // namespace

void AddManagementFacts(const std::string& bus_id, json::Object* facts) {
  static const Management management = Opened();
  void* device = nullptr;
  if (!management.there || management.nvmlDeviceGetHandleByPciBusId_v2(bus_id.c_str(), &device))
    return;
  const Management& m = management;
  auto set = [facts](const char* name, const tvm::ffi::Any& value) {
    facts->Set(String(name), value);
  };
  unsigned value = 0;
  unsigned long long wide = 0;
  char text[80] = "";
  if (Told(m.nvmlSystemGetDriverVersion, text, sizeof(text))) set("gpu_driver", String(text));
  if (Told(m.nvmlDeviceGetTemperature, device, kGpuSensor, &value))
    set("gpu_temperature_c", int64_t{value});
  if (Told(m.nvmlDeviceGetClockInfo, device, kMultiprocessorClock, &value))
    set("gpu_clock_khz", int64_t{value} * 1000);
  if (Told(m.nvmlDeviceGetMaxClockInfo, device, kMultiprocessorClock, &value))
    set("gpu_max_clock_khz", int64_t{value} * 1000);
  if (Told(m.nvmlDeviceGetClockInfo, device, kMemoryClock, &value))
    set("gpu_memory_clock_khz", int64_t{value} * 1000);
  if (Told(m.nvmlDeviceGetPowerUsage, device, &value)) set("gpu_power_w", value * 1e-3);
  if (Told(m.nvmlDeviceGetEnforcedPowerLimit, device, &value))
    set("gpu_power_limit_w", value * 1e-3);
  if (Told(m.nvmlDeviceGetTotalEnergyConsumption, device, &wide))
    set("gpu_energy_j", static_cast<double>(wide) * 1e-3);
  if (Told(m.nvmlDeviceGetCurrentClocksThrottleReasons, device, &wide)) {
    json::Array reasons;
    for (const Reason& reason : kReasons) {
      if (wide & reason.bit) reasons.push_back(String(reason.words));
    }
    set("gpu_slowed_by", reasons);
  }
}

}  // namespace farm::cuda
