// Who may read, change and claim, decided from what the kernel says of a peer.
//
// Pure: values and functions, any thread. Names are resolved once, when the policy is made; a group that
// gets new members later shows that in the credentials of their next connection.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

// Who connected, as of its connect(): SO_PEERCRED and SO_PEERGROUPS.
struct PeerCredentials {
  pid_t pid = 0;  // 0: in a pid namespace that we do not see
  uid_t uid = static_cast<uid_t>(-1);
  gid_t gid = static_cast<gid_t>(-1);
  std::vector<gid_t> groups;  // supplementary ones

  // "uid 1000, pid 4711".
  [[nodiscard]] std::string Describe() const;

  bool operator==(const PeerCredentials&) const = default;
};

// Asks the kernel who is at the other end of a connected Unix socket.
[[nodiscard]] absl::StatusOr<PeerCredentials> ReadPeerCredentials(int fd);

// What a method takes. kClaim: to ask the central scheduler for a volume.
enum class Right { kRead, kChange, kClaim };

struct Rights {
  bool read = false;
  bool change = false;
  bool claim = false;

  [[nodiscard]] bool Have(Right right) const;
  bool operator==(const Rights&) const = default;
};

// What berthd.toml says in its table [access]. An entry is "user:NAME", "user:UID", "group:NAME",
// "group:GID" or "*" (everybody). Unset: the default below.
struct AccessConfig {
  std::optional<std::vector<std::string>> readers;
  std::optional<std::vector<std::string>> changers;
  std::optional<std::vector<std::string>> claimers;
};

// Looks names up. The real ones are getpwnam and getgrnam (SystemNames).
struct NameLookup {
  std::function<absl::StatusOr<uid_t>(const std::string&)> user;   // NOT_FOUND: no such user
  std::function<absl::StatusOr<gid_t>(const std::string&)> group;  // NOT_FOUND: no such group
};
// These may ask a directory service and block: for start-up only.
[[nodiscard]] NameLookup SystemNames();

// root and berthd's own user always may change: they could take the right anyway. Whoever may change may
// read and claim. By default nobody else changes or claims, and the members of the group "berth", where there
// is one, read.
class AccessPolicy {
 public:
  // INVALID_ARGUMENT names every wrong entry, with its list, at once: "changers: user:jon: no such user".
  [[nodiscard]] static absl::StatusOr<AccessPolicy> Make(const AccessConfig& config, uid_t own_uid,
                                                         const NameLookup& names);

  [[nodiscard]] Rights RightsOf(const PeerCredentials& peer) const;

 private:
  struct Circle {
    bool everybody = false;
    std::set<uid_t> users;
    std::set<gid_t> groups;

    [[nodiscard]] bool Contains(const PeerCredentials& peer) const;
  };

  static Circle ReadList(std::string_view list, const std::vector<std::string>& entries,
                         const NameLookup& names, std::vector<std::string>& mistakes);

  Circle readers_;
  Circle changers_;
  Circle claimers_;
};

}  // namespace berth
