#include "execution/run_deployed.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/io.h"
#include "base/npy.h"
#include "command_line.h"
#include "execution/model.h"
#include "rpc/session.h"
#include "rpc/work_directory.h"
#include "store/deployments.h"

namespace farm {
namespace {

using tvm::runtime::Tensor;

constexpr size_t kBest = 5;

// IEEE 754's half precision.
double FromHalf(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = exponent == 31 ? (fraction ? NAN : INFINITY)
                 : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                : std::ldexp(fraction, -24);
  return bits >> 15 ? -value : value;
}

template <typename T>
std::vector<double> Converted(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return std::vector<double>(values.begin(), values.end());
}

// Empty for dtypes that are no numbers to print.
std::vector<double> Values(const Tensor& tensor) {
  std::string bytes(tvm::ffi::GetDataSize(*tensor.operator->()), '\0');
  if (!bytes.empty()) tensor.CopyToBytes(&bytes[0], bytes.size());
  const std::string dtype = DtypeName(tensor->dtype);
  if (dtype == "float32") return Converted<float>(bytes);
  if (dtype == "float64") return Converted<double>(bytes);
  if (dtype == "int8") return Converted<int8_t>(bytes);
  if (dtype == "int16") return Converted<int16_t>(bytes);
  if (dtype == "int32") return Converted<int32_t>(bytes);
  if (dtype == "int64") return Converted<int64_t>(bytes);
  if (dtype == "uint8" || dtype == "bool") return Converted<uint8_t>(bytes);
  if (dtype == "uint16") return Converted<uint16_t>(bytes);
  if (dtype == "uint32") return Converted<uint32_t>(bytes);
  if (dtype == "uint64") return Converted<uint64_t>(bytes);
  std::vector<double> values;
  if (dtype == "float16") {
    for (double half : Converted<uint16_t>(bytes))
      values.push_back(FromHalf(static_cast<uint16_t>(half)));
  }
  return values;
}

// The file for each input. UsageError when they do not fit.
std::vector<std::string> FilesFor(const std::vector<TensorSpec>& specs,
                                  const std::vector<std::string>& given) {
  std::vector<std::string> files(specs.size());
  std::string names;
  for (const TensorSpec& spec : specs) names += " --input " + spec.name + "=FILE";
  for (const std::string& word : given) {
    size_t found = specs.size(), name = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      const std::string prefix = specs[i].name + "=";
      if (word.compare(0, prefix.size(), prefix) == 0 && prefix.size() > name) {
        found = i;
        name = prefix.size();
      }
    }
    if (found == specs.size() && specs.size() == 1) found = 0;
    if (found == specs.size())
      throw UsageError("which input is " + word + "? This model wants" + names);
    files[found] = word.substr(name);
  }
  if (std::count(files.begin(), files.end(), "")) throw UsageError("this model wants" + names);
  return files;
}

void Describe(const std::string& name, const Tensor& tensor, const std::vector<double>& values) {
  std::string shape = ShapeText(tensor->shape, static_cast<size_t>(tensor->ndim));
  printf("%s: %s %s", name.c_str(), DtypeName(tensor->dtype).c_str(), shape.c_str());
  if (!values.empty()) {
    auto [low, high] = std::minmax_element(values.begin(), values.end());
    printf(", from %.4g to %.4g", *low, *high);
  }
  printf("\n");
}

// The largest first, the lower index first among equals, and what is no number last.
void PrintBest(const std::vector<double>& scores, const std::vector<std::string>& labels) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  auto better = [&scores](size_t a, size_t b) {
    return scores[a] > scores[b] || (!std::isnan(scores[a]) && std::isnan(scores[b]));
  };
  std::stable_sort(order.begin(), order.end(), better);
  order.resize(std::min(order.size(), kBest));
  for (size_t i : order)
    printf("%10.4f  %s\n", scores[i],
           i < labels.size() ? labels[i].c_str() : std::to_string(i).c_str());
}

// A file name for an output, whatever it is called: no two are the same.
std::string FileFor(std::string name, std::set<std::string>* taken) {
  auto is_odd = [](unsigned char c) { return !isalnum(c) && !strchr("._-", c); };
  std::replace_if(name.begin(), name.end(), is_odd, '_');
  if (name.empty() || name[0] == '.') name = "_" + name;
  while (!taken->insert(name).second) name += "_";
  return name + ".npy";
}

}  // namespace

int RunDeployment(const RunOptions& options) {
  if (options.name.empty()) throw UsageError("run wants the NAME of a deployment");
  MakeDirectories(options.work_base);
  SweepWorkDirectories(options.work_base);
  const WorkDirectory work(options.work_base);
  BeginThreads(options.threads);
  Deployments deployments(std::make_shared<Store>(options.store, work.path(), UINT64_MAX));
  const Manifest manifest = deployments.Open(options.name);
  const std::vector<TensorSpec> inputs = manifest.Specs("inputs"),
                                specs = manifest.Specs("outputs");
  const std::vector<std::string> files = FilesFor(inputs, options.inputs),
                                 labels = manifest.Labels();
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) tensors.push_back(ReadNpy(files[i], inputs[i]));
  StartThreads();
  Model model(work.path(), manifest.files().count(kParametersFile) > 0, options.gpu);
  const std::vector<Tensor> outputs = model.Run(tensors);
  if (!options.output.empty()) MakeDirectories(options.output);
  std::set<std::string> taken;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string name = i < specs.size() ? specs[i].name : "output_" + std::to_string(i);
    const std::vector<double> values = Values(outputs[i]);
    const Tensor& output = outputs[i];
    Describe(name, output, values);
    const bool scores =
        outputs.size() == 1 && output->ndim == 2 && output->shape[0] == 1 && values.size() > 1;
    if (scores) PrintBest(values, labels);
    if (!options.output.empty()) WriteNpy(options.output + "/" + FileFor(name, &taken), output);
  }
  return fflush(stdout) != 0;
}

int ListDeployments(const std::string& store) {
  Releases releases(store);
  for (const std::string& name : releases.Names()) {
    auto manifest = releases.Read(name, releases.Current(name));
    if (!manifest) continue;
    printf("%s  release %d  %s  %s\n", name.c_str(), manifest->release(),
           manifest->Text("installed_at").c_str(),
           manifest->Text("artifact").substr(0, 12).c_str());
  }
  return fflush(stdout) != 0;
}

}  // namespace farm
