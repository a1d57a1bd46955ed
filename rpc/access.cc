#include "rpc/access.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "base/status.h"

namespace berth {
namespace {

constexpr std::string_view kReaderGroup = "berth";
constexpr size_t kNameBufferLimit = 1U << 20;

// A number that is a whole id; -1 (which the kernel reads as "no change") is none.
std::optional<uint32_t> ParseId(const std::string& text) {
  uint32_t id = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto result = std::from_chars(begin, end, id);
  if (text.empty() || result.ec != std::errc() || result.ptr != end || id == UINT32_MAX) return std::nullopt;
  return id;
}

// getpwnam_r and getgrnam_r share everything but their types.
template <class Record, class Id>
absl::StatusOr<Id> LookUp(const std::string& name, std::string_view kind, Id Record::* id,
                          int (*look)(const char*, Record*, char*, size_t, Record**)) {
  std::vector<char> buffer(4096);
  while (true) {
    Record record{};
    Record* found = nullptr;
    const int error = look(name.c_str(), &record, buffer.data(), buffer.size(), &found);
    if (found != nullptr) return record.*id;
    if (error == ERANGE && buffer.size() < kNameBufferLimit) {
      buffer.resize(buffer.size() * 2);
      continue;
    }
    // The manual allows several errnos for a name that is not there; glibc's modules use these.
    if (error == 0 || error == ENOENT || error == ESRCH) {
      return absl::NotFoundError(fmt::format("no such {}", kind));
    }
    return ErrnoStatus(error, fmt::format("look up {} {}", kind, name));
  }
}

}  // namespace

bool Rights::Have(Right right) const {
  switch (right) {
    case Right::kRead:
      return read;
    case Right::kChange:
      return change;
    case Right::kClaim:
      return claim;
  }
  return false;
}

std::string PeerCredentials::Describe() const { return fmt::format("uid {}, pid {}", uid, pid); }

absl::StatusOr<PeerCredentials> ReadPeerCredentials(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoStatus(errno, "SO_PEERCRED");
  }
  PeerCredentials peer{.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid, .groups = {}};
  peer.groups.resize(64);
  while (true) {
    length = static_cast<socklen_t>(peer.groups.size() * sizeof(gid_t));
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, peer.groups.data(), &length) == 0) break;
    // The kernel has put the length it needs; an unchanged one would loop for ever.
    if (errno != ERANGE || length / sizeof(gid_t) <= peer.groups.size()) {
      return ErrnoStatus(errno, "SO_PEERGROUPS");
    }
    peer.groups.resize(length / sizeof(gid_t));
  }
  peer.groups.resize(length / sizeof(gid_t));
  return peer;
}

NameLookup SystemNames() {
  return {
      .user = [](const std::string& name) { return LookUp(name, "user", &passwd::pw_uid, &getpwnam_r); },
      .group = [](const std::string& name) { return LookUp(name, "group", &group::gr_gid, &getgrnam_r); },
  };
}

bool AccessPolicy::Circle::Contains(const PeerCredentials& peer) const {
  if (everybody || users.contains(peer.uid) || groups.contains(peer.gid)) return true;
  return std::any_of(peer.groups.begin(), peer.groups.end(),
                     [this](gid_t group) { return groups.contains(group); });
}

AccessPolicy::Circle AccessPolicy::ReadList(std::string_view list, const std::vector<std::string>& entries,
                                            const NameLookup& names, std::vector<std::string>& mistakes) {
  constexpr std::string_view kUser = "user:";
  constexpr std::string_view kGroup = "group:";
  Circle circle;
  for (const std::string& entry : entries) {
    const auto wrong = [&](std::string_view why) {
      mistakes.push_back(fmt::format("{}: {}: {}", list, Printable(entry, 128), why));
    };
    const bool is_user = entry.starts_with(kUser);
    if (entry == "*") {
      circle.everybody = true;
      continue;
    }
    if (!is_user && !entry.starts_with(kGroup)) {
      wrong("neither user:NAME, user:UID, group:NAME, group:GID nor *");
      continue;
    }
    const std::string name = entry.substr(is_user ? kUser.size() : kGroup.size());
    absl::StatusOr<uint32_t> id = absl::InvalidArgumentError("the name is missing");
    if (const auto number = ParseId(name)) {
      id = *number;
    } else if (!name.empty()) {
      id = is_user ? names.user(name) : names.group(name);
    }
    if (!id.ok()) {
      wrong({id.status().message().data(), id.status().message().size()});
      continue;
    }
    (is_user ? circle.users : circle.groups).insert(*id);
  }
  return circle;
}

absl::StatusOr<AccessPolicy> AccessPolicy::Make(const AccessConfig& config, uid_t own_uid,
                                                const NameLookup& names) {
  AccessPolicy policy;
  std::vector<std::string> mistakes;
  policy.changers_ =
      ReadList("changers", config.changers.value_or(std::vector<std::string>{}), names, mistakes);
  policy.changers_.users.insert({0, own_uid});
  policy.claimers_ =
      ReadList("claimers", config.claimers.value_or(std::vector<std::string>{}), names, mistakes);
  if (config.readers) {
    policy.readers_ = ReadList("readers", *config.readers, names, mistakes);
  } else if (const auto group = names.group(std::string(kReaderGroup)); group.ok()) {
    policy.readers_.groups.insert(*group);
  } else if (!absl::IsNotFound(group.status())) {
    mistakes.push_back(
        fmt::format("readers: group:{} (the default): {}", kReaderGroup,
                    std::string_view(group.status().message().data(), group.status().message().size())));
  }
  if (!mistakes.empty()) return absl::InvalidArgumentError(fmt::format("{}", fmt::join(mistakes, "; ")));
  return policy;
}

Rights AccessPolicy::RightsOf(const PeerCredentials& peer) const {
  const bool change = changers_.Contains(peer);
  return {.read = change || readers_.Contains(peer),
          .change = change,
          .claim = change || claimers_.Contains(peer)};
}

}  // namespace berth
