#include "rpc/access.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grp.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/number_text.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr const char* kReaderGroup = "berth";
constexpr size_t kNameBufferLimit = 1U << 20;

// A number that is a whole id; -1 (which the kernel reads as "no change") is not.
const std::optional<GroupSetting>& SettingOf(const AccessConfig& config, Right right) {
  switch (right) {
    case Right::kRead:
      return config.read;
    case Right::kChange:
      return config.change;
    case Right::kClaim:
      break;
  }
  return config.claim;
}

}  // namespace

bool Gives(Right given, Right needed) { return given == Right::kChange || given == needed; }

std::string_view SocketName(Right right) {
  switch (right) {
    case Right::kRead:
      return "berthd-ro.sock";
    case Right::kChange:
      return "berthd.sock";
    case Right::kClaim:
      break;
  }
  return "claim.sock";
}

std::string_view GroupKey(Right right) {
  switch (right) {
    case Right::kRead:
      return "read_group";
    case Right::kChange:
      return "change_group";
    case Right::kClaim:
      break;
  }
  return "claim_group";
}

std::string PeerCredentials::Describe() const { return fmt::format("uid {}, pid {}", uid, pid); }

absl::StatusOr<PeerCredentials> ReadPeerCredentials(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoStatus(errno, "SO_PEERCRED");
  }
  return PeerCredentials{.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid};
}

absl::StatusOr<gid_t> SystemGroup(const std::string& name) {
  std::vector<char> buffer(4096);
  while (true) {
    group record{};
    group* found = nullptr;
    const int error = getgrnam_r(name.c_str(), &record, buffer.data(), buffer.size(), &found);
    if (found != nullptr) return record.gr_gid;
    if (error == ERANGE && buffer.size() < kNameBufferLimit) {
      buffer.resize(buffer.size() * 2);
      continue;
    }
    // The manual allows several errnos for a name that is not there; glibc's modules use these.
    if (error == 0 || error == ENOENT || error == ESRCH) {
      return absl::NotFoundError(fmt::format("there is no group \"{}\"", Printable(name, 128)));
    }
    return ErrnoStatus(error, fmt::format("find the group {}", Printable(name, 128)));
  }
}

absl::StatusOr<std::vector<SocketAccess>> PlanSockets(const AccessConfig& config, uid_t own_uid,
                                                      const GroupLookup& find_group) {
  std::vector<SocketAccess> sockets;
  std::vector<std::string> mistakes;
  for (const Right right : kEveryRight) {
    const std::optional<GroupSetting>& setting = SettingOf(config, right);
    SocketAccess socket{.right = right, .group = std::nullopt};
    if (setting && !setting->group.empty()) {
      absl::StatusOr<gid_t> group = absl::NotFoundError("");
      if (gid_t number = 0; ParseNumber(setting->group, &number) && number != UINT32_MAX) {
        group = number;
      } else {
        group = find_group(setting->group);
      }
      if (group.ok()) {
        socket.group = *group;
      } else {
        mistakes.push_back(fmt::format("{}: {}", setting->where, MessageOf(group.status())));
      }
    } else if (right == Right::kClaim) {
      continue;
    } else if (!setting && right == Right::kRead && own_uid == 0) {
      const absl::StatusOr<gid_t> group = find_group(kReaderGroup);
      if (group.ok()) {
        socket.group = *group;
      } else if (!absl::IsNotFound(group.status())) {
        return Annotate(group.status(), "access.read_group (the default)");
      }
    }
    if (own_uid != 0) socket.group.reset();
    sockets.push_back(socket);
  }
  if (!mistakes.empty()) return absl::InvalidArgumentError(fmt::format("{}", fmt::join(mistakes, "\n")));
  return sockets;
}

}  // namespace berth
