// What a model library may import from the agent.
#pragma once
#include <string>

namespace farm {

// The address of a C function by its name; null when model libraries have no use for such a
// function.
void* HostSymbol(const std::string& name);

}  // namespace farm
