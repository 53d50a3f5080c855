// Signals as something to poll.
#pragma once

namespace farm {

// From now on SIGTERM, SIGINT, SIGHUP and SIGCHLD make `signal_descriptor()` readable (but for
// those that are ignored already), and SIGPIPE is ignored.
void CatchSignals();
int signal_descriptor();

// Reads what came. True once one of the signals that end the agent has come.
bool EndIsWanted();

// In a child: as if CatchSignals had never been called.
void ReleaseSignals();

}  // namespace farm
