#include "loader/elf_loader.h"

#include <string.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error_code.h"
#include "base/io.h"
#include "module_internal.h"

namespace farm {
namespace {

namespace ffi = tvm::ffi;
namespace symbol = tvm::ffi::symbol;

void Demand(bool ok) {
  if (!ok)
    TVM_FFI_THROW(RuntimeError) << Coded(
        error::kLibrary,
        "cannot load library: corrupted: the modules that it carries have no sense");
}

// What a library carries beside its code: its size, then the tree of its modules as two lists of
// numbers (where the children of each begin, and the children), then kind and content of each. TVM
// takes all of these sizes and numbers as they come.
class Carried {
 public:
  Carried(const char* begin, size_t size) : at_(begin), left_(size) {}

  void CheckAll() {
    const uint64_t nbytes = Number();
    Demand(nbytes <= left_);
    left_ = static_cast<size_t>(nbytes);
    const auto begins = Numbers(), children = Numbers();
    Demand(begins.size() >= 2);
    const size_t modules = begins.size() - 1;
    for (size_t i = 0; i < modules; ++i) Demand(begins[i] <= begins[i + 1]);
    Demand(begins.back() <= children.size());
    for (uint64_t child : children) Demand(child < modules);
    for (size_t i = 0; i < modules; ++i) {
      if (Text() != "_lib") Text();
    }
  }

 private:
  uint64_t Number() {
    uint64_t value = 0;
    Demand(left_ >= sizeof(value));
    memcpy(&value, at_, sizeof(value));
    Skip(sizeof(value));
    return value;
  }

  std::vector<uint64_t> Numbers() {
    const uint64_t count = Number();
    Demand(count <= left_ / sizeof(uint64_t));
    std::vector<uint64_t> numbers(static_cast<size_t>(count));
    for (uint64_t& number : numbers) number = Number();
    return numbers;
  }

  std::string_view Text() {
    const uint64_t size = Number();
    Demand(size <= left_);
    std::string_view text(at_, static_cast<size_t>(size));
    Skip(text.size());
    return text;
  }

  void Skip(size_t size) {
    at_ += size;
    left_ -= size;
  }

  const char* at_;
  size_t left_;
};

class ElfLibrary final : public ffi::Library {
 public:
  explicit ElfLibrary(const std::string& path) : image_(ReadFile(path)) {}
  void* GetSymbol(const ffi::String& name) final { return SymbolForTvm(image_, name); }

 private:
  ElfImage image_;
};

bool StartsWith(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

}  // namespace

void* SymbolForTvm(const ElfImage& image, const std::string& name) {
  if (name == symbol::tvm_ffi_library_bin) {
    const char* carried = image.Data(name);
    if (carried) Carried(carried, image.BytesFrom(carried)).CheckAll();
    return const_cast<char*>(carried);
  }
  // The functions of a library have this prefix. All others that TVM asks for are pointers, to be
  // set to what the library may call.
  if (StartsWith(name, symbol::tvm_ffi_symbol_prefix) && name != symbol::tvm_ffi_library_ctx)
    return image.Code(name);
  return image.Pointer(name);
}

void RegisterElfLoader() {
  auto load = [](const ffi::String& path, const ffi::String&) {
    return ffi::CreateLibraryModule(ffi::make_object<ElfLibrary>(path));
  };
  ffi::Function::SetGlobal("ffi.Module.load_from_file.so", ffi::Function::FromTyped(load),
                           /*override=*/true);
}

}  // namespace farm
