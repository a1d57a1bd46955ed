// A plugin's Unix socket: its place made clean before a launch, and its first answer seen at once.
//
// Loop thread.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "base/task_scope.h"

namespace berth {

// Makes the socket's directory (mode 0750, root's) and removes a socket that an earlier run left there, onto
// which the plugin could not bind. FAILED_PRECONDITION where anything else has that name: it is left alone.
[[nodiscard]] absl::Status PrepareSocket(const std::string& socket_path);

// Waits until something accepts connections at `socket_path`: the moment the first call can succeed. Costs
// one connection that is closed again at once. Never gives up: cancel it. Errors are those of watching the
// directory.
[[nodiscard]] Awaitable<absl::Status> WaitForSocket(std::string socket_path);

}  // namespace berth
