// How plugins are shown to people.
//
// Pure but for the clock, to which times are relative; any thread.
#pragma once

#include <string>

#include "berth/v1/node.pb.h"
#include "cli/table.h"

namespace berth::cli {

// "READY"; a state that this program is too old to know counts as unknown, as the API has it.
[[nodiscard]] std::string PluginStateName(v1::PluginState state);

// A row for each plugin.
[[nodiscard]] Table PluginTable(const v1::ListPluginsResponse& plugins);

// One plugin in all detail.
[[nodiscard]] Table PluginDetails(const v1::Plugin& plugin);

// What `plugin` waits for while it drains: "3 volumes: v1 by job-7, …"; empty where it waits for nothing.
[[nodiscard]] std::string DrainingFor(const v1::Plugin& plugin);

}  // namespace berth::cli
