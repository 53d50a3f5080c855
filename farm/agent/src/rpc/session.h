// One client's session: a child process with a work directory of its own, watched by the agent.
#pragma once
#include <sys/types.h>

#include <functional>
#include <string>

#include "base/io.h"
#include "execution/threads.h"
#include "rpc/lab_messages.h"
#include "rpc/session_limits.h"
#include "rpc/work_directory.h"

namespace farm {

struct SessionOptions {
  std::string work_base;                            // where the work directories are made
  std::string store;                                // where kept files are
  uint64_t store_budget_bytes = uint64_t{2} << 30;  // of all kept files
  ThreadOptions threads;
  Limits limits;
};

class Session {
 public:
  // Forks. The child serves TVM's RPC on the two descriptors (which may be one), after it has
  // called `in_child` to let go of what it inherited. `timeout_s` is the session's time; 0 is no
  // limit.
  Session(Fd in, Fd out, const SessionOptions& options, double timeout_s,
          const std::function<void()>& in_child);

  // Ends the child and removes its work directory.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The descriptor on which to wait for the client's hanging up; -1 when that has happened.
  int watched() const { return gone_at_ ? -1 : in_.get(); }
  void ClientIsGone();

  // When Tick is due, on the clock of Now(). Time in which the agent itself was stopped does not
  // count for the session.
  double deadline() const;

  // True when the session is over.
  bool Tick();

  // Has Tick end the session, with these last words to the client.
  void End(const std::string& why);

  double timeout_s() const { return timeout_s_; }
  // How it has ended, once it has.
  const SessionOutcome& outcome() const { return outcome_; }

  // After an end that the client was told the reason of: the connection, on which it has still to
  // read that. Else an invalid one.
  Fd TakeConnection();

 private:
  bool IsOverdue(double now) const;
  void SayLastWords();

  Fd in_, out_;
  WorkDirectory directory_;
  double timeout_s_, started_, ticked_at_, gone_at_ = 0;
  std::string last_words_;  // what to end it with
  bool client_was_told_ = false;
  SessionOutcome outcome_;
  pid_t child_ = -1;
};

}  // namespace farm
