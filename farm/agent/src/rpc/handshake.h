// The start of a TVM RPC connection: the client sends a magic number and "client:KEY
// -timeout=SECONDS", and we answer.
#pragma once
#include <string>

#include "base/io.h"

namespace farm {

// A connection whose client has not been served yet.
class Visitor {
 public:
  explicit Visitor(Fd connection);

  // Reads what has come. False when this is no TVM client, or it has hung up.
  bool Read();
  // True when the client has said all that it says before it waits for our answer.
  bool complete() const { return wanted_ && said_.size() == wanted_; }
  // When it came, and after which it is not worth waiting for any longer, on the clock of Now().
  double since() const { return since_; }
  double deadline() const;
  int descriptor() const { return connection_.get(); }

  std::string key() const;
  // What the client asks for, in seconds; 0 is no limit.
  double session_timeout_s() const;

  // Lets the client in; the connection is for the session then.
  Fd Accept(const std::string& key);
  void Refuse();

 private:
  Fd connection_;
  std::string said_;
  size_t wanted_ = 0;  // bytes of the client's whole greeting; 0 while its length has not come
  double since_;
};

}  // namespace farm
