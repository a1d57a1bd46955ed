// Reading a log out: what PluginLogs::Read and LastLines answer, from the file as it lies on the disk.
//
// The worker thread of PluginLogs. Changes nothing. Secrets that became known after a line was read for the
// first time are hidden here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csi/recent_secrets.h"
#include "supervisor/logs/log_file.h"
#include "supervisor/logs/plugin_log.h"

namespace berth {

// Only what went through the intake. `buffer` has kLogChunk bytes at least.
[[nodiscard]] LogBatch ReadLog(const LogFile& file, const LogQuery& query, const LogLimits& limits,
                               const SecretSet& secrets, LogBuffer buffer);

// The last lines before `end`, whether they went through the intake or not.
[[nodiscard]] std::vector<std::string> LastLogLines(const LogFile& file, uint64_t from, uint64_t end,
                                                    const SecretSet& secrets, LogBuffer buffer);

}  // namespace berth
