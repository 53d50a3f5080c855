// An inference as one graph (CUDA Driver API, "Graph Management"): what it gives to the GPU is
// recorded once, and then launched as a whole.
#pragma once
#include <tvm/ffi/extra/json.h>

#include <functional>
#include <memory>
#include <string>

#include "execution/cuda/gpu_memory.h"
#include "execution/cuda/open_gpu.h"

namespace farm::cuda {

class Graph {
 public:
  // Records what `inference` gives to the GPU: nothing of that is computed. It must have run
  // before, so that its kernels are loaded, and must do the same each time. Throws TVM's errors
  // where that is not possible.
  explicit Graph(const std::function<void()>& inference);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Computes the inference, on what lies at the addresses of its inputs now; its outputs lie where
  // they did when it was recorded.
  void Launch() const;

  // Kernels and copies.
  size_t steps() const { return steps_; }

 private:
  std::shared_ptr<GraphMemory> memory_;
  Handle made_ = nullptr;
  size_t steps_ = 0;
};

// Whether an inference is recorded right now.
bool IsRecording();

// Throws in an inference that is recorded: what the host does on the way would not be done again.
// `what` it does: "waits for the GPU".
void MustNotBeRecorded(const char* what);

// What the facts say of the last machine: that its inferences are a graph of so many steps; or,
// with 0, are not, and why.
void TellLaunches(size_t steps, const std::string& why);

// `gpu_launches`, "one graph" or "one by one", with the reason after a colon; `gpu_graph_steps`.
void AddLaunchFacts(tvm::ffi::json::Object* facts);

}  // namespace farm::cuda
