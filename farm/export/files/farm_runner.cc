#include "farm_runner.h"

#include <stdlib.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "execution/model.h"
#include "loader/elf_loader.h"
#include "store/manifest.h"

namespace farm {
namespace {

namespace json = tvm::ffi::json;
using tvm::runtime::Tensor;

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) throw std::runtime_error("cannot read " + path);
  return content.str();
}

DLDataType TypeOf(const std::string& dtype) { return tvm::ffi::StringToDLDataType(dtype); }

TensorInfo InfoOf(const TensorSpec& spec) {
  const DLDataType type = TypeOf(spec.dtype);
  TensorInfo info{spec.name, spec.dtype, spec.shape,
                  static_cast<size_t>((type.bits * type.lanes + 7) / 8)};
  for (int64_t extent : spec.shape) info.nbytes *= static_cast<size_t>(extent);
  return info;
}

std::vector<TensorInfo> InfosOf(const std::vector<TensorSpec>& specs) {
  std::vector<TensorInfo> infos;
  for (const TensorSpec& spec : specs) infos.push_back(InfoOf(spec));
  return infos;
}

double NumberOr(const tvm::ffi::Any& number, double otherwise) {
  if (number.as<double>().has_value()) return *number.as<double>();
  return number.as<int64_t>().has_value() ? static_cast<double>(*number.as<int64_t>()) : otherwise;
}

std::vector<double> NumbersAt(const json::Object& rules, const char* key) {
  std::vector<double> numbers;
  for (const tvm::ffi::Any& number : rules.at(tvm::ffi::String(key)).cast<json::Array>())
    numbers.push_back(NumberOr(number, 0));
  return numbers;
}

ImageRules RulesOf(const Manifest& manifest) {
  const auto rules = manifest.json().at(tvm::ffi::String("preprocess")).cast<json::Object>();
  auto text = [&rules](const char* key) {
    return std::string(rules.at(tvm::ffi::String(key)).cast<tvm::ffi::String>());
  };
  const tvm::ffi::Any crop =
      rules.count(tvm::ffi::String("crop")) ? rules.at(tvm::ffi::String("crop")) : tvm::ffi::Any();
  return {NumbersAt(rules, "mean"), NumbersAt(rules, "std"), text("layout"), text("channels"),
          NumberOr(crop, 0)};
}

// The place of a name.
size_t Find(const std::vector<TensorInfo>& infos, const std::string& name) {
  std::string names;
  for (size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].name == name) return i;
    names += (i ? ", " : "") + infos[i].name;
  }
  throw std::runtime_error("there is no " + name + "; there is " + names);
}

void CheckSize(const std::string& name, size_t nbytes, size_t given) {
  if (nbytes != given)
    throw std::runtime_error(name + " has " + std::to_string(nbytes) + " bytes, not " +
                             std::to_string(given));
}

// Before the first model is loaded: TVM reads the number of its threads once.
void Prepare(int threads) {
  if (threads > 0) setenv("TVM_NUM_THREADS", std::to_string(threads).c_str(), 1);
  RegisterElfLoader();
}

}  // namespace

struct Runner::State {
  explicit State(const std::string& folder)
      : manifest(Content(folder + "/model.json")),
        inputs(InfosOf(manifest.Specs("inputs"))),
        outputs(InfosOf(manifest.Specs("outputs"))),
        labels(manifest.Labels()),
        rules(RulesOf(manifest)),
        model(folder, manifest.files().count(kParametersFile) > 0, 0),
        given(inputs.size()) {}

  Manifest manifest;
  std::vector<TensorInfo> inputs, outputs;
  std::vector<std::string> labels;
  ImageRules rules;
  Model model;
  std::vector<std::optional<Tensor>> given;
  std::vector<Tensor> results;
};

Runner::Runner(const std::string& folder, int threads) {
  Prepare(threads);
  state_ = std::make_unique<State>(folder);
}

Runner::~Runner() = default;

const std::vector<TensorInfo>& Runner::inputs() const { return state_->inputs; }
const std::vector<TensorInfo>& Runner::outputs() const { return state_->outputs; }
const std::vector<std::string>& Runner::labels() const { return state_->labels; }
const ImageRules& Runner::image_rules() const { return state_->rules; }

void Runner::SetInput(const std::string& name, const void* data, size_t nbytes) {
  const size_t at = Find(state_->inputs, name);
  CheckSize(name, state_->inputs[at].nbytes, nbytes);
  std::optional<Tensor>& tensor = state_->given[at];
  const TensorInfo& info = state_->inputs[at];
  if (!tensor)
    tensor = Tensor::Empty(tvm::ffi::Shape(info.shape.begin(), info.shape.end()),
                           TypeOf(info.dtype), {kDLCPU, 0});
  if (nbytes) tensor->CopyFromBytes(data, nbytes);
}

void Runner::Run() {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < state_->given.size(); ++i) {
    if (!state_->given[i])
      throw std::runtime_error("the input " + state_->inputs[i].name + " was not set");
    inputs.push_back(*state_->given[i]);
  }
  state_->results = state_->model.Run(inputs);
}

size_t Runner::FindOutput(const std::string& name) const {
  const size_t at = Find(state_->outputs, name);
  if (at >= state_->results.size())
    throw std::runtime_error("there are no outputs yet: Run() comes first");
  return at;
}

std::vector<int64_t> Runner::OutputShape(const std::string& name) const {
  const tvm::ffi::ShapeView shape = state_->results[FindOutput(name)].shape();
  return std::vector<int64_t>(shape.begin(), shape.end());
}

size_t Runner::OutputBytes(const std::string& name) const {
  return tvm::ffi::GetDataSize(*state_->results[FindOutput(name)].operator->());
}

void Runner::GetOutput(const std::string& name, void* data, size_t nbytes) const {
  CheckSize(name, OutputBytes(name), nbytes);
  if (nbytes) state_->results[FindOutput(name)].CopyToBytes(data, nbytes);
}

}  // namespace farm
