#include "execution/cuda/graph.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

namespace farm::cuda {
namespace {

bool recording = false;

struct Launches {
  bool known = false;
  size_t steps = 0;
  std::string why;
};

Launches& LaunchesOfLastMachine() {
  static Launches launches;
  return launches;
}

// While it lives, what this thread gives to the GPU goes into a graph, and memory comes from a
// pool. The stream is one of its own, as that of all the others cannot be recorded. Recording is
// relaxed, which allows to allocate: the pool keeps what the graph uses.
class Recorded {
 public:
  explicit Recorded(const std::shared_ptr<GraphMemory>& pool) {
    FARM_DRIVER(cuStreamCreate, &stream_, kNonBlocking);
    GpuMemory::Global().SetApart(pool);
    TVMFFIEnvSetStream(kDLCUDA, OpenedGpu()->index, stream_, &before_);
    recording = true;
  }
  ~Recorded() {
    Handle graph = End();
    if (graph) TheDriver().cuGraphDestroy(graph);
    recording = false;
    TVMFFIEnvSetStream(kDLCUDA, OpenedGpu()->index, before_, nullptr);
    GpuMemory::Global().SetApart(nullptr);
    TheDriver().cuStreamDestroy_v2(stream_);
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

  void Begin() {
    FARM_DRIVER(cuStreamBeginCapture_v2, stream_, kRelaxed);
    begun_ = true;
  }

  // The graph, which is the caller's; null where it came to nothing, with the driver's result.
  Handle End(int* result = nullptr) {
    Handle graph = nullptr;
    const int error = begun_ ? TheDriver().cuStreamEndCapture(stream_, &graph) : 0;
    begun_ = false;
    if (result) *result = error;
    return graph;
  }

 private:
  Handle stream_ = nullptr;
  TVMFFIStreamHandle before_ = nullptr;
  bool begun_ = false;
};

}  // namespace

Graph::Graph(const std::function<void()>& inference) : memory_(std::make_shared<GraphMemory>()) {
  const Driver& driver = TheDriver();
  if (!driver.missing_for_graphs.empty()) TVM_FFI_THROW(RuntimeError) << driver.missing_for_graphs;
  FARM_DRIVER(cuStreamSynchronize, CurrentStream());
  GpuMemory::Global().Clear();  // the graph needs as much, and is to have room
  Recorded recorded(memory_);
  recorded.Begin();
  inference();
  int error = 0;
  Handle graph = recorded.End(&error);
  Check(error, "cuStreamEndCapture");
  error = driver.cuGraphGetNodes(graph, nullptr, &steps_);
  if (!error) error = driver.cuGraphInstantiateWithFlags(&made_, graph, 0);
  driver.cuGraphDestroy(graph);
  Check(error, "cuGraphInstantiate");
}

Graph::~Graph() { TheDriver().cuGraphExecDestroy(made_); }

void Graph::Launch() const { FARM_DRIVER(cuGraphLaunch, made_, CurrentStream()); }

bool IsRecording() { return recording; }

void MustNotBeRecorded(const char* what) {
  if (recording) TVM_FFI_THROW(RuntimeError) << "an inference " << what << " on its way";
}

void TellLaunches(size_t steps, const std::string& why) {
  LaunchesOfLastMachine() = {true, steps, why};
}

void AddLaunchFacts(tvm::ffi::json::Object* facts) {
  const Launches& last = LaunchesOfLastMachine();
  if (!last.known) return;
  using tvm::ffi::String;
  const std::string words =
      last.steps ? "one graph" : "one by one" + (last.why.empty() ? "" : ": " + last.why);
  facts->Set(String("gpu_launches"), String(words));
  if (last.steps) facts->Set(String("gpu_graph_steps"), static_cast<int64_t>(last.steps));
}

}  // namespace farm::cuda
