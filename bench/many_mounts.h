// Mounts by the thousand, for what must not get slower by them.
//
// One thread; in a mount namespace of the caller's own.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

namespace berth {

// Mounts a tmpfs on `directory`, which is made, and `count` binds of another one beneath it:
// `directory`/at/0, /1, and so on. One lazy unmount of `directory` takes them all away.
[[nodiscard]] absl::Status MakeMounts(const std::string& directory, int count);
[[nodiscard]] std::string MountPath(const std::string& directory, int index);

// The program that enters a mount namespace of its own, makes the mounts there, and becomes `command`. Its
// exit code if it cannot.
int WithMountsMain(const std::string& directory, int count, std::vector<std::string> command);

}  // namespace berth
