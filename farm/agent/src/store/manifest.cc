#include "store/manifest.h"

#include "base/io.h"
#include "base/paths.h"

namespace farm {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

constexpr size_t kMaxManifestBytes = 1 << 20, kMaxFiles = 100, kMaxDimensions = 32;
constexpr int kMaxDepth = 32;  // the parser calls itself for every bracket

[[noreturn]] void Refuse(const std::string& why) {
  throw IoError(error::kManifest, "not a manifest: " + why);
}

int DepthOf(const std::string& text) {
  int depth = 0, deepest = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (!quoted && (text[i] == '{' || text[i] == '[')) {
      deepest = std::max(deepest, ++depth);
    } else if (!quoted && (text[i] == '}' || text[i] == ']')) {
      --depth;
    }
  }
  return deepest;
}

// A value as what it must be.
template <typename T>
T As(const tvm::ffi::Any& value, const std::string& what) {
  auto found = value.as<T>();
  if (!found.has_value()) Refuse(what + " is missing, or of another kind");
  return *found;
}

TensorSpec SpecFrom(const json::Object& object, const std::string& where) {
  auto at = [&object](const char* key) {
    return object.count(String(key)) ? object.at(String(key)) : tvm::ffi::Any();
  };
  TensorSpec spec{As<String>(at("name"), "a name in " + where),
                  As<String>(at("dtype"), "a dtype in " + where),
                  {}};
  for (const tvm::ffi::Any& extent : As<json::Array>(at("shape"), "a shape in " + where)) {
    spec.shape.push_back(As<int64_t>(extent, "an extent in " + where));
    if (spec.shape.back() < 0 || spec.shape.size() > kMaxDimensions)
      Refuse("a shape in " + where + " has no sense");
  }
  return spec;
}

}  // namespace

Manifest::Manifest(const std::string& text) {
  if (text.size() > kMaxManifestBytes)
    Refuse("it has " + std::to_string(text.size()) + " bytes, more than a MiB");
  if (DepthOf(text) > kMaxDepth) Refuse("it is nested too deeply");
  String error;
  tvm::ffi::Any value = json::Parse(String(text), &error);
  if (!error.empty()) Refuse(error);
  json_ = As<json::Object>(value, "its JSON object");
  name_ = As<String>(At("name"), "`name`");
  CheckPlainName(name_);
  auto files = As<json::Object>(At("files"), "`files`");
  if (files.empty() || files.size() > kMaxFiles)
    Refuse("it has " + std::to_string(files.size()) + " files");
  for (const auto& [key, digest] : files) {
    std::string file = As<String>(key, "a file's name");
    CheckPlainName(file);
    files_[file] = As<String>(digest, "the digest of " + file);
    if (!IsDigest(files_[file])) Refuse(file + " has no SHA-256 digest");
  }
  release_ = static_cast<int>(At("release").as<int64_t>().value_or(0));
}

void Manifest::SetRelease(int release) {
  release_ = release;
  json_.Set(String("release"), int64_t{release});
}

std::string Manifest::Text(const std::string& key) const {
  auto text = At(key).as<String>();
  return text.has_value() ? std::string(*text) : "";
}

std::vector<TensorSpec> Manifest::Specs(const std::string& key) const {
  std::vector<TensorSpec> specs;
  for (const tvm::ffi::Any& spec : As<json::Array>(At(key), "`" + key + "`")) {
    specs.push_back(SpecFrom(As<json::Object>(spec, "one of `" + key + "`"), "`" + key + "`"));
  }
  return specs;
}

std::vector<std::string> Manifest::Labels() const {
  std::vector<std::string> labels;
  if (auto found = At("labels").as<json::Array>()) {
    for (const tvm::ffi::Any& label : *found) labels.push_back(As<String>(label, "a label"));
  }
  return labels;
}

std::string Manifest::AsJson() const { return json::Stringify(json_); }

tvm::ffi::Any Manifest::At(const std::string& key) const {
  return json_.count(String(key)) ? json_.at(String(key)) : tvm::ffi::Any();
}

}  // namespace farm
