// A client's greeting, in pieces. Input: one byte, the size of a piece less one; the bytes that the
// client sends.
#include "rpc/handshake.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "fuzzing.h"
#include "rpc_endpoint.h"

namespace {

constexpr size_t kMaxInput = 8192;
constexpr size_t kMaxGreeting = 8 + 4096;

// How many bytes the agent has left for the session.
size_t LeftIn(int fd) {
  char bytes[kMaxInput];
  ssize_t n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT | MSG_PEEK);
  return n < 0 ? 0 : static_cast<size_t>(n);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > kMaxInput) return 0;
  int ends[2];
  CLAIM(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  farm::Fd client(ends[0]);
  const int connection = ends[1];
  farm::Visitor visitor{farm::Fd(ends[1])};
  const size_t piece = size_t{data[0]} + 1;
  size_t sent = 1;
  bool welcome = true;
  while (welcome && !visitor.complete() && sent < size) {
    const size_t n = std::min(piece, size - sent);
    CLAIM(write(client.get(), data + sent, n) == static_cast<ssize_t>(n));
    sent += n;
    welcome = visitor.Read();
  }
  if (!welcome || !visitor.complete()) return 0;

  const size_t greeting = sent - 1 - LeftIn(connection);
  int32_t length = 0;
  memcpy(&length, data + 1 + sizeof(length), sizeof(length));
  CLAIM(greeting == 8 + static_cast<size_t>(length) && greeting <= kMaxGreeting);
  CLAIM(visitor.key().size() < greeting && visitor.key().find(' ') == std::string::npos);
  CLAIM(visitor.session_timeout_s() >= 0);
  CLAIM(visitor.Accept("board").get() == connection);
  int32_t answer[2];
  CLAIM(read(client.get(), answer, sizeof(answer)) == sizeof(answer) &&
        answer[0] == tvm::runtime::kRPCSuccess);
  return 0;
}
