#include "execution/cuda/driver.h"

#include <tvm/ffi/error.h>

#include "base/error_code.h"

namespace farm::cuda {
namespace {

const char kDriverLibrary[] = "libcuda.so.1";

Driver Loaded() {
  Driver driver;
  void* library = LoadLibrary(kDriverLibrary, &driver.missing);
  if (!library) return driver;
#define FARM_SET_DRIVER(name, arguments) driver.FARM_SET_POINTER(name, arguments)
  FARM_DRIVER_FUNCTIONS(FARM_SET_DRIVER)
  FARM_GRAPH_FUNCTIONS(FARM_SET_DRIVER)
#define FARM_CHECK_DRIVER(name, arguments) \
  if (!driver.name) driver.missing = std::string(kDriverLibrary) + " has no " #name;
  FARM_DRIVER_FUNCTIONS(FARM_CHECK_DRIVER)
#define FARM_CHECK_GRAPHS(name, arguments) \
  if (!driver.name) driver.missing_for_graphs = std::string(kDriverLibrary) + " has no " #name;
  FARM_GRAPH_FUNCTIONS(FARM_CHECK_GRAPHS)
  return driver;
}

}  // namespace

std::string Driver::Words(int result) const {
  const char *name = nullptr, *text = nullptr;
  if (cuGetErrorName(result, &name) || !name) return "error " + std::to_string(result);
  if (cuGetErrorString(result, &text) || !text) return name;
  return std::string(name) + " (" + text + ")";
}

const Driver& TheDriver() {
  static const Driver driver = Loaded();
  return driver;
}

void Check(int result, const char* call) {
  if (result)
    TVM_FFI_THROW(RuntimeError) << Coded(error::kGpu, "the GPU failed: ") << call << ": "
                                << TheDriver().Words(result);
}

}  // namespace farm::cuda
