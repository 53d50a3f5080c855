#include "rpc/tracker_client.h"

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
constexpr double kUnusedS =
    6;  // an offer that was taken this long ago, with nobody coming, is made anew
constexpr size_t kMaxMessageBytes = 1 << 20;

std::string Bytes(int32_t value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
std::string Code(TrackerCode code) { return std::to_string(static_cast<int>(code)); }

}  // namespace

Tracker::Tracker(TrackerOptions options) : options_(std::move(options)) {
  options_.custom_address =
      options_.custom_address.empty() ? "null" : "\"" + options_.custom_address + "\"";
}

void Tracker::Taken() {
  session_.match_key = match_key_;
  session_.since = Now();
  match_key_.clear();
}

void Tracker::SessionBegan(double timeout_s) {
  session_.timeout_s = timeout_s;
  heartbeat_at_ = 0;
}

void Tracker::SessionEnded(const SessionOutcome& outcome) {
  if (!session_.match_key.empty()) ended_ = LabEnded(session_.match_key, outcome);
  session_ = LabSession();
  end_wanted_.clear();
}

short Tracker::events() const { return state_ == State::kConnecting ? POLLOUT : POLLIN; }

double Tracker::deadline(bool idle) const {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  if (state_ == State::kAway) return idle || was_lab_ ? retry_at_ : kNever;
  if (state_ != State::kReady || !asked_.empty()) return answer_due_;
  return std::min(idle ? ping_at_ : kNever, heartbeat_s_ ? heartbeat_at_ : kNever);
}

void Tracker::Tick(bool idle) {
  const double now = Now();
  if (idle && !session_.match_key.empty())
    session_ = LabSession();  // its client came, and no session could be begun
  if (state_ == State::kAway) {
    if ((idle || was_lab_) && now >= retry_at_) Connect(idle);
  } else if (state_ != State::kReady || !asked_.empty()) {
    if (now >= answer_due_) Disconnect("no answer");
  } else if (!asked_lab_) {
    asked_lab_ = true;
    Ask(Request::kPing, "[" + Code(TrackerCode::kPing) + "]");
  } else if (heartbeat_s_ && !ended_.empty()) {
    Ask(Request::kEnded, ended_);
  } else if (heartbeat_s_ && now >= heartbeat_at_) {
    heartbeat_at_ = now + heartbeat_s_;
    Ask(Request::kHeartbeat, LabHeartbeat(session_, options_.store, now));
  } else if (idle && match_key_.empty() && !hold_) {
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
void Tracker::Connect(bool idle) {
  retry_at_ = Now() + kRetryS;
  if (idle) {
    const std::string& address = options_.address;
    const size_t colon = address.rfind(':');
    std::string host = address.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']')
      host = host.substr(1, host.size() - 2);
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (int error = getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found)) {
      return Disconnect(gai_strerror(error));
    }
    found_size_ = found->ai_addrlen;
    memcpy(&found_, found->ai_addr, found_size_);
    freeaddrinfo(found);
  }
  socket_.Reset(socket(found_.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(socket_.get(), reinterpret_cast<sockaddr*>(&found_), found_size_) &&
      errno != EINPROGRESS)
    return Disconnect(strerror(errno));
  int on = 1;
  setsockopt(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  state_ = State::kConnecting;
  answer_due_ = Now() + kAnswerS;
}

void Tracker::Disconnect(const std::string& why) {
  if (why != complaint_)
    Log("tracker " + options_.address + ": " + why + "; trying again every " +
        std::to_string(int(kRetryS)) + " s");
  complaint_ = why;
  socket_.Reset();
  state_ = State::kAway;
  received_.clear();
  asked_.clear();
  asked_lab_ = hold_ = false;
  heartbeat_s_ = 0;
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
      Ask(Request::kInfo, "[" + Code(TrackerCode::kUpdateInfo) +
                              ", {\"key\": \"server:" + options_.key + "\", \"addr\": [" +
                              options_.custom_address + ", " + std::to_string(options_.port) +
                              "], \"farm\": " + LabHello(options_.board, session_, Now()) + "}]");
      match_key_.clear();  // the next Tick offers us, if there is no session by now
      continue;
    }
    if (head < 0 || static_cast<size_t>(head) > kMaxMessageBytes)
      return Disconnect("a message of " + std::to_string(head) + " bytes");
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
  if (request == Request::kPing || request == Request::kHeartbeat || request == Request::kEnded)
    return OnLabAnswer(request, json);
  if (json != Code(TrackerCode::kSuccess)) return Disconnect("it answered " + json.substr(0, 200));
  if (request == Request::kInfo) {
    Log("registered with tracker " + options_.address + " as " + options_.key);
    complaint_.clear();
  }
}

void Tracker::OnLabAnswer(Request request, const std::string& json) {
  try {
    if (request == Request::kPing) {
      heartbeat_s_ = HeartbeatWanted(json);
      was_lab_ = heartbeat_s_ > 0;
      heartbeat_at_ = 0;
      return;
    }
    const LabWishes wishes = WishesOf(json);
    if (request == Request::kEnded) ended_.clear();
    hold_ = wishes.hold;
    if (!session_.match_key.empty() && wishes.end_match_key == session_.match_key) {
      end_wanted_ = Coded(error::kLab, "the lab has ended this session: " + wishes.end_why);
    }
  } catch (const IoError& e) {
    Disconnect(e.what());
  }
}

// Under a name that nobody can guess or use twice.
void Tracker::Offer() {
  match_key_ = options_.key + ":" + RandomHex(8);
  taken_since_ = 0;
  Ask(Request::kOffer, "[" + Code(TrackerCode::kPut) + ", \"" + options_.key + "\", [" +
                           std::to_string(options_.port) + ", \"" + match_key_ + "\"], " +
                           options_.custom_address + "]");
}

void Tracker::Send(const std::string& bytes) {
  // A few hundred bytes always fit into an empty socket buffer; a tracker that reads nothing is as
  // good as away.
  ssize_t n = send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n != static_cast<ssize_t>(bytes.size()))
    Disconnect(n < 0 ? strerror(errno) : "it reads nothing");
}

}  // namespace farm
