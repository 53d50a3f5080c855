// The words of farm-agent's command line.
#pragma once
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace farm {

// The command line is wrong. The text says how.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class CommandLine {
 public:
  // UsageError for an unknown option, a value that is missing, or a word that belongs nowhere.
  CommandLine(int argc, char** argv);

  static const char* Help();

  // "serve", "run" or "list".
  const std::string& command() const { return command_; }
  // What comes after the command; empty when nothing does.
  const std::string& name() const { return name_; }

  bool Has(const std::string& option) const { return values_.count(option) > 0; }
  // The last value given.
  std::string Value(const std::string& option, const std::string& otherwise = "") const;
  std::vector<std::string> Values(const std::string& option) const;
  // A number, up to `maximum`. UsageError when it is none.
  uint64_t Number(const std::string& option, uint64_t otherwise,
                  uint64_t maximum = UINT64_MAX) const;
  // Text that goes into a tracker's JSON and the handshake as it is. UsageError when it cannot.
  std::string Plain(const std::string& option, const std::string& otherwise) const;
  // The same for what an option has brought in from elsewhere.
  static std::string RequirePlain(const std::string& option, const std::string& text);

 private:
  std::string command_ = "serve", name_;
  std::map<std::string, std::vector<std::string>> values_;
};

}  // namespace farm
