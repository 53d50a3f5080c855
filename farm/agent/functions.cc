#include "functions.h"

#include <errno.h>
#include <stdio.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include "facts.h"
#include "io.h"
#include "store.h"

namespace farm {
namespace {

using tvm::ffi::Bytes;
using tvm::ffi::Function;
using tvm::ffi::String;

template <typename F>
void Register(const char* name, F f) {
  Function::SetGlobal(name, Function::FromTyped(f), /*override=*/true);
}

// The file functions of TVM's own server, which TVM's clients expect: see tvm/rpc/client.py. Relative names lie in the
// work directory; absolute ones are taken as they are, as there.
void RegisterFileFunctions(const std::string& work) {
  auto path = [work](const std::string& name) { return name.compare(0, 1, "/") ? work + "/" + name : name; };

  Register("tvm.rpc.server.workpath", path);
  Register("tvm.rpc.server.load_module", [path](const std::string& name) { return tvm::ffi::Module::LoadFromFile(path(name)); });
  Register("tvm.rpc.server.upload", [path](const std::string& name, const Bytes& data) {
    std::string file = path(name);
    MakeDirectories(file.substr(0, file.rfind('/')));
    WriteFile(file, data.data(), data.size());
  });
  Register("tvm.rpc.server.download", [path](const std::string& name) { return Bytes(ReadFile(path(name))); });
  Register("tvm.rpc.server.remove", [path](const std::string& name) {
    if (remove(path(name).c_str()) && errno != ENOENT) Fail("cannot remove " + name);
  });
  Register("tvm.rpc.server.listdir", [path](const std::string& name) {
    std::string names;
    for (const std::string& entry : ListDirectory(path(name))) names += (names.empty() ? "" : ",") + entry;
    return names;
  });
}

void RegisterFarmFunctions(const Store& store) {
  Register("farm.agent.facts", [] { return FactsAsJson(); });
  Register("farm.store.has", [store](const std::string& digest) { return store.Has(digest); });
  Register("farm.store.link", [store](const std::string& digest, const std::string& name) { store.Link(digest, name); });
  Register("farm.store.keep", [store](const std::string& name, const std::string& digest) { store.Keep(name, digest); });
}

}  // namespace

void RegisterFunctions(const std::string& work, const std::string& store) {
  RegisterFileFunctions(work);
  RegisterFarmFunctions(Store(store, work));
}

}  // namespace farm
