// The directory of a plugin's Unix socket, made ready before a launch.
//
// Blocks on the local disk (a tmpfs). Any thread.
#pragma once

#include <absl/status/status.h>
#include <sys/types.h>

#include <optional>
#include <string>

namespace berth {

// Makes the socket's directory, which is berthd's alone (mode 0700), and removes a socket that an earlier run
// left there, onto which the plugin could not bind. FAILED_PRECONDITION if anything else has that name: it
// stays.
//
// `user`: the plugin runs as that user, who may make its socket there (by ACL), yet not touch what berthd has
// written there (by the sticky bit). No other user gets in, not its group either.
[[nodiscard]] absl::Status PrepareSocket(const std::string& socket_path, std::optional<uid_t> user = {});

}  // namespace berth
