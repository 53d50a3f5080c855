// What is deployed on this device, on the device's own command line: no host, no network.
#pragma once
#include <string>
#include <vector>

#include "execution/threads.h"

namespace farm {

struct RunOptions {
  std::string name;                 // of the deployment
  std::string store, work_base;     // as of a session
  std::vector<std::string> inputs;  // files, each as PATH or INPUT=PATH
  std::string output;               // a folder for the outputs; empty when they are only described
  ThreadOptions threads;
  int gpu = 0;
};

// Runs the current release once and prints what came out. Returns the exit code. UsageError,
// IoError, and TVM's errors.
int RunDeployment(const RunOptions& options);

// Prints a line for each deployment. Returns the exit code.
int ListDeployments(const std::string& store);

}  // namespace farm
