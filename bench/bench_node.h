// A node to measure: tests/harness/node.h's, with its state on a disk instead of a tmpfs, since commits and
// logs that cost nothing would flatter.
//
// One thread. What it writes beneath `disk` stays there, for the caller to delete.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "tests/harness/node.h"

namespace berth {

class BenchNode {
 public:
  // `disk` is a directory on the file system to measure on.
  explicit BenchNode(const std::string& disk);

  // A plugin file for berth-hostpath; `more` are further lines of it ("[health]\ninterval = …").
  void AddHostpath(const std::string& id, const std::string& more = "");
  // The same for the plugin that does nothing but bind (bind_plugin.h); `self` is this program.
  void AddBind(const std::string& id, const std::string& self, const std::string& more = "");
  // Starts berthd and waits until it is ready; then for each of the plugins added so far.
  void Start();

  [[nodiscard]] Node& node() { return node_; }
  [[nodiscard]] pid_t berthd_pid() const { return berthd_pid_; }
  [[nodiscard]] std::string PluginSocket(const std::string& id) const;

 private:
  Node node_;
  std::vector<std::string> hostpaths_;
  pid_t berthd_pid_ = -1;
};

}  // namespace berth
