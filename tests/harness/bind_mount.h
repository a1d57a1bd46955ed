// What a plugin for tests needs to publish a directory: bind mounts, made and taken away as often as asked.
//
// Any thread. A failure is INTERNAL, with what was attempted on what.
#pragma once

#include <fmt/format.h>
#include <grpcpp/support/status.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace berth {

[[nodiscard]] inline grpc::Status FailedTo(const std::string& what) {
  return {grpc::StatusCode::INTERNAL, fmt::format("{}: {}", what, strerror(errno))};
}

[[nodiscard]] inline bool IsMount(const std::string& path) {
  struct statx info{};
  return statx(AT_FDCWD, path.c_str(), AT_NO_AUTOMOUNT, 0, &info) == 0 &&
         (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

[[nodiscard]] inline grpc::Status Bind(const std::string& source, const std::string& target,
                                       bool readonly = false) {
  if (IsMount(target)) return grpc::Status::OK;
  if (mkdir(target.c_str(), 0755) != 0 && errno != EEXIST) return FailedTo("make " + target);
  if (mount(source.c_str(), target.c_str(), nullptr, MS_BIND, nullptr) != 0)
    return FailedTo("mount " + target);
  if (readonly && mount(nullptr, target.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0)
    return FailedTo("mount read-only " + target);
  return grpc::Status::OK;
}

// The target itself stays, as CSI wants it of an unstage.
[[nodiscard]] inline grpc::Status Unbind(const std::string& target) {
  while (IsMount(target)) {
    if (umount2(target.c_str(), UMOUNT_NOFOLLOW) != 0) return FailedTo("unmount " + target);
  }
  return grpc::Status::OK;
}

}  // namespace berth
