// Stands in for NVIDIA's management library: a card that is well, or slowed down for the reasons
// whose bits STAND_IN_REASONS has.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char* version, unsigned size) {
  return snprintf(version, size, "580.65.06") < 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  static int cards[2];
  *device = &cards[bus_id[6] - '1'];
  return strncmp(bus_id, "0000:0", 6) != 0;
}
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) {
  (void)device;
  *celsius = 45;
  return sensor;
}
int nvmlDeviceGetClockInfo(void* device, int kind, unsigned* mhz) {
  (void)device;
  *mhz = kind == 1 ? 1410 : 1593;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void* device, int kind, unsigned* mhz) {
  (void)device;
  *mhz = kind == 1 ? 1410 : 1593;
  return 0;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  (void)device;
  *milliwatts = 123000;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* milliwatts) {
  (void)device;
  *milliwatts = 400000;
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  (void)device;
  (void)millijoules;
  return 3;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* bits) {
  const char* reasons = getenv("STAND_IN_REASONS");
  (void)device;
  *bits = reasons ? strtoull(reasons, NULL, 0) : 1;
  return 0;
}
