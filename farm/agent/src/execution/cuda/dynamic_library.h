// Functions of a C library that is loaded when they are wanted first, and may be missing.
#pragma once
#include <dlfcn.h>

#include <string>

namespace farm::cuda {

// Null, with the system's reason in `why`, where the library cannot be loaded. It stays until the
// process ends.
inline void* LoadLibrary(const char* name, std::string* why) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* said = dlerror();
    *why = said ? said : name;
  }
  return library;
}

}  // namespace farm::cuda

// A member that holds the address of a C function, and what sets it. The library's own types: an
// enumeration is an int, a handle a pointer.
#define FARM_DECLARE_POINTER(name, arguments) int(*name) arguments = nullptr;
#define FARM_SET_POINTER(name, arguments) \
  name = reinterpret_cast<int(*) arguments>(dlsym(library, #name));
