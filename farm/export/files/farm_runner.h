// Runs one model: an exported folder of farm's. No Python, and no other library than the runtime
// that lies beside it.
//
//   farm::Runner runner("model");
//   runner.SetInput("image", pixels.data(), pixels.size() * sizeof(float));
//   runner.Run();
//   std::vector<float> scores(1000);
//   runner.GetOutput("scores", scores.data(), scores.size() * sizeof(float));
//
// Every mistake is a std::runtime_error that says what was wanted. A Runner is used by one thread
// at a time; the threads that compute are its own, and shared by all Runners of a process.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace farm {

// An input or an output: its name, its type as numpy calls it ("float32"), its extents. Those of an
// output are the most that it can have, if the model selects by value, as detectors do.
struct TensorInfo {
  std::string name, dtype;
  std::vector<int64_t> shape;
  size_t nbytes = 0;
};

// How an image becomes an input: scaled to [0, 1], then (x - mean) / std for each channel.
struct ImageRules {
  std::vector<double> mean, std;  // one for each channel, or one for all
  std::string layout;             // "NCHW" or "NHWC"
  std::string channels;           // "RGB", "BGR" or "L" (grey)
  double crop = 0;  // the share of the image that is kept, from its middle; 0 where it is stretched
                    // to the input's size
};

class Runner {
 public:
  // `folder` holds library.so, model.json and the parameters. With `threads` 0, TVM's runtime takes
  // as many as there are cores; the first Runner of a process decides.
  explicit Runner(const std::string& folder, int threads = 0);
  ~Runner();

  const std::vector<TensorInfo>& inputs() const;
  const std::vector<TensorInfo>& outputs() const;
  const std::vector<std::string>& labels()
      const;  // of the classes, in the order of the scores; may be empty
  const ImageRules& image_rules() const;

  // Copies `nbytes`, which must be the input's size: elements in row-major order, in this machine's
  // byte order.
  void SetInput(const std::string& name, const void* data, size_t nbytes);
  // One inference. All inputs must have been set; they stay.
  void Run();
  // The extents and the size of an output of the last run.
  std::vector<int64_t> OutputShape(const std::string& name) const;
  size_t OutputBytes(const std::string& name) const;
  // Copies an output of the last run. `nbytes` must be its size.
  void GetOutput(const std::string& name, void* data, size_t nbytes) const;

 private:
  struct State;
  // The place of an output, of which there is one after Run().
  size_t FindOutput(const std::string& name) const;
  std::unique_ptr<State> state_;
};

}  // namespace farm
