// CUDA C++, as far as TVM's kernels use it, for the host: a block's threads are fibers that take
// turns, from barrier to barrier.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
struct int2 {
  int x, y;
};
struct int4 {
  int x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
template <typename T>
static inline T max(T a, T b) {
  return a > b ? a : b;
}
template <typename T>
static inline T min(T a, T b) {
  return a < b ? a : b;
}

#define __global__
#define __device__
#define __host__
#define __align__(bytes) alignas(bytes)
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static  // blocks run one after the other

struct Place {
  unsigned x, y, z;
};
static Place threadIdx, blockIdx, blockDim, gridDim;

namespace stand_in {

constexpr size_t kStackBytes = 64 << 10, kMostThreads = 1024;
constexpr unsigned kLanes = 32, kMostShared = 163 << 10;  // bytes, of sm_80
// Saves where a fiber is and goes on with another, for x86-64: what a call preserves lies on the
// stack, and then where to go on.
extern "C" void stand_in_switch(void** from, void* to);
__asm__(
    ".text\nstand_in_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\nmovq %rsp, (%rdi)\n"
    "movq %rsi, %rsp\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

enum State { kReady, kAtWarp, kAtBlock, kDone };

struct Thread {
  void* stack_pointer;
  Place place;
  State state;
  uint64_t value;  // what it shows its warp
  char* stack;
};

static Thread threads[kMostThreads];
static unsigned count, now;
static void* scheduler;
static void (*body)(void**);
static void** body_arguments;

static void Wait(State state) {
  threads[now].state = state;
  stand_in_switch(&threads[now].stack_pointer, scheduler);
}

static void Begin() {
  body(body_arguments);
  Wait(kDone);
}

// Releases all threads in a state; whether there were any.
static bool Release(State state) {
  bool any = false;
  for (unsigned i = 0; i < count; ++i) {
    if (threads[i].state != state) continue;
    threads[i].state = kReady;
    any = true;
  }
  return any;
}

static void RunBlock() {
  for (unsigned i = 0; i < count; ++i) {
    Thread& thread = threads[i];
    thread.place = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    thread.state = kReady;
    if (!thread.stack) thread.stack = static_cast<char*>(malloc(kStackBytes));
    void** top =
        reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(thread.stack + kStackBytes) / 16 * 16);
    top[-2] = reinterpret_cast<void*>(Begin);  // where a call would find the stack aligned
    thread.stack_pointer = top - 8;
  }
  do {
    for (now = 0; now < count; ++now) {
      if (threads[now].state != kReady) continue;
      threadIdx = threads[now].place;
      stand_in_switch(&scheduler, threads[now].stack_pointer);
    }
  } while (Release(kAtWarp) || Release(kAtBlock));
}

template <typename T>
static T OfLane(T value, unsigned lane) {
  union {
    T value;
    uint64_t bits;
  } shown = {};
  shown.value = value;
  threads[now].value = shown.bits;
  const unsigned source = now / kLanes * kLanes + lane;
  Wait(kAtWarp);
  shown.bits = threads[source < count && lane < kLanes ? source : now].value;
  Wait(kAtWarp);
  return shown.value;
}

// What each thread of the warp shows.
template <typename T>
static void OfWarp(const T* value, const T** shown) {
  threads[now].value = reinterpret_cast<uint64_t>(value);
  Wait(kAtWarp);
  for (unsigned lane = 0; lane < kLanes; ++lane)
    shown[lane] = reinterpret_cast<const T*>(threads[now / kLanes * kLanes + lane].value);
  Wait(kAtWarp);
}

}  // namespace stand_in

static inline void __syncthreads() { stand_in::Wait(stand_in::kAtBlock); }
static inline unsigned __activemask() { return ~0u; }
template <typename T>
static T __shfl_sync(unsigned, T value, unsigned lane, int) {
  return stand_in::OfLane(value, lane);
}
template <typename T>
static T __shfl_down_sync(unsigned, T value, unsigned offset, int) {
  return stand_in::OfLane(value, stand_in::now % stand_in::kLanes + offset);
}
template <typename T>
static T __shfl_up_sync(unsigned, T value, unsigned offset, int) {
  const unsigned lane = stand_in::now % stand_in::kLanes;
  return stand_in::OfLane(value, lane < offset ? lane : lane - offset);
}
