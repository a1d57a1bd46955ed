// Copies of volumes: clones and snapshots.
//
// Where the file system can share blocks (btrfs, xfs), a copy of an image is made at once and costs no
// space; elsewhere what is allocated is copied, and holes stay holes. Blocks; any thread.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>

namespace berth::hostpath {

// Makes the file `to`, `size` bytes long (at least as long as `from`), with the content of `from`, and
// makes it durable. `to` must not exist.
[[nodiscard]] absl::Status CopyImage(const std::string& from, const std::string& to, int64_t size);

// Copies what is in the directory `from`, with owners, modes, times, links, ACLs and extended attributes,
// into the directory `to`, and makes it durable. Mounts beneath `from` are not entered.
[[nodiscard]] absl::Status CopyDirectory(const std::string& from, const std::string& to);

}  // namespace berth::hostpath
