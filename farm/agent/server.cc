#include "server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "signals.h"

namespace farm {
namespace {

constexpr size_t kMaxVisitors = 256, kMaxWaiting = 32;
constexpr int kBacklog = 128;

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

Fd Listen(const ServerOptions& options) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  if (int error = getaddrinfo(options.host.c_str(), options.port.c_str(), &hints, &found)) {
    throw IoError("--host " + options.host + " --port " + options.port + ": " + gai_strerror(error));
  }
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  if (!IsLoopback(found->ai_addr) && !options.open_to_network) {
    throw IoError("--host " + options.host +
                  " is open to the network. TVM's RPC has no password and no encryption: whoever can connect can run any code as this "
                  "user. Reach a loopback agent through an SSH tunnel, or say --open-to-network if everybody on that network is "
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
    tracker_ = std::make_unique<Tracker>(options_.tracker, options_.key, options_.custom_address, port);
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
    if (session_ && session_->Tick()) AfterSession();
    if (tracker_) tracker_->Tick(!session_);
    while (!session_ && !waiting_.empty()) {
      Visitor next = std::move(waiting_.front());
      waiting_.pop_front();
      Begin(std::move(next));
    }
    Wait();
    HearVisitors();
  }
}

void Server::Wait() {
  std::vector<pollfd> polled = {{signal_descriptor(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  const size_t tracker = polled.size();
  polled.push_back({tracker_ ? tracker_->descriptor() : -1, tracker_ ? tracker_->events() : short{0}, 0});
  const size_t client = polled.size();
  polled.push_back({session_ ? session_->watched() : -1, POLLRDHUP, 0});
  for (const Visitor& v : visitors_) polled.push_back({v.descriptor(), POLLIN, 0});
  for (const Visitor& v : waiting_) polled.push_back({v.descriptor(), POLLRDHUP, 0});
  for (const Visitor& v : leaving_) polled.push_back({v.descriptor(), POLLIN, 0});
  if (poll(polled.data(), polled.size(), Milliseconds(NextDeadline())) < 0 && errno != EINTR) Fail("poll");
  if (polled[client].revents) session_->ClientIsGone();
  if (polled[tracker].revents) tracker_->OnReady();
  if (polled[1].revents) AcceptVisitors();
}

void Server::AcceptVisitors() {
  while (true) {
    Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection.valid()) return;
    if (visitors_.size() >= kMaxVisitors) visitors_.pop_front();
    visitors_.emplace_back(std::move(connection));
  }
}

// Nobody here can make us wait: every read takes what there is.
void Server::HearVisitors() {
  const double now = Now();
  for (auto v = visitors_.begin(); v != visitors_.end();) {
    if (!v->Read() || (!v->complete() && now >= v->deadline())) {
      v = visitors_.erase(v);
    } else if (v->complete()) {
      Admit(std::move(*v));
      v = visitors_.erase(v);
    } else {
      ++v;
    }
  }
  waiting_.remove_if([](const Visitor& v) {
    pollfd hung_up{v.descriptor(), POLLRDHUP, 0};
    return poll(&hung_up, 1, 0) > 0;
  });
  leaving_.remove_if([now](const Visitor& v) {
    char piece[1 << 14];
    ssize_t n;
    while ((n = recv(v.descriptor(), piece, sizeof(piece), MSG_DONTWAIT)) > 0) {
    }
    return n == 0 || errno != EAGAIN || now >= v.deadline();
  });
}

void Server::Admit(Visitor visitor) {
  const std::string& expected = tracker_ ? tracker_->match_key() : options_.key;
  if (visitor.key() != expected || (tracker_ && expected.empty())) {
    Log("refused a client with another key");
    visitor.Refuse();
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
    session_ = std::make_unique<Session>(std::move(connection), Fd(), options_.session, timeout_s, let_go);
  } catch (const IoError& e) {
    Log(std::string("no session: ") + e.what());
  }
}

void Server::AfterSession() {
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
    for (const Visitor& v : *list) at = std::min(at, v.deadline());
  }
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
