// What the plugin is to do wrong, and when. docs/fault-plugin.md has every key with examples.
//
// A script is a TOML file of [[rule]] tables. A rule names an RPC (or "start", the moment before the plugin
// serves), says which of its calls it means, and what is done then. Its calls are counted from the moment
// that the rule first stands in the script, by the rule's name; RuleCounts keeps the counts, and the history
// takes them over a restart of the process.
//
// Parsing and matching are pure; any thread.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace berth::fault {

// The pseudo-RPC of rules that mean the start of the process.
inline constexpr std::string_view kStart = "start";

enum class Deed {
  kHang,           // until the rule has gone from the script, or the plugin is asked to end
  kDelay,          // for `delay`
  kExit,           // _exit(code)
  kSignal,         // the signal, to itself
  kFail,           // answers `status`
  kLie,            // answers OK and does nothing
  kAnswer,         // changes the answer: `answer`, `replace`, `pad`
  kForget,         // drops the record of what the request names
  kRepeat,         // has the effect `times` times
  kBeneath,        // has the effect in `directory` of the staging path
  kIgnoreSigterm,  // from now on
  kChildren,       // leaves `processes` processes behind, each in a session of its own
  kForkBomb,       // `processes` of them in its own session, or without end where that is 0
  kMemory,         // takes `bytes` of memory and keeps them
  kOutput,         // writes to its output
};

enum class When { kBefore, kAfter };

enum class Record { kPublication, kStaging, kVolume };

struct Output {
  int64_t lines = 0;       // numbered ones: "line 17 ......"
  int64_t length = 80;     // of a line, its end included; a line is never shorter than its number
  int64_t bytes = 0;       // instead of lines: so many bytes
  bool line_ends = true;   // false: as many bytes, and never an end of line
  bool binary = false;     // every byte value there is
  std::string text;        // instead of all that: this, as it is
  int64_t per_second = 0;  // lines; 0: as fast as they go
};

struct Rule {
  std::string name;
  std::string rpc;     // "NodePublishVolume", "*" for every RPC, or "start"
  std::string volume;  // only calls about this volume; empty: all
  int64_t from = 1;    // the first of its calls that is meant
  int64_t count = 0;   // how many from there on; 0: all
  When when = When::kBefore;
  Deed deed = Deed::kDelay;
  std::chrono::milliseconds delay{0};  // before the deed
  bool background = false;             // the deed is done while the call goes on
  int code = 0;                        // kExit
  int signal = 0;                      // kSignal
  grpc::Status status;                 // kFail
  std::string answer;                  // kAnswer: text format of protobuf
  bool replace = false;                // kAnswer: instead of the answer, not merged into it
  int64_t pad = 0;                     // kAnswer: so many bytes of an unknown field more
  Record record = Record::kPublication;
  int times = 2;
  std::string directory;  // kBeneath: one name
  int64_t processes = 1;
  bool hold_fuse = false;  // kChildren: the first of them keeps /dev/fuse open
  int64_t bytes = 0;       // kMemory
  Output output;
};

struct Script {
  std::vector<Rule> rules;  // in the file's order, which is the order of the deeds

  [[nodiscard]] const Rule* Find(std::string_view name) const;
};

// INVALID_ARGUMENT with a line for each mistake, as "script.toml:4: rule.rpc: …".
[[nodiscard]] absl::StatusOr<Script> ParseScript(const std::string& path, std::string_view content);

// How many calls each rule has met, by its name.
class RuleCounts {
 public:
  struct Match {
    Rule rule;
    int64_t call = 0;   // the rule's n-th
    bool acts = false;  // it is one of those that are meant
  };

  // Counts a call, and says which rules met it.
  [[nodiscard]] std::vector<Match> Meet(const Script& script, std::string_view rpc, std::string_view volume);
  // A count from an earlier run.
  void Restore(const std::string& rule, int64_t calls);

 private:
  std::map<std::string, int64_t> calls_;
};

}  // namespace berth::fault
