// NVIDIA's driver, by its C interface (CUDA Driver API, cuda.h), loaded at run time: nothing of
// CUDA is needed to build the agent.
#pragma once
#include <cstddef>
#include <string>

#include "execution/cuda/dynamic_library.h"

namespace farm::cuda {

using Handle = void*;                // a context, module, function, stream or event
using Address = unsigned long long;  // on the GPU

#define FARM_DRIVER_FUNCTIONS(X)                                                                  \
  X(cuInit, (unsigned flags))                                                                     \
  X(cuDriverGetVersion, (int* version))                                                           \
  X(cuGetErrorName, (int error, const char** name))                                               \
  X(cuGetErrorString, (int error, const char** text))                                             \
  X(cuDeviceGetCount, (int* count))                                                               \
  X(cuDeviceGet, (int* device, int index))                                                        \
  X(cuDeviceGetName, (char* name, int size, int device))                                          \
  X(cuDeviceGetAttribute, (int* value, int attribute, int device))                                \
  X(cuDeviceGetPCIBusId, (char* name, int size, int device))                                      \
  X(cuDevicePrimaryCtxRetain, (Handle* context, int device))                                      \
  X(cuCtxSetCurrent, (Handle context))                                                            \
  X(cuMemGetInfo_v2, (size_t* free, size_t* total))                                               \
  X(cuMemAlloc_v2, (Address* memory, size_t bytes))                                               \
  X(cuMemFree_v2, (Address memory))                                                               \
  X(cuMemcpyHtoDAsync_v2, (Address to, const void* from, size_t bytes, Handle stream))            \
  X(cuMemcpyDtoHAsync_v2, (void* to, Address from, size_t bytes, Handle stream))                  \
  X(cuMemcpyDtoDAsync_v2, (Address to, Address from, size_t bytes, Handle stream))                \
  X(cuStreamCreate, (Handle* stream, unsigned flags))                                             \
  X(cuStreamDestroy_v2, (Handle stream))                                                          \
  X(cuStreamSynchronize, (Handle stream))                                                         \
  X(cuStreamWaitEvent, (Handle stream, Handle event, unsigned flags))                             \
  X(cuEventCreate, (Handle* event, unsigned flags))                                               \
  X(cuEventDestroy_v2, (Handle event))                                                            \
  X(cuEventRecord, (Handle event, Handle stream))                                                 \
  X(cuEventSynchronize, (Handle event))                                                           \
  X(cuEventElapsedTime, (float* milliseconds, Handle begin, Handle end))                          \
  X(cuModuleLoadData, (Handle* module, const void* image))                                        \
  X(cuModuleUnload, (Handle module))                                                              \
  X(cuModuleGetFunction, (Handle* function, Handle module, const char* name))                     \
  X(cuFuncSetAttribute, (Handle function, int attribute, int value))                              \
  X(cuLaunchKernel, (Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,          \
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, \
                     Handle stream, void** arguments, void** extra))                              \
  X(cuLaunchCooperativeKernel,                                                                    \
    (Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,        \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, Handle stream, void** arguments))

// Those of graphs, which may be missing.
#define FARM_GRAPH_FUNCTIONS(X)                                                          \
  X(cuStreamBeginCapture_v2, (Handle stream, int mode))                                  \
  X(cuStreamEndCapture, (Handle stream, Handle* graph))                                  \
  X(cuGraphGetNodes, (Handle graph, Handle* nodes, size_t* count))                       \
  X(cuGraphInstantiateWithFlags, (Handle* made, Handle graph, unsigned long long flags)) \
  X(cuGraphLaunch, (Handle graph, Handle stream))                                        \
  X(cuGraphExecDestroy, (Handle graph))                                                  \
  X(cuGraphDestroy, (Handle graph))

// Results (CUresult), attributes of a device (CUdevice_attribute) and of a function
// (CUfunction_attribute), flags of a stream, and how its work is recorded (CUstreamCaptureMode).
constexpr int kOutOfMemory = 2, kShuttingDown = 4, kNoDevice = 100, kNoBinary = 209;
constexpr int kMaxThreadsPerBlock = 1, kMaxBlockX = 2, kMaxSharedPerBlock = 8, kWarp = 10,
              kMaxRegisters = 12, kClockKhz = 13, kMultiprocessors = 16, kL2Bytes = 38, kMajor = 75,
              kMinor = 76;
constexpr int kMaxDynamicShared = 8;
constexpr unsigned kNonBlocking = 1;
constexpr int kRelaxed = 2;

struct Driver {
  FARM_DRIVER_FUNCTIONS(FARM_DECLARE_POINTER)
  FARM_GRAPH_FUNCTIONS(FARM_DECLARE_POINTER)

  // Empty when all is there; why it cannot be used otherwise, and why it can make no graphs.
  std::string missing, missing_for_graphs;

  // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
  std::string Words(int result) const;
};

// Loaded at the first call.
const Driver& TheDriver();

// Throws an error of TVM's that names the call, for any result but success.
void Check(int result, const char* call);

}  // namespace farm::cuda

#define FARM_DRIVER(name, ...) \
  ::farm::cuda::Check(::farm::cuda::TheDriver().name(__VA_ARGS__), #name)
