// Stands in for NVIDIA's driver where there is no GPU: the calls that farm's agent makes, with the
// host's memory as that of the device. Kernels are those of the library named by STAND_IN_KERNELS:
// TVM's CUDA source, compiled for the host (see compile_cuda_for_cpu.py). STAND_IN_FAIL: no-device,
// launch, fault (found at the next wait), hang, image, capture. WITHOUT_GRAPHS, when compiled: an
// old driver. STAND_IN_VERSION, STAND_IN_MEMORY (bytes), STAND_IN_LOG.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
  OK = 0,
  INVALID = 1,
  NO_MEMORY = 2,
  NOT_READY = 3,
  NO_DEVICE = 100,
  NO_BINARY = 209,
  NO_SUCH = 500,
  FAULT = 700,
  LAUNCH_FAILED = 719,
  CAPTURE_UNSUPPORTED = 900
};
enum { MOST = 4096, COUNT = 2 };
enum {
  MAX_DYNAMIC_SHARED = 8,
  SHARED_WITHOUT_ASKING = 48 << 10,
  MOST_SHARED = 163 << 10
};  // of sm_80, in bytes

struct kernel {
  char name[256];
  int allowed;
};  // bytes of dynamic shared memory

static struct {
  char* at;
  size_t size;
} held[MOST];
static size_t used;
static int initialised, current, broken;

static const char* setting(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value ? value : otherwise;
}
static int fails(const char* how) { return !strcmp(setting("STAND_IN_FAIL", ""), how); }
static size_t memory(void) { return strtoull(setting("STAND_IN_MEMORY", "1073741824"), NULL, 10); }
static void note(const char* text) {
  const char* path = getenv("STAND_IN_LOG");
  FILE* log = path ? fopen(path, "a") : NULL;
  if (log) {
    fprintf(log, "%s\n", text);
    fclose(log);
  }
}
// What is given to a GPU whose kernel hangs waits in its queue: only who waits for it notices.
static int ready(void) { return !initialised || !current ? 3 : broken == NOT_READY ? OK : broken; }
static void wait(void) {
  while (broken == NOT_READY) pause();
}

int cuInit(unsigned flags) {
  if (fails("no-device")) return NO_DEVICE;
  initialised = 1;
  return flags;
}
int cuDriverGetVersion(int* version) {
  *version = atoi(setting("STAND_IN_VERSION", "13000"));
  return OK;
}
int cuGetErrorName(int error, const char** name) {
  *name = error == NO_MEMORY       ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == NO_DEVICE     ? "CUDA_ERROR_NO_DEVICE"
          : error == FAULT         ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : error == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
                                   : "CUDA_ERROR_UNKNOWN";
  return OK;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == FAULT ? "an illegal memory access was encountered" : "it failed";
  return OK;
}
int cuDeviceGetCount(int* count) {
  *count = COUNT;
  return initialised ? OK : 3;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return index < COUNT ? OK : 101;
}
int cuDeviceGetName(char* name, int size, int device) {
  snprintf(name, size, "Stand-in GPU %d", device);
  return OK;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  *value = attribute == 75   ? 8
           : attribute == 76 ? 0
           : attribute == 16 ? 108
           : attribute == 1  ? 1024
           : attribute == 10 ? 32
                             : 49152;
  return OK;
}
int cuDeviceGetPCIBusId(char* name, int size, int device) {
  snprintf(name, size, "0000:0%d:00.0", device + 1);
  return OK;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &held[device];
  return OK;
}
int cuCtxSetCurrent(void* context) {
  current = context != NULL;
  return OK;
}
int cuMemGetInfo_v2(size_t* left, size_t* total) {
  *total = memory();
  *left = *total - used;
  return ready();
}

int cuMemAlloc_v2(unsigned long long* address, size_t size) {
  if (ready()) return ready();
  if (size > memory() - used) return NO_MEMORY;
  for (int i = 0; i < MOST; ++i) {
    if (held[i].at) continue;
    held[i].at = aligned_alloc(256, (size + 255) / 256 * 256);
    memset(held[i].at, 0xa5, size);
    held[i].size = size;
    used += size;
    *address = (uintptr_t)held[i].at;
    return OK;
  }
  return NO_MEMORY;
}
int cuMemFree_v2(unsigned long long address) {
  for (int i = 0; i < MOST; ++i) {
    if (!held[i].at || held[i].at != (char*)(uintptr_t)address) continue;
    used -= held[i].size;
    free(held[i].at);
    held[i].at = NULL;
    return ready();
  }
  return INVALID;
}

// Whether these bytes are the device's: a pointer of the host in the place of one of the device is
// an error, as it is there.
static int of_device(unsigned long long address, size_t size) {
  for (int i = 0; i < MOST; ++i) {
    const uintptr_t begin = (uintptr_t)held[i].at;
    if (begin && address >= begin && address + size <= begin + held[i].size) return 1;
  }
  return size == 0;
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t size, void* stream) {
  (void)stream;
  if (ready() || !of_device(to, size) || of_device((uintptr_t)from, 1))
    return ready() ? ready() : INVALID;
  note("to device");
  memcpy((void*)(uintptr_t)to, from, size);
  return OK;
}
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t size, void* stream) {
  (void)stream;
  if (ready() || !of_device(from, size) || of_device((uintptr_t)to, 1))
    return ready() ? ready() : INVALID;
  wait();
  note("to host");
  memcpy(to, (const void*)(uintptr_t)from, size);
  return OK;
}
// What goes into the stream that is recorded is kept instead of done.
struct step {
  char* kernel;
  unsigned sizes[7];
  void** arguments;
};
struct graph {
  struct step* steps;
  size_t count;
};
static struct graph* recorded;
static void* recorded_stream;
static int (*run)(const char*, const unsigned*, void**);
static void** (*kept)(const char*, void**);

int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t size,
                         void* stream) {
  (void)stream;
  if (ready() || recorded || !of_device(to, size) || !of_device(from, size))
    return ready() ? ready() : INVALID;
  memcpy((void*)(uintptr_t)to, (const void*)(uintptr_t)from, size);
  return OK;
}

int cuStreamCreate(void** stream, unsigned flags) {
  (void)flags;
  *stream = malloc(1);
  return ready();
}
int cuStreamDestroy_v2(void* stream) {
  free(stream);
  return OK;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  (void)stream;
  (void)event;
  (void)flags;
  return ready();
}
int cuStreamSynchronize(void* stream) {
  (void)stream;
  if (recorded) return CAPTURE_UNSUPPORTED;
  wait();
  return ready();
}
int cuEventCreate(void** event, unsigned flags) {
  (void)flags;
  *event = malloc(sizeof(struct timespec));
  return ready();
}
int cuEventDestroy_v2(void* event) {
  free(event);
  return OK;
}
int cuEventRecord(void* event, void* stream) {
  (void)stream;
  clock_gettime(CLOCK_MONOTONIC, event);
  return ready();
}
int cuEventSynchronize(void* event) {
  (void)event;
  return cuStreamSynchronize(NULL);
}
int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  const struct timespec *a = begin, *b = end;
  *milliseconds = (float)((b->tv_sec - a->tv_sec) * 1e3 + (b->tv_nsec - a->tv_nsec) * 1e-6);
  return ready();
}

int cuModuleLoadData(void** module, const void* image) {
  const unsigned char* elf = image;
  if (ready()) return ready();
  if (fails("image") ||
      memcmp(elf,
             "\x7f"
             "ELF",
             4) ||
      elf[18] != 190)
    return NO_BINARY;  // EM_CUDA
  void* library = dlopen(setting("STAND_IN_KERNELS", ""), RTLD_NOW);
  if (!library) {
    note(dlerror());
    return NO_BINARY;
  }
  run = (int (*)(const char*, const unsigned*, void**))dlsym(library, "stand_in_run");
  kept = (void** (*)(const char*, void**))dlsym(library, "stand_in_kept");
  *module = library;
  return OK;
}
int cuModuleUnload(void* module) {
  (void)module;
  return OK;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  (void)module;
  if (run(name, NULL, NULL) && !fails("hang")) return NO_SUCH;  // what hangs is not run
  struct kernel* made = malloc(sizeof(struct kernel));
  snprintf(made->name, sizeof(made->name), "%s", name);
  made->allowed = SHARED_WITHOUT_ASKING;
  *function = made;
  return OK;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute != MAX_DYNAMIC_SHARED) return OK;
  ((struct kernel*)function)->allowed = value;
  return value > MOST_SHARED ? INVALID : OK;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** arguments, void** extra) {
  const unsigned sizes[] = {gx, gy, gz, bx, by, bz, shared};
  (void)extra;
  if (ready()) return ready();
  if (fails("launch")) return LAUNCH_FAILED;
  if (fails("fault")) broken = FAULT;
  if (fails("hang")) broken = NOT_READY;
  if (broken) note(setting("STAND_IN_FAIL", ""));
  if (broken) return OK;  // it is found out later
  if (shared > (unsigned)((struct kernel*)function)->allowed || bx * by * bz > 1024) return INVALID;
  if (recorded && stream == recorded_stream) {
    recorded->steps = realloc(recorded->steps, (recorded->count + 1) * sizeof(struct step));
    struct step* step = &recorded->steps[recorded->count++];
    step->kernel = strdup(((struct kernel*)function)->name);
    step->arguments = kept(function, arguments);
    memcpy(step->sizes, sizes, sizeof(sizes));
    return OK;
  }
  char line[300];
  snprintf(line, sizeof(line), "launch %s %u,%u,%u %u,%u,%u", (char*)function, gx, gy, gz, bx, by,
           bz);
  note(line);
  return run(function, sizes, arguments);
}
int cuLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared, void* stream,
                              void** arguments) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, NULL);
}

#ifndef WITHOUT_GRAPHS
int cuStreamBeginCapture_v2(void* stream, int mode) {
  if (!stream || recorded || mode != 2 || fails("capture")) return CAPTURE_UNSUPPORTED;
  recorded = calloc(1, sizeof(struct graph));
  recorded_stream = stream;
  return ready();
}
int cuStreamEndCapture(void* stream, void** graph) {
  if (!recorded || stream != recorded_stream) return INVALID;
  *graph = recorded;
  recorded = NULL;
  return ready();
}
int cuGraphGetNodes(void* graph, void** nodes, size_t* count) {
  (void)nodes;
  *count = ((struct graph*)graph)->count;
  return OK;
}
int cuGraphInstantiateWithFlags(void** made, void* graph, unsigned long long flags) {
  struct graph* copy = malloc(sizeof(struct graph));
  *copy = *(struct graph*)graph;
  *made = copy;
  return flags ? INVALID : ready();
}
int cuGraphLaunch(void* made, void* stream) {
  const struct graph* graph = made;
  (void)stream;
  if (ready()) return ready();
  note("graph");
  for (size_t i = 0; i < graph->count; ++i) {
    if (run(graph->steps[i].kernel, graph->steps[i].sizes, graph->steps[i].arguments))
      return LAUNCH_FAILED;
  }
  return OK;
}
int cuGraphExecDestroy(void* made) {
  free(made);
  return OK;
}
int cuGraphDestroy(void* graph) {
  free(graph);
  return OK;
}  // its steps stay for what was made of it
#endif
