// berth-fault-plugin as a plugin of a Node: its file, its script, its history.
//
// One thread. The script may be changed while the plugin runs: a rule's calls are counted from then on.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/testing/test_bound.h"
#include "tests/harness/node.h"

namespace berth {

// A line of the history (docs/fault-plugin.md). What a line does not have is empty or 0.
struct FaultEvent {
  std::string event;  // "start", "call", "rule", "effect", "answer", …
  std::string rpc;
  std::string volume;
  std::string staging;
  std::string target;
  std::string code;
  std::string rule;
  bool acts = false;
  pid_t pid = 0;
  pid_t child = 0;
  double at = 0;  // seconds of the monotonic clock
};

class FaultPlugin {
 public:
  explicit FaultPlugin(Node& node, std::string id = "fault");

  // The plugin's file. `sections` comes after its first lines: more keys, then tables. Where it gives no
  // [health] or no [restart], short ones are added, so that a test need not wait. `arguments`: more of
  // berth-hostpath's.
  void Write(const std::string& sections = "", const std::vector<std::string>& arguments = {});
  // What the plugin does wrong from now on: rules without their names, such as
  // `rpc = "Probe"\naction = "hang"`. Rules of before are gone; those that hang go on.
  void Play(const std::vector<std::string>& rules = {});

  [[nodiscard]] const std::string& id() const { return id_; }
  // Its BERTH_PLUGIN_DIR.
  [[nodiscard]] std::string dir() const { return node_.state_dir() + "/plugins/" + id_; }
  [[nodiscard]] std::string file() const { return node_.dir() + "/etc/plugins.d/" + id_ + ".toml"; }

  [[nodiscard]] std::vector<FaultEvent> History() const;
  [[nodiscard]] int64_t Count(const std::function<bool(const FaultEvent&)>& predicate) const;
  // Waits for a line that fulfils `predicate`, and returns the first of them.
  FaultEvent WaitHistory(const std::string& what, const std::function<bool(const FaultEvent&)>& predicate,
                         std::chrono::seconds bound = kTestBound) const;
  // Waits until a rule of the present script has acted at a call of `rpc`.
  FaultEvent WaitActed(const std::string& rpc) const;

 private:
  Node& node_;
  std::string id_;
  std::string script_;
  std::string history_;
  int rules_ = 0;  // ever
  int first_ = 0;  // of the present script
};

}  // namespace berth
