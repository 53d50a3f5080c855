#include "rpc/lab_messages.h"

#include <algorithm>

#include "base/io.h"
#include "base/sha256.h"
#include "execution/device_facts.h"

namespace farm {
namespace {

constexpr int kUsualPort = 9090;

std::string Seconds(double seconds) { return std::to_string(std::max(0.0, seconds)); }

std::string SessionAsJson(const LabSession& session, double now) {
  if (session.match_key.empty()) return "null";
  return "{\"match_key\": \"" + session.match_key +
         "\", \"since_s\": " + Seconds(now - session.since) + ", \"ends_s\": " +
         (session.timeout_s > 0 ? Seconds(session.since + session.timeout_s - now) : "null") + "}";
}

}  // namespace

std::string UsualBoardName(const std::string& kind, int asked_port) {
  std::string digits;
  for (const char* path : {"/etc/machine-id", "/var/lib/dbus/machine-id"}) {
    if (digits.empty() && !ReadText(path).empty()) digits = Sha256OfFile(path).substr(0, 6);
  }
  if (digits.empty()) return "";
  return kind + "-" + digits +
         (asked_port && asked_port != kUsualPort ? "-" + std::to_string(asked_port) : "");
}

std::string LabHello(const std::string& board, const LabSession& session, double now) {
  return "{\"protocol\": " + std::to_string(kLabProtocol) + ", \"board\": \"" + board +
         "\", \"agent\": \"" FARM_VERSION "\", \"boot\": \"" +
         ReadText("/proc/sys/kernel/random/boot_id") +
         "\", \"session\": " + SessionAsJson(session, now) + "}";
}

std::string LabHeartbeat(const LabSession& session, const std::string& store, double now) {
  return "[" + std::to_string(kHeartbeatCode) + ", {\"session\": " + SessionAsJson(session, now) +
         ", \"state\": " + StateAsJson(store) + "}]";
}

std::string LabEnded(const std::string& match_key, const SessionOutcome& outcome) {
  return "[" + std::to_string(kEndedCode) + ", {\"match_key\": \"" + match_key + "\", \"how\": \"" +
         outcome.how + "\", \"signal\": " + std::to_string(outcome.signal) +
         ", \"seconds\": " + Seconds(outcome.seconds) + "}]";
}

}  // namespace farm
