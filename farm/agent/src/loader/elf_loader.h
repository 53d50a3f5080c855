// Loads model libraries (ELF shared objects made by TVM's LLVM back end) without dlopen, which a
// static executable lacks.
#pragma once
#include <string>

#include "loader/elf_file.h"
#include "loader/elf_image.h"

namespace farm {

// Has TVM load ".so" files with this loader.
void RegisterElfLoader();

// The address of a symbol, as TVM's module asks for it: null when the library has none, an error
// when TVM would stumble over it.
void* SymbolForTvm(const ElfImage& image, const std::string& name);

}  // namespace farm
