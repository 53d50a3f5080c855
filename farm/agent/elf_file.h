// Whose file is this? Reads an ELF header, of any machine, and says so in words.
#pragma once
#include <string>

namespace farm {

// Empty when this agent can load the library; else why not, naming what the file is and what this device is.
std::string WhyNotLoadable(const std::string& file);

}  // namespace farm
