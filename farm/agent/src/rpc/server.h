// Serves clients, one at a time, and whoever knocks meanwhile does not disturb them.
#pragma once
#include <poll.h>

#include <list>
#include <memory>
#include <string>

#include "rpc/handshake.h"
#include "rpc/session.h"
#include "rpc/tracker_client.h"

namespace farm {

struct ServerOptions {
  std::string host = "127.0.0.1", port = "0", port_file;
  std::string key, tracker, custom_address, board;
  bool open_to_network = false;
  SessionOptions session;
};

class Server {
 public:
  // Listens from then on. IoError when that is not possible.
  explicit Server(ServerOptions options);
  ~Server();

  // Until a signal ends it.
  void Run();

 private:
  void Wait();
  void Attend(const pollfd* polled);
  void AcceptVisitors();
  void Hear(std::list<Visitor>::iterator visitor);
  void Admit(Visitor visitor);
  void Begin(Visitor visitor);
  void Refused();
  void AfterSession();
  bool HasRoom() const;
  double NextDeadline() const;

  ServerOptions options_;
  Fd listener_;
  std::unique_ptr<Tracker> tracker_;
  std::unique_ptr<Session> session_;
  std::list<Visitor> visitors_;  // still greeting us; the oldest first
  std::list<Visitor> waiting_;   // for the running session to end
  std::list<Visitor> leaving_;   // have still to read why their session ended; the oldest first
  double attend_at_ = 0;         // until then, strangers are left alone
  double refusals_logged_at_ = 0;
  size_t refusals_ = 0;  // since then
};

// One session on standard input and output. Returns the exit code.
int ServeStandardStreams(const SessionOptions& options);

}  // namespace farm
