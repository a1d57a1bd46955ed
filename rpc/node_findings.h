// What is wrong with this node: the one place that decides it. `berthctl status`, `health` and `doctor`, and
// the scheduler, see what is decided here.
//
//   kError    something does not work: a plugin has failed, a mount is dead
//   kWarning  something is not as it should be, and may become worse: a plugin is launched again and again, a
//             file is wrong, a volume waits for an operator
//   kInfo     nothing is wrong: it is in progress (a plugin is starting), or was asked for (a drain)
//
// Pure: values in, findings out; any thread.
#pragma once

#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "berth/v1/node.pb.h"
#include "controller/plugin_choice.h"
#include "declared/declared_directory.h"
#include "mounter/volume_types.h"
#include "supervisor/registry.h"

namespace berth {

// `held`: how many volumes are in use through the plugin.
[[nodiscard]] std::vector<Finding> FindingsOf(const PluginSnapshot& plugin, int held, TimePoint now);
// Whether it is about to be ready: it is starting and has time left, or is being restarted or swapped.
[[nodiscard]] bool IsOnItsWay(const PluginSnapshot& plugin, TimePoint now);
// Whether a declared volume of this plugin, given by id or by its driver's name, merely waits for a plugin
// that is on its way. A plugin that has not served yet may be of any driver.
[[nodiscard]] bool WaitsForStart(const PluginMap& plugins, const std::string& name, TimePoint now);

[[nodiscard]] std::vector<Finding> FindingsOf(const VolumeView& volume);
// Of a volume without its plugin on this node, or that was released without it; unset: neither.
[[nodiscard]] std::optional<Finding> WithoutItsPlugin(const VolumeView& volume);
// The link may come and go; that it has been away for a minute is a finding.
[[nodiscard]] std::vector<Finding> FindingsOf(const v1::LinkStatus& link, WallTime now);
[[nodiscard]] Finding FindingOf(const v1::NodeDrain& drain);
// Of a file of volumes.d, for the plugin of this id; `starting`: the plugin is on its way.
[[nodiscard]] std::vector<Finding> FindingsOf(const DeclaredView& file, const std::string& plugin_id,
                                              bool starting);

inline void AppendFindings(std::vector<Finding> more, std::vector<Finding>* findings) {
  findings->insert(findings->end(), std::make_move_iterator(more.begin()),
                   std::make_move_iterator(more.end()));
}

// Orders `findings`, the worst first, each kind as it was. More than `limit` are counted in a last one.
void SortFindings(std::vector<Finding>* findings, size_t limit);
[[nodiscard]] v1::NodeHealth HealthOf(const std::vector<Finding>& findings);

}  // namespace berth
