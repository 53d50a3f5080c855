// farm-agent: a TVM RPC device without Python. Starts what the command line asks for; everything
// else is elsewhere.
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/signals.h"
#include "command_line.h"
#include "execution/device_facts.h"
#include "execution/run_deployed.h"
#include "loader/elf_loader.h"
#include "rpc/server.h"
#include "store/file_store.h"

namespace farm {
namespace {

constexpr uint64_t kMaxPort = 65535, kMaxThreads = 1024, kMaxGpus = 63;
constexpr size_t kMaxBoardName = 100;

std::string Absolute(const std::string& path) {
  if (path.compare(0, 1, "/") == 0) return path;
  char* here = getcwd(nullptr, 0);
  if (!here) Fail("getcwd");
  std::string absolute = std::string(here) + "/" + path;
  free(here);
  return absolute;
}

// In a folder that everybody may write to, the name that we would use may be somebody else's
// already.
std::string OwnFolder() {
  const char* temporary = getenv("TMPDIR");
  std::string path = std::string(temporary && *temporary ? temporary : "/tmp") + "/farm-agent-" +
                     std::to_string(geteuid());
  struct stat info;
  mkdir(path.c_str(), 0700);
  if (lstat(path.c_str(), &info)) Fail("cannot make " + path);
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid())
    throw IoError(error::kFile, path + " is not this user's folder; name another by --work-dir");
  return path;
}

SessionOptions SessionOptionsFrom(const CommandLine& given) {
  SessionOptions options;
  options.work_base = Absolute(given.Has("--work-dir") ? given.Value("--work-dir") : OwnFolder());
  options.store = Absolute(given.Value("--store", options.work_base + "/store"));
  options.store_budget_bytes = given.Number("--store-budget", options.store_budget_bytes);
  options.threads.count = static_cast<int>(given.Number("--threads", 0, kMaxThreads));
  options.threads.cores = given.Value("--cores");
  options.limits.memory_bytes = given.Number("--max-memory", options.limits.memory_bytes);
  options.limits.work_bytes = given.Number("--max-work", options.limits.work_bytes);
  return options;
}

// The first line of a file that other users cannot read, or of standard input.
std::string KeyFrom(const std::string& path) {
  Fd file(path == "-" ? dup(STDIN_FILENO) : open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (!file.valid() || fstat(file.get(), &info)) Fail("cannot read the key file " + path);
  if (S_ISREG(info.st_mode) && (info.st_mode & (S_IRWXG | S_IRWXO))) {
    throw UsageError("--key-file: other users may use " + path +
                     "; chmod 600 it, and take a new key where they could read this one");
  }
  std::string text;
  char piece[4096];
  ssize_t count;
  while (text.size() < sizeof(piece) && text.find('\n') == std::string::npos &&
         (count = read(file.get(), piece, sizeof(piece)))) {
    if (count < 0 && errno != EINTR) Fail("cannot read the key file " + path);
    text.append(piece, count > 0 ? static_cast<size_t>(count) : 0);
  }
  text.resize(std::min(text.find_first_of("\r\n"), text.size()));
  if (text.empty()) throw UsageError("--key-file: there is no key in " + path);
  return CommandLine::RequirePlain("--key-file", text);
}

std::string Key(const CommandLine& given) {
  const char* key = getenv("FARM_AGENT_KEY");
  const std::string otherwise = key ? key : "";
  unsetenv("FARM_AGENT_KEY");
  if (!given.Has("--key-file")) return given.Plain("--key", otherwise);
  if (given.Has("--key")) throw UsageError("--key and --key-file: one of them");
  return KeyFrom(given.Value("--key-file"));
}

// A name goes into commands, files and URLs.
std::string BoardName(const std::string& name) {
  for (unsigned char c : name) {
    if (!isalnum(c) && !strchr("_-.", c))
      throw UsageError("--board: only letters, digits, '_', '-' and '.'");
  }
  if (name.size() > kMaxBoardName || name.compare(0, 1, "-") == 0 || name.compare(0, 1, ".") == 0) {
    throw UsageError("--board: at most " + std::to_string(kMaxBoardName) +
                     " signs, the first a letter or a digit");
  }
  return name;
}

ServerOptions ServerOptionsFrom(const CommandLine& given) {
  ServerOptions options;
  options.host = given.Value("--host", options.host);
  options.port = std::to_string(given.Number("--port", 0, kMaxPort));
  options.port_file = given.Value("--port-file");
  options.key = Key(given);
  options.tracker = given.Value("--tracker");
  if (!options.tracker.empty() && options.tracker.find(':') == std::string::npos)
    throw UsageError("--tracker wants HOST:PORT");
  options.custom_address = given.Plain("--custom-addr", "");
  options.board = BoardName(given.Value("--board"));
  options.open_to_network = given.Has("--open-to-network");
  options.session = SessionOptionsFrom(given);
  return options;
}

RunOptions RunOptionsFrom(const CommandLine& given) {
  RunOptions options;
  const SessionOptions session = SessionOptionsFrom(given);
  options.name = given.name();
  options.store = session.store;
  // In the store, where a link to its files costs nothing.
  options.work_base = given.Has("--work-dir") ? session.work_base : session.store + "/.run";
  options.threads = session.threads;
  options.gpu = static_cast<int>(given.Number("--gpu", 0, kMaxGpus));
  options.inputs = given.Values("--input");
  options.output = given.Value("--output");
  return options;
}

void ExitWithParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  // It may have gone before that call.
  if (getppid() != parent) exit(1);
}

int Serve(const CommandLine& given, pid_t parent) {
  ServerOptions options = ServerOptionsFrom(given);
  CheckThreads(options.session.threads);
  CatchSignals();
  if (given.Has("--exit-with-parent")) ExitWithParent(parent);
  MakeDirectories(options.session.work_base);
  SweepWorkDirectories(options.session.work_base);
  SweepStore(options.session.store);
  RegisterElfLoader();
  if (given.Has("--stdio")) return ServeStandardStreams(options.session);
  if (options.key.empty())
    Log("no key: every user who reaches the port may run code as this one; see --key-file");
  Server(options).Run();
  return 0;
}

int Main(int argc, char** argv) {
  const pid_t parent = getppid();
  const CommandLine given(argc, argv);
  if (given.Has("--help")) return fputs(CommandLine::Help(), stdout) < 0;
  if (given.Has("--version")) return puts(VersionLine().c_str()) < 0;
  if (given.Has("--facts")) {
    BeginThreads(SessionOptionsFrom(given).threads);
    return puts(FactsAsJson().c_str()) < 0;
  }
  if (given.command() == "list") return ListDeployments(SessionOptionsFrom(given).store);
  if (given.command() == "serve") return Serve(given, parent);
  RegisterElfLoader();
  return RunDeployment(RunOptionsFrom(given));
}

int MainWithErrors(int argc, char** argv) {
  try {
    return Main(argc, argv);
  } catch (const UsageError& e) {
    fprintf(stderr, "farm-agent: %s; see --help\n", e.what());
    return 2;
  } catch (const IoError& e) {
    fprintf(stderr, "farm-agent: %s\n", e.text().c_str());
    return 1;
  } catch (const tvm::ffi::Error& e) {
    fprintf(stderr, "farm-agent: %s\n", e.message().c_str());
    return 1;
  } catch (const std::exception& e) {
    fprintf(stderr, "farm-agent: %s\n", e.what());
    return 1;
  }
}

}  // namespace
}  // namespace farm

int main(int argc, char** argv) {
  const int code = farm::MainWithErrors(argc, argv);
  // Destructors of TVM's globals would wait for its threads, which yield 300,000 times before they
  // end: minutes on a board where other programs compute.
  fflush(nullptr);
  _exit(code);
}
