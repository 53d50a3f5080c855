#include "rpc/tracker.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "rpc_endpoint.h"

namespace farm {
namespace {

using tvm::runtime::TrackerCode;

constexpr double kRetryS = 2, kAnswerS = 10, kPingS = 2;
constexpr double kUnusedS = 6;  // an offer that was taken this long ago, with nobody coming, is made anew
constexpr size_t kMaxMessageBytes = 1 << 20;

std::string Bytes(int32_t value) { return std::string(reinterpret_cast<const char*>(&value), sizeof(value)); }
std::string Code(TrackerCode code) { return std::to_string(static_cast<int>(code)); }

}  // namespace

Tracker::Tracker(std::string address, std::string key, std::string custom_address, int port)
    : address_(std::move(address)), key_(std::move(key)), custom_address_(std::move(custom_address)), port_(port) {
  custom_address_ = custom_address_.empty() ? "null" : "\"" + custom_address_ + "\"";
}

short Tracker::events() const { return state_ == State::kConnecting ? POLLOUT : POLLIN; }

double Tracker::deadline(bool idle) const {
  if (state_ == State::kAway) return idle ? retry_at_ : std::numeric_limits<double>::infinity();
  if (state_ != State::kReady || !asked_.empty()) return answer_due_;
  return idle ? ping_at_ : std::numeric_limits<double>::infinity();
}

void Tracker::Tick(bool idle) {
  const double now = Now();
  if (state_ == State::kAway) {
    if (idle && now >= retry_at_) Connect();
  } else if (state_ != State::kReady || !asked_.empty()) {
    if (now >= answer_due_) Disconnect("no answer");
  } else if (idle && match_key_.empty()) {
    Offer();
  } else if (idle && now >= ping_at_) {
    Ask(Request::kPending, "[" + Code(TrackerCode::kGetPendingMatchKeys) + "]");
  }
}

void Tracker::OnReady() {
  if (state_ == State::kConnecting) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) return Disconnect(strerror(error));
    state_ = State::kGreeting;
    Send(Bytes(tvm::runtime::kRPCTrackerMagic));
  } else {
    Receive();
  }
}

// Looking up a host's name may take seconds; that is why this is done between sessions only.
void Tracker::Connect() {
  size_t colon = address_.rfind(':');
  std::string host = address_.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  retry_at_ = Now() + kRetryS;
  if (int error = getaddrinfo(host.c_str(), address_.substr(colon + 1).c_str(), &hints, &found)) {
    return Disconnect(gai_strerror(error));
  }
  socket_.Reset(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  bool failed = connect(socket_.get(), found->ai_addr, found->ai_addrlen) && errno != EINPROGRESS;
  freeaddrinfo(found);
  if (failed) return Disconnect(strerror(errno));
  int on = 1;
  setsockopt(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  state_ = State::kConnecting;
  answer_due_ = Now() + kAnswerS;
}

void Tracker::Disconnect(const std::string& why) {
  if (why != complaint_) Log("tracker " + address_ + ": " + why + "; trying again every " + std::to_string(int(kRetryS)) + " s");
  complaint_ = why;
  socket_.Reset();
  state_ = State::kAway;
  received_.clear();
  asked_.clear();
  retry_at_ = Now() + kRetryS;
}

void Tracker::Receive() {
  char piece[4096];
  ssize_t n = recv(socket_.get(), piece, sizeof(piece), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return Disconnect(n ? strerror(errno) : "it hung up");
  received_.append(piece, static_cast<size_t>(n));
  int32_t head = 0;
  while (state_ != State::kAway && received_.size() >= sizeof(head)) {
    memcpy(&head, received_.data(), sizeof(head));
    if (state_ == State::kGreeting) {
      if (head != tvm::runtime::kRPCTrackerMagic) return Disconnect("not a TVM tracker");
      received_.erase(0, sizeof(head));
      state_ = State::kReady;
      Ask(Request::kInfo, "[" + Code(TrackerCode::kUpdateInfo) + ", {\"key\": \"server:" + key_ + "\", \"addr\": [" +
                              custom_address_ + ", " + std::to_string(port_) + "]}]");
      match_key_.clear();  // the next Tick offers us, if there is no session by now
      continue;
    }
    if (head < 0 || static_cast<size_t>(head) > kMaxMessageBytes) return Disconnect("a message of " + std::to_string(head) + " bytes");
    if (received_.size() < sizeof(head) + static_cast<size_t>(head)) return;
    std::string json = received_.substr(sizeof(head), static_cast<size_t>(head));
    received_.erase(0, sizeof(head) + json.size());
    if (asked_.empty()) return Disconnect("an answer to nothing");
    Request request = asked_.front();
    asked_.pop_front();
    OnAnswer(request, json);
  }
}

void Tracker::Ask(Request request, const std::string& json) {
  asked_.push_back(request);
  answer_due_ = Now() + kAnswerS;
  Send(Bytes(static_cast<int32_t>(json.size())) + json);
}

void Tracker::OnAnswer(Request request, const std::string& json) {
  ping_at_ = Now() + kPingS;
  if (request == Request::kPending) {
    bool taken = json.find("\"" + match_key_ + "\"") == std::string::npos;
    if (!taken) taken_since_ = 0;
    if (taken && !taken_since_) taken_since_ = Now();
    if (taken && Now() - taken_since_ > kUnusedS && !match_key_.empty()) {
      Log("the tracker gave this device away and nobody came; offering it again");
      Offer();
    }
    return;
  }
  if (json != Code(TrackerCode::kSuccess)) return Disconnect("it answered " + json.substr(0, 200));
  if (request == Request::kInfo) {
    Log("registered with tracker " + address_ + " as " + key_);
    complaint_.clear();
  }
}

// Under a name that nobody can guess or use twice.
void Tracker::Offer() {
  match_key_ = key_ + ":" + RandomHex(8);
  taken_since_ = 0;
  Ask(Request::kOffer, "[" + Code(TrackerCode::kPut) + ", \"" + key_ + "\", [" + std::to_string(port_) + ", \"" + match_key_ +
                           "\"], " + custom_address_ + "]");
}

void Tracker::Send(const std::string& bytes) {
  // A few hundred bytes always fit into an empty socket buffer; a tracker that reads nothing is as good as away.
  ssize_t n = send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n != static_cast<ssize_t>(bytes.size())) Disconnect(n < 0 ? strerror(errno) : "it reads nothing");
}

}  // namespace farm
