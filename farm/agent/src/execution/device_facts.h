// What this device is and how it is doing.
#pragma once
#include <string>

namespace farm {

// A JSON object. What the device does not tell is null.
std::string FactsAsJson();

// How it is doing, as cheap as can be: a JSON object with the highest temperature, the throttling,
// the load and the free bytes of the file system of `folder`, which need not exist yet. To be asked
// while another process is measured.
std::string StateAsJson(const std::string& folder);

// "farm-agent 0.1.0 (TVM 0.27.0, armv7)"
std::string VersionLine();

}  // namespace farm
