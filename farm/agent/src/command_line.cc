#include "command_line.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <set>

namespace farm {
namespace {

const char kHelp[] = R"(usage: farm-agent [options]
       farm-agent run NAME --input [INPUT=]FILE.npy ... [options]
       farm-agent list [options]

Serves this device by TVM's RPC, one client at a time, each in a process and a work directory of
its own; or runs what is deployed on this device, with no host; or lists it.

  --host ADDRESS        listen on this address (127.0.0.1)
  --open-to-network     allow an address that is not loopback; RPC lets whoever connects run any
                        code
  --port NUMBER         listen on this port; 0 lets the kernel choose (0)
  --port-file PATH      write the port to this file once it is open
  --key-file PATH       what clients must show is the first line of this file; - is standard input
  --key KEY             the same, but every user here can see it in the list of processes
                        ($FARM_AGENT_KEY, which none sees, or empty: then every user here may run
                        code as this one). With --tracker it is a name, and no secret
  --tracker HOST:PORT   register with this TVM tracker, under the key
  --board NAME          this board's name in a lab whose tracker is farm's (the key and digits of
                        the system's machine-id)
  --custom-addr ADDRESS tell the tracker that clients find this device at this address
  --work-dir DIR        make the sessions' work directories here ($TMPDIR or /tmp, farm-agent-UID)
  --store DIR           keep files here from one session to the next (WORK-DIR/store)
  --store-budget BYTES  of all kept files; those used longest ago go first, what is deployed never
                        (2 GiB)
  --max-memory BYTES    of a session (90 % of the device's)
  --max-work BYTES      of the files in a session's work directory (4 GiB)
  --threads NUMBER      threads of a session (one a core)
  --cores CORES         big, little, all, or numbers such as 0,2-3 (big)
  --exit-with-parent    end when the process that started this one ends
  --stdio               serve one session on standard input and output instead of a port
  --facts               print what this device is, as JSON
  --version             print the versions
  --help                print this

run: an inference of what is deployed as NAME. Uses --store, --work-dir, --threads, --cores, and

  --input [INPUT=]FILE  an input, as numpy.save writes it; once for each input of the model
  --gpu NUMBER          the GPU for a model that was built for one, counted as nvidia-smi counts (0)
  --output DIR          write the outputs here, each as a .npy file under its name

Exit codes: 0 done, 1 failed, 2 the command line is wrong.
)";

const std::set<std::string> kFlags = {"--open-to-network", "--exit-with-parent", "--stdio",
                                      "--facts",           "--version",          "--help"};
const std::set<std::string> kOptions = {
    "--host",        "--port",     "--port-file", "--key",          "--key-file",   "--tracker",
    "--custom-addr", "--work-dir", "--store",     "--store-budget", "--max-memory", "--max-work",
    "--threads",     "--cores",    "--input",     "--output",       "--gpu",        "--board",
};

}  // namespace

const char* CommandLine::Help() { return kHelp; }

CommandLine::CommandLine(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.compare(0, 1, "-")) {
      if (i == 1 && (word == "run" || word == "list")) {
        command_ = word;
      } else if (command_ == "run" && name_.empty()) {
        name_ = word;
      } else {
        throw UsageError("\"" + word + "\" belongs to nothing");
      }
    } else if (kFlags.count(word)) {
      values_[word];
    } else if (!kOptions.count(word)) {
      throw UsageError("unknown option " + word);
    } else if (++i == argc) {
      throw UsageError(word + " wants a value");
    } else {
      values_[word].push_back(argv[i]);
    }
  }
}

std::string CommandLine::Value(const std::string& option, const std::string& otherwise) const {
  return Has(option) ? values_.at(option).back() : otherwise;
}

std::vector<std::string> CommandLine::Values(const std::string& option) const {
  return Has(option) ? values_.at(option) : std::vector<std::string>();
}

uint64_t CommandLine::Number(const std::string& option, uint64_t otherwise,
                             uint64_t maximum) const {
  if (!Has(option)) return otherwise;
  const std::string text = Value(option);
  errno = 0;
  const uint64_t value = strtoull(text.c_str(), nullptr, 10);
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos || errno ||
      value > maximum) {
    throw UsageError(option + ": a number from 0 to " + std::to_string(maximum));
  }
  return value;
}

std::string CommandLine::Plain(const std::string& option, const std::string& otherwise) const {
  return RequirePlain(option, Value(option, otherwise));
}

std::string CommandLine::RequirePlain(const std::string& option, const std::string& text) {
  for (unsigned char c : text) {
    if (c <= ' ' || c > '~' || strchr("\"\\", c))
      throw UsageError(option + ": only letters, digits and signs without spaces or quotes");
  }
  return text;
}

}  // namespace farm
