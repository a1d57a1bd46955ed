// For tests only: connections to a Unix socket, also as another user.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace berth {

// Not valid without a listener.
inline UniqueFd ConnectTo(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof address.sun_path - 1));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fd.Reset();
  return fd;
}

// As `uid`, `gid` and `groups`: the kernel fixes at connect() what the other end sees. Needs root. The raw
// system calls change the credentials of one thread only, which ends right away (glibc's would change the
// whole process).
inline UniqueFd ConnectAs(const std::string& path, uid_t uid, gid_t gid, std::vector<gid_t> groups = {}) {
  UniqueFd fd;
  std::thread([&] {
    if (syscall(SYS_setgroups, groups.size(), groups.data()) != 0) return;
    if (syscall(SYS_setresgid, gid, gid, gid) != 0) return;
    if (syscall(SYS_setresuid, uid, uid, uid) != 0) return;
    fd = ConnectTo(path);
  }).join();
  return fd;
}

// Whether the other end has closed the connection, waiting up to `milliseconds` for it.
inline bool IsClosedWithin(int fd, int milliseconds) {
  timeval bound{.tv_sec = milliseconds / 1000, .tv_usec = 1000L * (milliseconds % 1000)};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
  char bytes[4096];
  while (true) {
    const ssize_t count = read(fd, bytes, sizeof bytes);
    if (count == 0) return true;
    if (count < 0) return errno != EAGAIN && errno != EWOULDBLOCK;
  }
}

}  // namespace berth
