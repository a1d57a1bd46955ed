// The node's sockets: which there are, what each is for, and who may connect to it.
//
//   berthd.sock      may do everything   root, and `change_group`
//   berthd-ro.sock   may read            root, and `read_group`
//   claim.sock       may claim           root, and `claim_group`; it does not exist without that key
//
// The kernel enforces it: each socket has one owner, one group and one mode. berthd checks no credentials.
// Plain values; the look-up of names may block, so it is for start-up and for helper threads.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

// What a method takes, and what a socket gives. kClaim: to ask the central scheduler for a volume.
enum class Right { kRead, kChange, kClaim };

// Whether a socket for `given` serves methods that take `needed`: the one for changes serves all.
[[nodiscard]] bool Gives(Right given, Right needed);

inline constexpr std::array<Right, 3> kEveryRight = {Right::kChange, Right::kRead, Right::kClaim};
// "berthd.sock".
[[nodiscard]] std::string_view SocketName(Right right);
// "change_group".
[[nodiscard]] std::string_view GroupKey(Right right);

// Who connected, as of its connect() (SO_PEERCRED).
struct PeerCredentials {
  pid_t pid = 0;  // 0: in a pid namespace that we do not see
  uid_t uid = static_cast<uid_t>(-1);
  gid_t gid = static_cast<gid_t>(-1);

  // "uid 1000, pid 4711".
  [[nodiscard]] std::string Describe() const;

  bool operator==(const PeerCredentials&) const = default;
};

// Asks the kernel who is at the other end of a connected Unix socket.
[[nodiscard]] absl::StatusOr<PeerCredentials> ReadPeerCredentials(int fd);

// A group as berthd.toml names it, by name or number. Empty: no group.
struct GroupSetting {
  std::string group;
  std::string where;  // "/etc/berth/berthd.toml:3: access.read_group", for messages
};

// berthd.toml's table [access]. Unset: the default, which is the group "berth" for reading where there is
// such a group, and no group for the others.
struct AccessConfig {
  std::optional<GroupSetting> change;
  std::optional<GroupSetting> read;
  std::optional<GroupSetting> claim;
};

// One socket that there is to be.
struct SocketAccess {
  Right right = Right::kRead;
  std::optional<gid_t> group;  // unset: only its owner connects, and root

  [[nodiscard]] mode_t mode() const { return group ? 0660 : 0600; }
  bool operator==(const SocketAccess&) const = default;
};

// NOT_FOUND: there is no such group. The real one is getgrnam (SystemGroup), which may ask a directory
// service and block.
using GroupLookup = std::function<absl::StatusOr<gid_t>(const std::string&)>;
[[nodiscard]] absl::StatusOr<gid_t> SystemGroup(const std::string& name);

// The sockets of a berthd that runs as `own_uid`. One that does not run as root has no groups: its sockets
// are for its own user. INVALID_ARGUMENT names every group that does not exist, with file, line and key.
[[nodiscard]] absl::StatusOr<std::vector<SocketAccess>> PlanSockets(const AccessConfig& config, uid_t own_uid,
                                                                    const GroupLookup& find_group);

}  // namespace berth
