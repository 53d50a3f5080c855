// Functions that a device agent loads as it loads a model's: launches of tasks by its thread pool.
#include <tvm/ffi/c_api.h>
#include <tvm/runtime/c_backend_api.h>

enum { kElements = 64 };

static int counts[kElements], sums[kElements];
static volatile int idle;

static int64_t Argument(const TVMFFIAny* arguments, int index) { return arguments[index].v_int64; }

static int Return(TVMFFIAny* result, int64_t value) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = value;
  return 0;
}

static void Clear(void) {
  for (int i = 0; i < kElements; ++i) counts[i] = sums[i] = 0;
}

static void CountOwnElements(int task, int tasks) {
  for (int i = task; i < kElements; i += tasks) ++counts[i];
}

static int Count(int task, TVMParallelGroupEnv* group, void* turns) {
  CountOwnElements(task, group->num_task);
  for (int i = 0; i < *(int64_t*)turns; ++i) idle = i;
  return 0;
}

// (launches, turns): returns how many elements have not been counted once in each launch. A task
// takes the longer the more turns it has.
int __tvm_ffi_uncounted(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  int64_t launches = Argument(arguments, 0), turns = Argument(arguments, 1), wrong = 0;
  Clear();
  for (int i = 0; i < launches; ++i) {
    if (TVMBackendParallelLaunch(Count, &turns, 0)) return -1;
  }
  for (int i = 0; i < kElements; ++i) wrong += counts[i] != launches;
  return Return(result, wrong);
}

static int AddOthers(int task, TVMParallelGroupEnv* group, void* data) {
  CountOwnElements(task, group->num_task);
  TVMBackendParallelBarrier(task, group);
  for (int i = task; i < kElements; i += group->num_task) sums[i] += counts[kElements - 1 - i];
  TVMBackendParallelBarrier(task, group);
  CountOwnElements(task, group->num_task);
  return 0;
}

// (launches): returns how many elements are wrong if tasks read what others have written before a
// barrier. Each launch adds 1, then reads, then adds 1: the sums are 1 + 3 + 5...
int __tvm_ffi_wrong_after_barriers(void* self, const TVMFFIAny* arguments, int32_t count,
                                   TVMFFIAny* result) {
  int64_t launches = Argument(arguments, 0), wrong = 0;
  Clear();
  for (int i = 0; i < launches; ++i) {
    if (TVMBackendParallelLaunch(AddOthers, 0, 0)) return -1;
  }
  for (int i = 0; i < kElements; ++i) wrong += sums[i] != launches * launches;
  return Return(result, wrong);
}

static int Fail(int task, TVMParallelGroupEnv* group, void* which) {
  if (task != *(int64_t*)which) return 0;
  TVMFFIErrorSetRaisedFromCStr("ValueError", "no such weight");
  return -1;
}

// (task): that one ends with an error.
int __tvm_ffi_fail(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  int64_t which = Argument(arguments, 0);
  return TVMBackendParallelLaunch(Fail, &which, 2) ? -1 : Return(result, 0);
}

static int CountWithin(int task, TVMParallelGroupEnv* group, void* turns) {
  return TVMBackendParallelLaunch(Count, turns, 0);
}

// (tasks): each task launches tasks itself; returns how often an element has been counted.
int __tvm_ffi_counted_within(void* self, const TVMFFIAny* arguments, int32_t count,
                             TVMFFIAny* result) {
  int64_t turns = 0;
  Clear();
  if (TVMBackendParallelLaunch(CountWithin, &turns, (int)Argument(arguments, 0))) return -1;
  return Return(result, counts[0]);
}
