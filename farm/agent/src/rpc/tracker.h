// The agent as a device of a TVM tracker: registers, offers itself under a random key, offers itself again.
//
// The protocol is that of tvm/rpc/tracker.py: a magic number each way, then messages of JSON, each with its length before it and each
// answered by one. No call waits; the server's loop calls OnReady when the socket has something and Tick when time has passed.
#pragma once
#include <deque>
#include <string>

#include "base/io.h"

namespace farm {

class Tracker {
 public:
  // `address` is HOST:PORT; `custom_address` is where clients find us, empty for what the tracker sees; `port` is our own.
  Tracker(std::string address, std::string key, std::string custom_address, int port);

  // What a client that the tracker sent shows us. Empty when we are not on offer.
  const std::string& match_key() const { return match_key_; }
  // A client has come with the match key, which is worth nothing from now on.
  void Taken() { match_key_.clear(); }

  // What to poll, if it is a descriptor at all.
  int descriptor() const { return socket_.get(); }
  short events() const;

  void OnReady();

  // `idle`: there is no session, so the device may be offered. To be called at `deadline` (on the clock of Now()) or before.
  void Tick(bool idle);
  double deadline(bool idle) const;

 private:
  enum class State { kAway, kConnecting, kGreeting, kReady };
  enum class Request { kInfo, kOffer, kPending };

  void Connect();
  void Disconnect(const std::string& why);
  void Receive();
  void Ask(Request request, const std::string& json);
  void OnAnswer(Request request, const std::string& json);
  void Offer();
  void Send(const std::string& bytes);

  std::string address_, key_, custom_address_;
  int port_;
  Fd socket_;
  State state_ = State::kAway;
  std::string received_, match_key_, complaint_;
  std::deque<Request> asked_;
  double retry_at_ = 0, answer_due_ = 0, ping_at_ = 0, taken_since_ = 0;
};

}  // namespace farm
