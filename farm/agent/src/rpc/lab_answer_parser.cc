// What a lab's tracker answers, which may be a stranger's bytes.
#include <tvm/ffi/extra/json.h>

#include <algorithm>

#include "base/io.h"
#include "rpc/lab_messages.h"

namespace farm {
namespace {

namespace json = tvm::ffi::json;

constexpr size_t kMaxAnswerBytes = 4096;  // its nesting is a recursion of the parser
constexpr size_t kMaxWhyBytes = 500;
constexpr double kLeastHeartbeatS = 0.1, kMostHeartbeatS = 3600;

// The object of an answer "[0, {...}]".
json::Object ObjectOf(const std::string& answer) {
  if (answer.size() <= kMaxAnswerBytes) {
    tvm::ffi::String error;
    const json::Value value = json::Parse(answer, &error);
    if (auto list = value.as<json::Array>(); error.empty() && list && list->size() == 2) {
      auto code = (*list)[0].as<int64_t>();
      auto object = (*list)[1].as<json::Object>();
      if (code && *code == 0 && object) return *object;
    }
  }
  throw IoError(error::kPacket, "it answered " + answer.substr(0, 200));
}

template <typename T>
T Field(const json::Object& object, const char* name, T otherwise) {
  auto found = object.find(tvm::ffi::String(name));
  if (found == object.end()) return otherwise;
  return (*found).second.template try_cast<T>().value_or(otherwise);
}

std::string Text(const json::Object& object, const char* name) {
  return Field(object, name, tvm::ffi::String(""));
}

}  // namespace

double HeartbeatWanted(const std::string& answer) {
  if (answer == "0") return 0;
  const double seconds = Field(ObjectOf(answer), "heartbeat_s", 0.0);
  return seconds > 0 ? std::clamp(seconds, kLeastHeartbeatS, kMostHeartbeatS) : 0;
}

LabWishes WishesOf(const std::string& answer) {
  const json::Object object = ObjectOf(answer);
  const json::Object end = Field(object, "end", json::Object());
  LabWishes wishes;
  wishes.hold = Field(object, "hold", false);
  wishes.end_match_key = Text(end, "match_key");
  wishes.end_why = Text(end, "why").substr(0, kMaxWhyBytes);
  return wishes;
}

}  // namespace farm
