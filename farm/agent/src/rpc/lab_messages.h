// What the agent and a lab's tracker tell each other beside TVM's protocol: JSON, as text.
//
// UPDATE_INFO says "farm", which TVM's tracker keeps and ignores. A lab answers the PING that
// follows by more than TVM's "0"; only then does the agent send HEARTBEAT and ENDED.
#pragma once
#include <string>

namespace farm {

constexpr int kLabProtocol = 1, kHeartbeatCode = 101, kEndedCode = 102;

// The session that runs, on the clock of Now(). No match key: there is none. A timeout of 0 is no
// limit.
struct LabSession {
  std::string match_key;
  double since = 0, timeout_s = 0;
};

// How a session has ended: "closed", "error", "signal" (with its number), "timeout", "gone" (the
// client), or "told" (by the lab).
struct SessionOutcome {
  std::string how;
  int signal = 0;
  double seconds = 0;
};

// What a lab asks of its board. Without a match key it asks for no session's end.
struct LabWishes {
  bool hold = false;
  std::string end_match_key, end_why;
};

// The name of a board that has been given none: its kind, the first digits of the digest of this
// system's machine-id, and the port if one other than the usual was asked for. Empty if the system
// has no machine-id.
std::string UsualBoardName(const std::string& kind, int asked_port);

// The value of "farm" in UPDATE_INFO.
std::string LabHello(const std::string& board, const LabSession& session, double now);

std::string LabHeartbeat(const LabSession& session, const std::string& store, double now);
std::string LabEnded(const std::string& match_key, const SessionOutcome& outcome);

// The seconds between heartbeats that a lab wants, by its answer to PING; 0 for any other tracker.
// IoError if it is neither.
double HeartbeatWanted(const std::string& answer);

// IoError if this is no answer of a lab.
LabWishes WishesOf(const std::string& answer);

}  // namespace farm
