// Answers of a lab's tracker. Input: the answer.
#include "rpc/lab_messages.h"

#include <string>

#include "base/io.h"
#include "fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string answer(reinterpret_cast<const char*>(data), size);
  try {
    const double seconds = farm::HeartbeatWanted(answer);
    CLAIM(seconds == 0 || (seconds >= 0.1 && seconds <= 3600));
  } catch (const farm::IoError&) {
  }
  try {
    const farm::LabWishes wishes = farm::WishesOf(answer);
    CLAIM(wishes.end_why.size() <= 500 && wishes.end_match_key.size() <= size);
  } catch (const farm::IoError&) {
  }
  return 0;
}
