#include "rpc/handshake.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>

#include "rpc_endpoint.h"

namespace farm {
namespace {

// What a stranger may make us wait for and hold.
constexpr double kHandshakeS = 10;
// JSON, by which a lab hears of it, has no infinity.
constexpr double kLongestSessionS = 366 * 86400.0;
constexpr int32_t kMaxKeyBytes = 4096;
constexpr size_t kHeadBytes = 2 * sizeof(int32_t);
const char kClient[] = "client:", kTimeout[] = " -timeout=";

void Option(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

}  // namespace

Visitor::Visitor(Fd connection) : connection_(std::move(connection)), since_(Now()) {}

double Visitor::deadline() const { return since_ + kHandshakeS; }

bool Visitor::Read() {
  while (!complete()) {
    // Never more than belongs to the greeting: what follows is for the session.
    size_t left = (wanted_ ? wanted_ : kHeadBytes) - said_.size();
    char piece[kMaxKeyBytes];
    ssize_t n = recv(connection_.get(), piece, std::min(left, sizeof(piece)), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    if (n == 0) return false;
    said_.append(piece, static_cast<size_t>(n));
    int32_t head[2] = {tvm::runtime::kRPCMagic, 1};
    memcpy(head, said_.data(), std::min(said_.size(), kHeadBytes));
    if (said_.size() >= sizeof(head[0]) && head[0] != tvm::runtime::kRPCMagic) return false;
    if (said_.size() < kHeadBytes) continue;
    if (head[1] <= 0 || head[1] > kMaxKeyBytes) return false;
    wanted_ = kHeadBytes + static_cast<size_t>(head[1]);
  }
  return said_.compare(kHeadBytes, sizeof(kClient) - 1, kClient) == 0;
}

std::string Visitor::key() const {
  std::string key = said_.substr(kHeadBytes + sizeof(kClient) - 1);
  return key.substr(0, key.find(' '));
}

double Visitor::session_timeout_s() const {
  size_t option = said_.find(kTimeout, kHeadBytes);
  return option == std::string::npos
             ? 0
             : std::min(kLongestSessionS,
                        std::max(0.0, atof(said_.c_str() + option + sizeof(kTimeout) - 1)));
}

Fd Visitor::Accept(const std::string& key) {
  std::string name = "server:" + key;
  int32_t head[2] = {tvm::runtime::kRPCSuccess, static_cast<int32_t>(name.size())};
  std::string answer = std::string(reinterpret_cast<const char*>(head), sizeof(head)) + name;
  const int fd = connection_.get();
  if (send(fd, answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
      static_cast<ssize_t>(answer.size()))
    return Fd();
  Option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A client whose network is gone says nothing: the kernel asks after 10 s, and gives up 20 s
  // later.
  Option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  Option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  Option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
  return std::move(connection_);
}

void Visitor::Refuse() {
  int32_t answer = tvm::runtime::kRPCMismatch;
  send(connection_.get(), &answer, sizeof(answer), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace farm
