// Where a plugin's output goes: a file of its own, <state_dir>/logs/<id>.log, which the plugin itself holds
// open for append. So it neither blocks nor dies while berthd is away, and no line is lost.
//
// Blocking calls on local disk; loop thread.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace berth {

struct PluginOutput {
  UniqueFd fd;          // for the plugin's standard output and error
  uint64_t offset = 0;  // where the output of this run will begin
};

[[nodiscard]] std::string PluginOutputPath(const std::string& state_dir, std::string_view id);

// Opens the file, making it (mode 0600) and its directory where needed. One that has grown beyond
// `rotate_above` bytes becomes <id>.log.1 first. A symlink or anything but a file there is an error.
inline constexpr uint64_t kRotateOutputAbove = 16 * uint64_t{1024} * 1024;
[[nodiscard]] absl::StatusOr<PluginOutput> OpenPluginOutput(const std::string& path,
                                                            uint64_t rotate_above = kRotateOutputAbove);

// The last lines from `offset` on, printable, at most `kLastLines` of `kLastLineLength` bytes out of the last
// `kLastBytes`. Empty where the file cannot be read: this serves an error message.
inline constexpr size_t kLastLines = 20;
inline constexpr size_t kLastLineLength = 512;
inline constexpr size_t kLastBytes = 8192;
[[nodiscard]] std::vector<std::string> LastOutput(const std::string& path, uint64_t offset);

}  // namespace berth
