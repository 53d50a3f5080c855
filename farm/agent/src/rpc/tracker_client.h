// The agent as a device of a TVM tracker: registers, offers itself under a random key, offers
// itself again.
//
// The protocol is that of tvm/rpc/tracker.py: a magic number each way, then messages of JSON, each
// with its length before it and each answered by one. No call waits; the server's loop calls
// OnReady when the socket has something and Tick when time has passed.
//
// With a lab's tracker (see lab_messages.h) it goes on in sessions: it says every few seconds that
// it lives, and connects again.
#pragma once
#include <sys/socket.h>

#include <deque>
#include <string>

#include "base/io.h"
#include "rpc/lab_messages.h"

namespace farm {

struct TrackerOptions {
  std::string address;         // HOST:PORT
  std::string key;             // the kind of board
  std::string custom_address;  // where clients find us; empty for what the tracker sees
  std::string board;           // its name in a lab; may be empty
  std::string store;           // the folder of kept files
  int port = 0;                // our own
};

class Tracker {
 public:
  explicit Tracker(TrackerOptions options);

  // What a client that the tracker sent shows us. Empty when we are not on offer.
  const std::string& match_key() const { return match_key_; }
  // A client has come with the match key, which is worth nothing from now on.
  void Taken();
  void SessionBegan(double timeout_s);
  void SessionEnded(const SessionOutcome& outcome);
  // Why the lab wants the session that runs to end; empty if it does not.
  const std::string& end_wanted() const { return end_wanted_; }

  // What to poll, if it is a descriptor at all.
  int descriptor() const { return socket_.get(); }
  short events() const;

  void OnReady();

  // `idle`: there is no session, so the device may be offered. To be called at `deadline` (on the
  // clock of Now()) or before.
  void Tick(bool idle);
  double deadline(bool idle) const;

 private:
  enum class State { kAway, kConnecting, kGreeting, kReady };
  enum class Request { kInfo, kOffer, kPending, kPing, kHeartbeat, kEnded };

  void Connect(bool idle);
  void Disconnect(const std::string& why);
  void Receive();
  void Ask(Request request, const std::string& json);
  void OnAnswer(Request request, const std::string& json);
  void Offer();
  void OnLabAnswer(Request request, const std::string& json);
  void Send(const std::string& bytes);

  TrackerOptions options_;
  Fd socket_;
  sockaddr_storage found_{};  // the tracker's address when it was last looked up
  socklen_t found_size_ = 0;
  State state_ = State::kAway;
  std::string received_, match_key_, complaint_;
  std::deque<Request> asked_;
  double retry_at_ = 0, answer_due_ = 0, ping_at_ = 0, taken_since_ = 0;
  // Of a lab. It is known to be one for this connection once it has answered our PING; `was_lab_`
  // is what it was before.
  bool asked_lab_ = false, was_lab_ = false, hold_ = false;
  double heartbeat_s_ = 0, heartbeat_at_ = 0;
  LabSession session_;
  std::string ended_,
      end_wanted_;  // what is still to be told of the last session; why this one is to end
};

}  // namespace farm
