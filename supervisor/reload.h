// plugins.d read again: what its files ask for is compared with what is there, and only what differs is
// touched.
//
// The comparison is pure; carrying it out is the loop's. Which changes of a file need a new process is its
// PluginOwner's to say (Reconfigure). A file that is wrong changes nothing: its plugin runs on, and shows it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/task_scope.h"
#include "supervisor/plugin_config.h"
#include "supervisor/plugin_owner.h"
#include "supervisor/supervisor.h"

namespace berth {

// A plugin that there is, as far as files are concerned.
struct ReloadOwner {
  std::string config_file;  // empty: it is gone already
  bool external = false;
};

struct ReloadStep {
  enum class What {
    kBegin,        // there was none of this id
    kReconfigure,  // `file` is what it has now, good or broken
    kRemove,       // its file is gone; `file` has no path
    kReplace,      // from command to socket, or back: removed, then begun
  };
  What what = What::kReconfigure;
  PluginFile file;  // `file.id` is the plugin's
};

// What to do, removals first: an id may go from one file to another. Each of `files` has an id of its own, as
// LoadPluginDir gives it.
[[nodiscard]] std::vector<ReloadStep> PlanReload(std::vector<PluginFile> files,
                                                 const std::map<std::string, ReloadOwner>& owners);

// Those who have the plugins. What is in it outlives the reload.
struct ReloadTarget {
  Registry& registry;
  std::function<PluginOwner*(const std::string& id)> find;  // null: none
  std::function<PluginOwner&(PluginFile file)> begin;       // makes the owner, and lets it run
  std::function<Awaitable<absl::Status>(const PluginConfig& config)> check;  // whether it can be launched
};

// Does all of it, the plugins in parallel, each once its file is checked, each in `scope`, so that it goes on
// where the caller is cancelled. `report` says at any time what became of each; what is not done yet is
// pending. What has not ended by `deadline` goes on too, and is among the broken.
[[nodiscard]] Awaitable<void> CarryOutReload(std::vector<ReloadStep> steps, ReloadTarget target,
                                             TaskScope& scope, TimePoint deadline,
                                             std::shared_ptr<ReloadReport> report);

// "started: a, b; unchanged: c; broken: d: …", for people.
[[nodiscard]] std::string Describe(const ReloadReport& report);

}  // namespace berth
