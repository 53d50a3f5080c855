#include "rpc/server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include "base/signals.h"

namespace farm {
namespace {

constexpr size_t kMaxVisitors = 256, kMaxWaiting = 32;
constexpr int kBacklog = 1024;
// A visitor has this long before it may have to go for a newer one; meanwhile newer ones wait in
// the kernel's queue.
constexpr double kGraceS = 1;
// While a session runs, strangers are attended to this seldom, and so many of them at a time: what
// a crowd costs is bounded.
constexpr double kPauseS = 0.1;
constexpr int kMaxAccepts = 64;
constexpr double kRefusalsEveryS = 10;  // a line in the log

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

Fd Listen(const ServerOptions& options) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  if (int error = getaddrinfo(options.host.c_str(), options.port.c_str(), &hints, &found)) {
    throw IoError(error::kAddress, "--host " + options.host + " --port " + options.port + ": " +
                                       gai_strerror(error));
  }
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  if (!IsLoopback(found->ai_addr) && !options.open_to_network) {
    throw IoError(error::kAddress, "--host " + options.host +
                                       " is open to the network. TVM's RPC has no password and no "
                                       "encryption: whoever can connect can run any code as this "
                                       "user. Reach a loopback agent through an SSH tunnel, or say "
                                       "--open-to-network if everybody on that network is "
                                       "trusted");
  }
  Fd listener(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(listener.get(), found->ai_addr, found->ai_addrlen) || listen(listener.get(), kBacklog)) {
    Fail("cannot listen on " + options.host + ":" + options.port);
  }
  return listener;
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

int Milliseconds(double deadline) {
  if (deadline == std::numeric_limits<double>::infinity()) return -1;
  return static_cast<int>(std::clamp((deadline - Now()) * 1e3 + 1, 0.0, 6e4));
}

}  // namespace

Server::Server(ServerOptions options) : options_(std::move(options)), listener_(Listen(options_)) {
  const int port = PortOf(listener_.get());
  if (!options_.tracker.empty()) {
    std::string board = options_.board.empty()
                            ? UsualBoardName(options_.key, atoi(options_.port.c_str()))
                            : options_.board;
    tracker_ = std::make_unique<Tracker>(TrackerOptions{options_.tracker, options_.key,
                                                        options_.custom_address, std::move(board),
                                                        options_.session.store, port});
  }
  std::string line = std::to_string(port) + "\n";
  if (!options_.port_file.empty()) WriteFile(options_.port_file, line.data(), line.size());
  Log("listening on " + options_.host + ":" + std::to_string(port));
}

Server::~Server() {
  if (!options_.port_file.empty()) unlink(options_.port_file.c_str());
}

void Server::Run() {
  while (!EndIsWanted()) {
    if (session_ && tracker_ && !tracker_->end_wanted().empty())
      session_->End(tracker_->end_wanted());
    if (session_ && session_->Tick()) AfterSession();
    if (tracker_) tracker_->Tick(!session_);
    while (!session_ && !waiting_.empty()) {
      Visitor next = std::move(waiting_.front());
      waiting_.pop_front();
      Begin(std::move(next));
    }
    Wait();
  }
}

void Server::Wait() {
  std::vector<pollfd> polled = {{signal_descriptor(), POLLIN, 0}};
  const size_t tracker = polled.size();
  polled.push_back(
      {tracker_ ? tracker_->descriptor() : -1, tracker_ ? tracker_->events() : short{0}, 0});
  const size_t client = polled.size();
  polled.push_back({session_ ? session_->watched() : -1, POLLRDHUP, 0});
  const size_t strangers = polled.size();
  const bool attend = Now() >= attend_at_;
  if (attend) {
    polled.push_back({HasRoom() ? listener_.get() : -1, POLLIN, 0});
    for (const Visitor& v : visitors_) polled.push_back({v.descriptor(), POLLIN, 0});
    for (const Visitor& v : waiting_) polled.push_back({v.descriptor(), POLLRDHUP, 0});
    for (const Visitor& v : leaving_) polled.push_back({v.descriptor(), POLLIN, 0});
  }
  if (poll(polled.data(), polled.size(), Milliseconds(NextDeadline())) < 0 && errno != EINTR)
    Fail("poll");
  if (polled[client].revents) session_->ClientIsGone();
  if (polled[tracker].revents) tracker_->OnReady();
  if (attend) Attend(&polled[strangers]);
}

bool Server::HasRoom() const {
  return visitors_.size() < kMaxVisitors || Now() >= visitors_.front().since() + kGraceS;
}

// Nobody here can make us wait: every read takes what there is, and not for ever. `polled` is what
// Wait has asked about the listener and all strangers, in their order.
void Server::Attend(const pollfd* polled) {
  const double now = Now();
  const bool knocked = (polled++)->revents;
  bool busy = knocked;
  auto of_next = [&polled, &busy] {
    busy = busy || polled->revents;
    return (polled++)->revents != 0;
  };
  // Who is admitted here moves on to `waiting_`, about which nothing was asked.
  const size_t waiting = waiting_.size();
  for (auto v = visitors_.begin(); v != visitors_.end();) {
    auto visitor = v++;
    const bool spoke = of_next();
    if (now >= visitor->deadline()) {
      visitors_.erase(visitor);
    } else if (spoke) {
      Hear(visitor);
    }
  }
  auto w = waiting_.begin();
  for (size_t i = 0; i < waiting; ++i) {
    auto visitor = w++;
    if (of_next()) waiting_.erase(visitor);  // it has hung up
  }
  for (auto v = leaving_.begin(); v != leaving_.end();) {
    auto visitor = v++;
    char piece[1 << 14];
    const ssize_t n =
        of_next() ? recv(visitor->descriptor(), piece, sizeof(piece), MSG_DONTWAIT) : 1;
    if (n == 0 || (n < 0 && errno != EAGAIN) || now >= visitor->deadline()) leaving_.erase(visitor);
  }
  if (knocked) AcceptVisitors();
  if (busy && session_) attend_at_ = std::max(attend_at_, now + kPauseS);
}

void Server::AcceptVisitors() {
  for (int i = 0; i < kMaxAccepts && HasRoom(); ++i) {
    Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection.valid()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      // No descriptors or no memory: the oldest goes, and whoever knocks has to wait a little.
      if (!visitors_.empty()) visitors_.pop_front();
      attend_at_ = Now() + kPauseS;
      return;
    }
    if (visitors_.size() >= kMaxVisitors) visitors_.pop_front();
    visitors_.emplace_back(std::move(connection));
    Hear(std::prev(visitors_.end()));
  }
}

void Server::Hear(std::list<Visitor>::iterator visitor) {
  if (!visitor->Read()) {
    visitors_.erase(visitor);
  } else if (visitor->complete()) {
    Visitor welcome = std::move(*visitor);
    visitors_.erase(visitor);
    Admit(std::move(welcome));
  }
}

void Server::Admit(Visitor visitor) {
  const std::string& expected = tracker_ ? tracker_->match_key() : options_.key;
  if (visitor.key() != expected || (tracker_ && expected.empty())) {
    visitor.Refuse();
    Refused();
  } else if (!session_ && waiting_.empty()) {
    if (tracker_) tracker_->Taken();
    Begin(std::move(visitor));
  } else if (waiting_.size() < kMaxWaiting) {
    waiting_.push_back(std::move(visitor));
  }
}

void Server::Begin(Visitor visitor) {
  const double timeout_s = visitor.session_timeout_s();
  Fd connection = visitor.Accept(options_.key);
  if (!connection.valid()) return;
  // The child keeps its own connection only; the others' clients must see us hang up when we do.
  auto let_go = [this] {
    ReleaseSignals();
    listener_.Reset();
    tracker_.reset();
    visitors_.clear();
    waiting_.clear();
    leaving_.clear();
  };
  try {
    session_ =
        std::make_unique<Session>(std::move(connection), Fd(), options_.session, timeout_s, let_go);
    if (tracker_) tracker_->SessionBegan(timeout_s);
  } catch (const IoError& e) {
    Log(std::string("no session: ") + e.what());
  }
}

// Said at most so often: a log is on a disk.
void Server::Refused() {
  ++refusals_;
  const double now = Now();
  if (refusals_logged_at_ && now < refusals_logged_at_ + kRefusalsEveryS) return;
  Log("refused " +
      (refusals_ == 1 ? std::string("a client") : std::to_string(refusals_) + " clients") +
      " with another key");
  refusals_logged_at_ = now;
  refusals_ = 0;
}

void Server::AfterSession() {
  if (tracker_) tracker_->SessionEnded(session_->outcome());
  Fd connection = session_->TakeConnection();
  session_.reset();
  if (!connection.valid()) return;
  // A close with unread bytes would reset the connection and take our last words with it.
  shutdown(connection.get(), SHUT_WR);
  leaving_.emplace_back(std::move(connection));
}

double Server::NextDeadline() const {
  double at = std::numeric_limits<double>::infinity();
  if (session_) at = std::min(at, session_->deadline());
  if (tracker_) at = std::min(at, tracker_->deadline(!session_));
  for (const auto* list : {&visitors_, &leaving_}) {
    if (!list->empty()) at = std::min(at, std::max(list->front().deadline(), attend_at_));
  }
  if (!HasRoom()) at = std::min(at, std::max(visitors_.front().since() + kGraceS, attend_at_));
  if (Now() < attend_at_) at = std::min(at, attend_at_);
  return at;
}

int ServeStandardStreams(const SessionOptions& options) {
  // What the runtime prints must not land in the protocol.
  Fd out(dup(STDOUT_FILENO));
  dup2(STDERR_FILENO, STDOUT_FILENO);
  Session session(Fd(dup(STDIN_FILENO)), std::move(out), options, 0, ReleaseSignals);
  while (!session.Tick()) {
    pollfd polled[] = {{signal_descriptor(), POLLIN, 0}, {session.watched(), POLLRDHUP, 0}};
    if (poll(polled, 2, Milliseconds(session.deadline())) < 0 && errno != EINTR) Fail("poll");
    if (EndIsWanted()) return 1;
    if (polled[1].revents) session.ClientIsGone();
  }
  return 0;
}

}  // namespace farm
