#include "session.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include "functions.h"
#include "packets.h"
#include "rpc_channel.h"
#include "rpc_endpoint.h"

namespace farm {
namespace {

constexpr double kGoneGraceS = 3;  // for a child to notice by itself that its client is gone
constexpr double kTickS = 1;       // a session with a timeout is looked at this often
const char kPrefix[] = "farm-session-";

class DescriptorChannel final : public tvm::runtime::RPCChannel {
 public:
  DescriptorChannel(int in, int out) : in_(in), out_(out) {}

  size_t Send(const void* data, size_t size) final {
    WriteAll(out_, data, size);
    return size;
  }

  size_t Recv(void* data, size_t size) final {
    ssize_t n;
    do n = read(in_, data, size);
    while (n < 0 && errno == EINTR);
    if (n < 0) Fail("read");
    return static_cast<size_t>(n);
  }

 private:
  int in_, out_;
};

// The cores that this process may use. TVM halves the processors of every x86 machine, taking each for half a core.
int UsableCores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed)) return 1;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string number = std::to_string(cpu);
    const std::string siblings = ReadText("/sys/devices/system/cpu/cpu" + number + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? number : siblings);
  }
  return static_cast<int>(std::max<size_t>(cores.size(), 1));
}

// The child's whole life.
int Serve(int in, int out, const std::string& directory, const SessionOptions& options) {
  try {
    if (chdir(directory.c_str())) Fail("chdir " + directory);
    setenv("TVM_NUM_THREADS", std::to_string(options.threads ? options.threads : UsableCores()).c_str(), options.threads > 0);
    RegisterFunctions(directory, options.store);
    auto channel = std::make_unique<PacketChannel>(std::make_unique<DescriptorChannel>(in, out));
    tvm::runtime::RPCEndpoint::Create(std::move(channel), "farm-agent", "")->ServerLoop();
    return 0;
  } catch (const std::exception& e) {
    Log(std::string("session ended badly: ") + e.what());
    return 1;
  }
}

// RPCCode::kException with one string, as TVM's clients read it: see rpc_endpoint.cc and minrpc/rpc_reference.h.
std::string ExceptionPacket(const std::string& message) {
  const int32_t head[] = {static_cast<int32_t>(tvm::runtime::RPCCode::kException), 1, tvm::ffi::TypeIndex::kTVMFFIRawStr};
  const uint64_t length = message.size(), packet = sizeof(head) + sizeof(length) + length;
  auto bytes = [](const auto& value) { return std::string(reinterpret_cast<const char*>(&value), sizeof(value)); };
  return bytes(packet) + bytes(head) + bytes(length) + message;
}

}  // namespace

Session::Session(Fd in, Fd out, const SessionOptions& options, double timeout_s, const std::function<void()>& in_child)
    : in_(std::move(in)), out_(std::move(out)), timeout_s_(timeout_s), started_(Now()), ticked_at_(started_) {
  directory_ = options.work_base + "/" + kPrefix + std::to_string(getpid()) + "-XXXXXX";
  if (!mkdtemp(&directory_[0])) Fail("cannot make a work directory " + directory_);
  const pid_t agent = getpid();
  child_ = fork();
  if (child_ < 0) {
    RemoveTree(directory_);
    Fail("fork");
  }
  if (child_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent) _exit(1);
    in_child();
    _exit(Serve(in_.get(), out_.valid() ? out_.get() : in_.get(), directory_, options));
  }
  Log("session " + std::to_string(child_) + " begins" + (timeout_s > 0 ? ", at most " + InSeconds(timeout_s) : ""));
}

Session::~Session() {
  if (child_ > 0) {
    kill(child_, SIGKILL);
    while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  RemoveTree(directory_);
}

void Session::ClientIsGone() { gone_at_ = Now(); }

double Session::deadline() const {
  double at = std::numeric_limits<double>::infinity();
  if (timeout_s_ > 0) at = std::min(started_ + timeout_s_, ticked_at_ + kTickS);
  if (gone_at_) at = std::min(at, gone_at_ + kGoneGraceS);
  return at;
}

bool Session::IsOverdue(double now) const {
  return (timeout_s_ > 0 && now >= started_ + timeout_s_) || (gone_at_ && now >= gone_at_ + kGoneGraceS);
}

bool Session::Tick() {
  const double now = Now(), late = now - ticked_at_ - kTickS;
  if (timeout_s_ > 0 && late > kTickS) started_ += late;  // somebody had stopped us, and the child with us
  ticked_at_ = now;
  int status = 0;
  std::string how;
  if (waitpid(child_, &status, WNOHANG) == child_) {
    how = WIFSIGNALED(status) ? std::string("died of ") + strsignal(WTERMSIG(status))
                              : "exit code " + std::to_string(WEXITSTATUS(status));
  } else if (!IsOverdue(now)) {
    return false;
  } else {
    if (!gone_at_) Expire();
    kill(child_, SIGKILL);
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    how = expired_ ? "its time was up" : "its client has gone";
  }
  Log("session " + std::to_string(child_) + " is over after " + InSeconds(now - started_) + ": " + how);
  child_ = -1;
  return true;
}

void Session::Expire() {
  expired_ = true;
  // Stopped first, so that the message cannot land in the middle of an answer that is being written.
  kill(child_, SIGSTOP);
  std::string packet = ExceptionPacket("RPCSessionTimeoutError: the session's " + InSeconds(timeout_s_) +
                                       " are over; try a larger \"session_timeout\"");
  if (out_.valid()) {
    pollfd writable{out_.get(), POLLOUT, 0};
    if (poll(&writable, 1, 0) > 0) write(out_.get(), packet.data(), packet.size());
  } else {
    send(in_.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

Fd Session::TakeConnection() { return expired_ && !out_.valid() ? std::move(in_) : Fd(); }

void SweepWorkDirectories(const std::string& work_base) {
  for (const std::string& name : ListDirectory(work_base)) {
    if (name.compare(0, sizeof(kPrefix) - 1, kPrefix)) continue;
    int agent = atoi(name.c_str() + sizeof(kPrefix) - 1);
    std::string path = work_base + "/" + name;
    struct stat info;
    if (agent <= 0 || lstat(path.c_str(), &info) || info.st_uid != geteuid()) continue;
    if (kill(agent, 0) && errno == ESRCH) RemoveTree(path);
  }
}

}  // namespace farm
