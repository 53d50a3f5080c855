// farm-agent: a TVM RPC device without Python. Reads the command line; everything else is elsewhere.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>

#include "elf_loader.h"
#include "facts.h"
#include "server.h"
#include "signals.h"
#include "store.h"

namespace farm {
namespace {

const char kHelp[] = R"(usage: farm-agent [options]

Serves this device by TVM's RPC, one client at a time, each in a process and a work directory of its own.

  --host ADDRESS        listen on this address (127.0.0.1)
  --open-to-network     allow an address that is not loopback; RPC lets whoever connects run any code
  --port NUMBER         listen on this port; 0 lets the kernel choose (0)
  --port-file PATH      write the port to this file once it is open
  --key KEY             what clients must show ($FARM_AGENT_KEY, which other users cannot see, or empty)
  --tracker HOST:PORT   register with this TVM tracker, under the key
  --custom-addr ADDRESS tell the tracker that clients find this device at this address
  --work-dir DIR        make the sessions' work directories here ($TMPDIR or /tmp, farm-agent-UID)
  --store DIR           keep files here from one session to the next (WORK-DIR/store)
  --threads NUMBER      threads of a session (one a core)
  --exit-with-parent    end when the process that started this one ends
  --stdio               serve one session on standard input and output instead of a port
  --facts               print what this device is, as JSON
  --version             print the versions
  --help                print this
)";

const std::set<std::string> kFlags = {"--open-to-network", "--exit-with-parent", "--stdio", "--facts", "--version", "--help"};
const std::set<std::string> kValues = {"--host",        "--port",     "--port-file", "--key",    "--tracker",
                                       "--custom-addr", "--work-dir", "--store",     "--threads"};

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::map<std::string, std::string> Parse(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    if (kFlags.count(name)) {
      given[name] = "yes";
    } else if (!kValues.count(name)) {
      throw UsageError("unknown option " + name);
    } else if (++i == argc) {
      throw UsageError(name + " wants a value");
    } else {
      given[name] = argv[i];
    }
  }
  return given;
}

// Text that goes into the tracker's JSON and the handshake as it is.
std::string Plain(const std::string& option, const std::string& text) {
  for (unsigned char c : text) {
    if (c <= ' ' || c > '~' || strchr("\"\\", c)) throw UsageError(option + ": only letters, digits and signs without spaces or quotes");
  }
  return text;
}

int Number(const std::string& option, const std::string& text, int maximum) {
  char* end = nullptr;
  long value = strtol(text.c_str(), &end, 10);
  if (text.empty() || *end || value < 0 || value > maximum) throw UsageError(option + ": a number from 0 to " + std::to_string(maximum));
  return static_cast<int>(value);
}

std::string Absolute(const std::string& path) {
  if (path.compare(0, 1, "/") == 0) return path;
  char* here = getcwd(nullptr, 0);
  if (!here) Fail("getcwd");
  std::string absolute = std::string(here) + "/" + path;
  free(here);
  return absolute;
}

// In a folder that everybody may write to, the name that we would use may be somebody else's already.
std::string OwnFolder(const std::string& parent) {
  std::string path = parent + "/farm-agent-" + std::to_string(geteuid());
  struct stat info;
  mkdir(path.c_str(), 0700);
  if (lstat(path.c_str(), &info)) Fail("cannot make " + path);
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid()) throw IoError(path + " is not this user's folder; name another by --work-dir");
  return path;
}

ServerOptions OptionsFrom(std::map<std::string, std::string> given) {
  ServerOptions options;
  auto value = [&given](const char* name, const std::string& otherwise) { return given.count(name) ? given[name] : otherwise; };
  const char* temporary = getenv("TMPDIR");
  std::string parent = temporary && *temporary ? temporary : "/tmp";
  options.host = value("--host", options.host);
  options.port = std::to_string(Number("--port", value("--port", "0"), 65535));
  options.port_file = value("--port-file", "");
  const char* key = getenv("FARM_AGENT_KEY");
  options.key = Plain("--key", value("--key", key ? key : ""));
  unsetenv("FARM_AGENT_KEY");
  options.tracker = value("--tracker", "");
  if (!options.tracker.empty() && options.tracker.find(':') == std::string::npos) throw UsageError("--tracker wants HOST:PORT");
  options.custom_address = Plain("--custom-addr", value("--custom-addr", ""));
  options.open_to_network = given.count("--open-to-network");
  options.session.work_base = Absolute(given.count("--work-dir") ? given["--work-dir"] : OwnFolder(parent));
  options.session.store = Absolute(value("--store", options.session.work_base + "/store"));
  options.session.threads = Number("--threads", value("--threads", "0"), 1024);
  return options;
}

void ExitWithParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  // It may have gone before that call.
  if (getppid() != parent) exit(1);
}

int Main(int argc, char** argv) {
  const pid_t parent = getppid();
  auto given = Parse(argc, argv);
  if (given.count("--help")) return fputs(kHelp, stdout) < 0;
  if (given.count("--version")) return puts(VersionLine().c_str()) < 0;
  if (given.count("--facts")) return puts(FactsAsJson().c_str()) < 0;
  ServerOptions options = OptionsFrom(given);
  CatchSignals();
  if (given.count("--exit-with-parent")) ExitWithParent(parent);
  MakeDirectories(options.session.work_base);
  SweepWorkDirectories(options.session.work_base);
  SweepStore(options.session.store);
  RegisterElfLoader();
  if (given.count("--stdio")) return ServeStandardStreams(options.session);
  Server(options).Run();
  return 0;
}

}  // namespace
}  // namespace farm

int main(int argc, char** argv) {
  try {
    return farm::Main(argc, argv);
  } catch (const farm::UsageError& e) {
    fprintf(stderr, "farm-agent: %s; see --help\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    fprintf(stderr, "farm-agent: %s\n", e.what());
    return 1;
  }
}
