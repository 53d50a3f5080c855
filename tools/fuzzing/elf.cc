// A library's bytes, mapped, relocated and searched for what TVM asks for. None of its code is run.
// Input: the file.
#include <string>

#include "fuzzing.h"
#include "loader/elf_loader.h"
#include "loader/host_symbols.h"

namespace {

const char* const kNames[] = {
    "__tvm_ffi__library_bin",
    "__tvm_ffi__library_ctx",
    "__TVMFFIFunctionCall",
    "__TVMBackendParallelLaunch",
    "__TVMBackendAllocWorkspace",
    "__tvm_ffi_main",
    "__tvm_ffi__metadata_main",
    "__TVMBackendFreeWorkspace",
    "__tvm_ffi_softmax",
    "table",
    "__tvm_ffi_fused_matmul_add_tir_tanh",
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    farm::ElfImage image(std::string(reinterpret_cast<const char*>(data), size));
    static volatile char sink;
    for (const char* name : kNames) {
      try {
        auto* address = static_cast<char*>(farm::SymbolForTvm(image, name));
        if (!address) continue;
        const std::string text = name;
        if (text.compare(0, 5, "__TVM") == 0)
          *reinterpret_cast<void**>(address) = address;  // as TVM does
        sink = sink ^ *address;
      } catch (const std::exception&) {
      }
    }
  } catch (const std::exception&) {
  }
  return 0;
}
