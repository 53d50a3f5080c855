#include "rpc/session_functions.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <memory>

#include "base/io.h"
#include "base/paths.h"
#include "execution/call_profiler.h"
#include "execution/device_facts.h"
#include "execution/gpu.h"
#include "execution/run_many_inputs.h"
#include "execution/threads.h"
#include "rpc/work_directory.h"
#include "store/deployments.h"
#include "store/file_store.h"

namespace farm {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Bytes;
using tvm::ffi::Function;
using tvm::ffi::PackedArgs;
using tvm::ffi::String;

template <typename F>
void Register(const char* name, F f) {
  Function::SetGlobal(name, Function::FromTyped(f), /*override=*/true);
}

// The file functions of TVM's own server, which TVM's clients expect: see tvm/rpc/client.py. All
// names lie in the work directory.
void RegisterFileFunctions(const std::string& work, const Limits& limits) {
  auto path = [work](const std::string& name) { return Inside(work, name); };

  Register("tvm.rpc.server.workpath", path);
  Register("tvm.rpc.server.load_module", [path](const std::string& name) {
    StartThreads();
    return tvm::ffi::Module::LoadFromFile(path(name));
  });
  Register("tvm.rpc.server.upload", [path, work, limits](const std::string& name,
                                                         const Bytes& data) {
    const std::string file = path(name);
    if (const uint64_t there = BytesIn(work);
        data.size() > limits.work_bytes - std::min(there, limits.work_bytes)) {
      throw IoError(error::kWorkFull, "the session's work directory may hold " +
                                          std::to_string(limits.work_bytes) +
                                          " bytes (--max-work), and has " + std::to_string(there) +
                                          " of them: no room for " + std::to_string(data.size()));
    }
    MakeDirectories(file.substr(0, file.rfind('/')));
    WriteFile(file, data.data(), data.size());
  });
  Register("tvm.rpc.server.download", [path, limits](const std::string& name) {
    const std::string file = path(name);
    struct stat info;
    // It is in memory three times before it is sent.
    if (stat(file.c_str(), &info) == 0 &&
        static_cast<uint64_t>(info.st_size) > limits.memory_bytes / 4) {
      throw IoError(error::kNoMemory, "out of memory: " + name + " is too large to be sent");
    }
    return Bytes(ReadFile(file));
  });
  Register("tvm.rpc.server.remove", [path, work](const std::string& name) {
    const std::string file = path(name);
    if (file == work)
      throw IoError(error::kName, "cannot remove the session's work directory itself");
    if (remove(file.c_str()) && errno != ENOENT) Fail("cannot remove " + name);
  });
  Register("tvm.rpc.server.listdir", [path](const std::string& name) {
    std::string names;
    for (const std::string& entry : ListDirectory(path(name)))
      names += (names.empty() ? "" : ",") + entry;
    return names;
  });
}

void RegisterStoreFunctions(const std::shared_ptr<Store>& store) {
  Register("farm.store.has", [store](const std::string& digest) { return store->Has(digest); });
  Register("farm.store.begin",
           [store](const std::string& digest, int64_t size) { return store->Begin(digest, size); });
  Register("farm.store.write",
           [store](const std::string& digest, int64_t offset, const Bytes& data) {
             store->Write(digest, offset, data.data(), data.size());
           });
  Register("farm.store.finish", [store](const std::string& digest) { store->Finish(digest); });
  Register("farm.store.link", [store](const std::string& digest, const std::string& name) {
    store->Link(digest, name);
  });
  Register("farm.store.usage", [store] { return store->UsageAsJson(); });
}

void RegisterDeploymentFunctions(const std::shared_ptr<Deployments>& deployments) {
  Register("farm.deploy.install",
           [deployments](const std::string& manifest) { return deployments->Install(manifest); });
  Register("farm.deploy.list", [deployments] { return deployments->ListAsJson(); });
  Register("farm.deploy.open",
           [deployments](const std::string& name) { return deployments->Open(name).AsJson(); });
  Register("farm.deploy.rollback", [deployments](const std::string& name, int64_t release) {
    return deployments->Rollback(name, release).AsJson();
  });
  Register("farm.deploy.remove",
           [deployments](const std::string& name) { deployments->Remove(name); });
}

}  // namespace

void RegisterFunctions(const std::string& work, const SessionOptions& options) {
  auto store = std::make_shared<Store>(options.store, work, options.store_budget_bytes);
  RegisterFileFunctions(work, options.limits);
  RegisterStoreFunctions(store);
  RegisterDeploymentFunctions(std::make_shared<Deployments>(store));
  Register("farm.agent.facts", [] { return FactsAsJson(); });
  Register("farm.agent.gpu",
           [](int64_t index) { return std::string(tvm::ffi::json::Stringify(OpenGpu(index))); });
  Register("farm.agent.profile",
           [](const tvm::ffi::Module& machine, const std::string& function, int64_t pairs,
              double seconds) { return Profile(machine, function, pairs, seconds); });
  Function::SetGlobal("farm.agent.samples", Function::FromPacked([](PackedArgs args, Any* answer) {
                        *answer = RunSamples(args);
                      }),
                      /*override=*/true);
  Register("farm.agent.threads", [](int64_t count, const std::string& cores, bool pinned) {
    ChangeThreads(count, cores, pinned);
  });
}

}  // namespace farm
