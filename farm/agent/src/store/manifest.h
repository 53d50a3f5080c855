// What a deployment says of itself: a JSON object that the host makes and the device keeps.
#pragma once
#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace farm {

// The files of a deployment that have a part in running it.
constexpr char kLibraryFile[] = "library.so", kParametersFile[] = "params_shard_0.bin";

// An input or an output of a model.
struct TensorSpec {
  std::string name, dtype;
  std::vector<int64_t> shape;
};

class Manifest {
 public:
  // At most 1 MiB of JSON with a plain `name` and with `files`, plain file name -> digest. IoError
  // "not a manifest: ...".
  explicit Manifest(const std::string& text);

  const std::string& name() const { return name_; }
  const std::map<std::string, std::string>& files() const { return files_; }

  // Which release of its name it is; 0 until it has been installed.
  int release() const { return release_; }
  void SetRelease(int release);

  // The text at a key; empty when there is none.
  std::string Text(const std::string& key) const;
  // `key` is "inputs" or "outputs". IoError when they make no sense.
  std::vector<TensorSpec> Specs(const std::string& key) const;
  // Of the classes, in order; empty when it has none.
  std::vector<std::string> Labels() const;

  const tvm::ffi::json::Object& json() const { return json_; }
  std::string AsJson() const;

 private:
  tvm::ffi::Any At(const std::string& key) const;

  tvm::ffi::json::Object json_;
  std::string name_;
  std::map<std::string, std::string> files_;
  int release_ = 0;
};

}  // namespace farm
