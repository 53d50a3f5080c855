// What a client may call in its session, beyond what TVM's runtime registers itself.
#pragma once
#include <string>

namespace farm {

// `work` is the session's work directory, `store` holds the files that stay. See functions.cc for the list.
void RegisterFunctions(const std::string& work, const std::string& store);

}  // namespace farm
