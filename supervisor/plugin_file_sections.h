// The independent parts of a plugin file: each table, and the user that the plugin runs as.
//
// Plain values; any thread. From .cc files only, as toml_reader.h. Mistakes are noted in the reader.
#pragma once

#include <string_view>
#include <vector>

#include "base/value_reader.h"
#include "supervisor/plugin_config.h"

namespace berth {

// The tables of the same names. `external`: berthd does not run it, so that keys about its replacement are
// mistakes.
void ReadHealth(ValueReader& reader, const toml::table& health, bool external, HealthConfig* config);
void ReadRestart(ValueReader& reader, const toml::table& restart, RestartLimits* limits);
void ReadLimits(ValueReader& reader, const toml::table& table, CgroupLimits* limits);
void ReadRlimits(ValueReader& reader, const toml::table& table, std::vector<ResourceLimit>* rlimits);
void ReadLog(ValueReader& reader, const toml::table& log, LogLimits* limits);
// [[token]]: of each audience one, and of each place and name. Only of a plugin that serves Node (`kind`),
// for the others publish nothing.
void ReadTokens(ValueReader& reader, const toml::node& tokens, PluginKind kind,
                std::vector<WantedToken>* config);

// user, group, capabilities and their like, which stand among the file's first keys. One that serves Node
// (`kind`) must keep CAP_SYS_ADMIN, for it mounts.
void ReadUser(ValueReader& reader, const toml::table& file, PluginKind kind, PluginUserConfig* user);

}  // namespace berth
