// What this device is and how it is doing.
#pragma once
#include <string>

namespace farm {

// A JSON object. What the device does not tell is null.
std::string FactsAsJson();

// "farm-agent 0.1.0 (TVM 0.27.0, armv7)"
std::string VersionLine();

}  // namespace farm
