#include "base/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/io.h"

namespace farm {
namespace {

constexpr int kCaught[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD};
int signal_pipe[2] = {-1, -1};
bool end_is_wanted = false;

void OnSignal(int number) {
  int saved = errno;
  char byte = static_cast<char>(number);
  ssize_t written = write(signal_pipe[1], &byte, 1);
  static_cast<void>(written);  // full: there is enough to read already
  errno = saved;
}

}  // namespace

void CatchSignals() {
  if (pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK)) Fail("pipe");
  signal(SIGPIPE, SIG_IGN);
  struct sigaction action{};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  for (int number : kCaught) {
    struct sigaction before{};
    sigaction(number, nullptr, &before);
    // nohup and shells' "&" have us ignore some; that stands.
    if (before.sa_handler != SIG_IGN || number == SIGCHLD) sigaction(number, &action, nullptr);
  }
}

int signal_descriptor() { return signal_pipe[0]; }

bool EndIsWanted() {
  char bytes[64];
  ssize_t n;
  while ((n = read(signal_pipe[0], bytes, sizeof(bytes))) > 0) {
    for (ssize_t i = 0; i < n; ++i) end_is_wanted = end_is_wanted || bytes[i] != SIGCHLD;
  }
  return end_is_wanted;
}

void ReleaseSignals() {
  for (int number : kCaught) {
    struct sigaction now{};
    sigaction(number, nullptr, &now);
    if (now.sa_handler == OnSignal) signal(number, SIG_DFL);
  }
  close(signal_pipe[0]);
  close(signal_pipe[1]);
}

}  // namespace farm
