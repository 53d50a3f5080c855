#include "rpc/session.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>

#include "rpc/packet_check.h"
#include "rpc/session_functions.h"
#include "rpc_channel.h"
#include "rpc_endpoint.h"

namespace farm {
namespace {

constexpr double kGoneGraceS = 3;  // for a child to notice by itself that its client is gone
constexpr double kTickS = 1;       // a session with a timeout is looked at this often
constexpr int kFirstWordMs = 10'000;
constexpr int kClientWasTold = 3;  // the exit code of a child that has sent its last words

class DescriptorChannel final : public tvm::runtime::RPCChannel {
 public:
  // `sending` is true while an answer is on its way, so that nothing else may be written.
  DescriptorChannel(int in, int out, bool* sending) : in_(in), out_(out), sending_(sending) {}

  size_t Send(const void* data, size_t size) final {
    *sending_ = true;
    WriteAll(out_, data, size);
    *sending_ = false;
    return size;
  }

  size_t Recv(void* data, size_t size) final {
    // Who has got the device and says nothing would keep others from it.
    pollfd first_word{in_, POLLIN, 0};
    if (!heard_ && poll(&first_word, 1, kFirstWordMs) == 0)
      throw IoError(error::kSilent, "the client said nothing");
    heard_ = true;
    ssize_t n;
    do n = read(in_, data, size);
    while (n < 0 && errno == EINTR);
    if (n < 0) Fail("read");
    return static_cast<size_t>(n);
  }

 private:
  int in_, out_;
  bool* sending_;
  bool heard_ = false;
};

// RPCCode::kException with one string, as TVM's clients read it: see rpc_endpoint.cc and
// minrpc/rpc_reference.h.
std::string ExceptionPacket(const std::string& message) {
  const int32_t head[] = {static_cast<int32_t>(tvm::runtime::RPCCode::kException), 1,
                          tvm::ffi::TypeIndex::kTVMFFIRawStr};
  const uint64_t length = message.size(), packet = sizeof(head) + sizeof(length) + length;
  auto bytes = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  return bytes(packet) + bytes(head) + bytes(length) + message;
}

// The child's whole life.
int ServeClient(int in, int out, const std::string& directory, const SessionOptions& options) {
  bool sending = false;
  // Outlives what goes wrong: at its end it says goodbye, and that must come after the reason.
  std::shared_ptr<tvm::runtime::RPCEndpoint> endpoint;
  try {
    if (chdir(directory.c_str())) Fail("chdir " + directory);
    BeginThreads(options.threads);
    ApplyLimits(options.limits, std::max(options.limits.work_bytes, options.store_budget_bytes));
    RegisterFunctions(directory, options);
    const uint64_t max_bytes = std::min(options.limits.memory_bytes, PacketCheck::kMaxBytes);
    auto channel = std::make_unique<PacketChannel>(
        std::make_unique<DescriptorChannel>(in, out, &sending), max_bytes);
    endpoint = tvm::runtime::RPCEndpoint::Create(std::move(channel), "farm-agent", "");
    endpoint->ServerLoop();
    return 0;
  } catch (const std::exception& e) {
    Log(std::string("session ended badly: ") + e.what());
    const std::string packet = ExceptionPacket(e.what());
    return !sending && write(out, packet.data(), packet.size()) > 0 ? kClientWasTold : 1;
  }
}

}  // namespace

Session::Session(Fd in, Fd out, const SessionOptions& options, double timeout_s,
                 const std::function<void()>& in_child)
    : in_(std::move(in)),
      out_(std::move(out)),
      directory_(options.work_base),
      timeout_s_(timeout_s),
      started_(Now()),
      ticked_at_(started_) {
  const pid_t agent = getpid();
  child_ = fork();
  if (child_ < 0) Fail("fork");
  if (child_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent) _exit(1);
    in_child();
    _exit(
        ServeClient(in_.get(), out_.valid() ? out_.get() : in_.get(), directory_.path(), options));
  }
  Log("session " + std::to_string(child_) + " begins" +
      (timeout_s > 0 ? ", at most " + InSeconds(timeout_s) : ""));
}

Session::~Session() {
  if (child_ > 0) {
    kill(child_, SIGKILL);
    while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

void Session::ClientIsGone() { gone_at_ = Now(); }

void Session::End(const std::string& why) { last_words_ = why; }

double Session::deadline() const {
  double at = std::numeric_limits<double>::infinity();
  if (!last_words_.empty()) return 0;
  if (timeout_s_ > 0) at = std::min(started_ + timeout_s_, ticked_at_ + kTickS);
  if (gone_at_) at = std::min(at, gone_at_ + kGoneGraceS);
  return at;
}

bool Session::IsOverdue(double now) const {
  return !last_words_.empty() || (timeout_s_ > 0 && now >= started_ + timeout_s_) ||
         (gone_at_ && now >= gone_at_ + kGoneGraceS);
}

bool Session::Tick() {
  const double now = Now(), late = now - ticked_at_ - kTickS;
  if (timeout_s_ > 0 && late > kTickS)
    started_ += late;  // somebody had stopped us, and the child with us
  ticked_at_ = now;
  int status = 0;
  std::string how;
  if (waitpid(child_, &status, WNOHANG) == child_) {
    client_was_told_ = WIFEXITED(status) && WEXITSTATUS(status) == kClientWasTold;
    outcome_.how = WIFSIGNALED(status) ? "signal" : WEXITSTATUS(status) ? "error" : "closed";
    outcome_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const int signal = WTERMSIG(status), code = WEXITSTATUS(status);
    how = WIFSIGNALED(status)
              ? "END_SIGNAL_" + std::to_string(signal) + ": died of " + strsignal(signal)
          : client_was_told_
              ? "END_TOLD: its client was told why"
              : "END_EXIT_" + std::to_string(code) + ": exit code " + std::to_string(code);
  } else if (!IsOverdue(now)) {
    return false;
  } else {
    outcome_.how = gone_at_ ? "gone" : last_words_.empty() ? "timeout" : "told";
    if (last_words_.empty()) {
      last_words_ = "RPCSessionTimeoutError: the session's " + InSeconds(timeout_s_) +
                    " are over; try a larger \"session_timeout\"";
    }
    if (!gone_at_) SayLastWords();
    kill(child_, SIGKILL);
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    how = gone_at_                 ? "END_CLIENT_GONE: its client has gone"
          : outcome_.how == "told" ? "END_LAB: its lab ended it"
                                   : "END_TIME_UP: its time was up";
  }
  outcome_.seconds = now - started_;
  // The code that `how` begins with is for the host, which reads this log: see
  // farm/transports/agent/errors.py.
  Log("session " + std::to_string(child_) + " is over after " + InSeconds(now - started_) + ": " +
      how);
  child_ = -1;
  return true;
}

void Session::SayLastWords() {
  client_was_told_ = true;
  // Stopped first, so that the message cannot land in the middle of an answer that is being
  // written.
  kill(child_, SIGSTOP);
  const std::string packet = ExceptionPacket(last_words_);
  if (out_.valid()) {
    pollfd writable{out_.get(), POLLOUT, 0};
    if (poll(&writable, 1, 0) > 0) write(out_.get(), packet.data(), packet.size());
  } else {
    send(in_.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

Fd Session::TakeConnection() { return client_was_told_ && !out_.valid() ? std::move(in_) : Fd(); }

}  // namespace farm
