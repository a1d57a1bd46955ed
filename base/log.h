// berthd's own log: spdlog, to the journal with levels where systemd reads our stderr, else to stderr as
// lines of text. Set up once, by main, before the first thread.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>

namespace berth {

// `level` is one of trace, debug, info, warning, error, critical, off; anything else is INVALID_ARGUMENT.
[[nodiscard]] absl::Status InitLog(const std::string& program, std::string_view level);

}  // namespace berth
