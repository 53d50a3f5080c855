// What a client may call in its session, beyond what TVM's runtime registers itself.
#pragma once
#include <string>

#include "rpc/session.h"

namespace farm {

// `work` is the session's work directory. See session_functions.cc for the list.
void RegisterFunctions(const std::string& work, const SessionOptions& options);

}  // namespace farm
