// systemd makes a mount unit of each mount that it sees, and unmounts it at shutdown whenever it likes. One
// that berthd makes outside of its tree gets a drop-in that keeps it until berthd has stopped: by then the
// units that use the volume have stopped, and berthd has unmounted it itself.
//
// Blocks on /run: not on the loop.
#pragma once

#include <absl/status/status.h>

#include <string>

namespace berth {

// Where drop-ins lie until the next boot, where systemd runs this machine and sees our mounts. Empty
// elsewhere: then the two functions do nothing.
[[nodiscard]] std::string RuntimeUnitDirectory();

// Before something is mounted at `path`: systemd reads the drop-in when it first sees the mount.
[[nodiscard]] absl::Status WriteMountDropIn(const std::string& units, const std::string& path);
// OK if there was no drop-in.
[[nodiscard]] absl::Status RemoveMountDropIn(const std::string& units, const std::string& path);

}  // namespace berth
