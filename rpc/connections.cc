#include "rpc/connections.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <charconv>
#include <utility>

#include "base/status.h"

namespace berth {

absl::StatusOr<std::unique_ptr<Connections>> Connections::Make(const asio::any_io_executor& executor,
                                                               UserLimits limits) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "epoll_create1");
  return std::unique_ptr<Connections>(new Connections(executor, limits, std::move(epoll)));
}

Connections::Connections(const asio::any_io_executor& executor, UserLimits limits, UniqueFd epoll)
    : epoll_(executor, epoll.Release()), counter_("connections", limits, getuid()) {}

absl::Status Connections::Add(int fd, const PeerCredentials& peer) {
  BERTH_ASSIGN_OR_RETURN(UserCounter::Use use, counter_.Take(peer.uid));
  UniqueFd duplicate(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!duplicate.valid()) return ErrnoStatus(errno, "duplicate a connection");
  const uint64_t id = next_id_++;
  epoll_event event{};  // No events asked for: hang-ups and errors are always reported.
  event.data.u64 = id;
  if (epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, duplicate.get(), &event) != 0) {
    return ErrnoStatus(errno, "watch a connection");
  }
  by_grpc_fd_[fd] = id;
  open_.emplace(
      id, Connection{.duplicate = std::move(duplicate), .grpc_fd = fd, .peer = peer, .use = std::move(use)});
  return absl::OkStatus();
}

Awaitable<void> Connections::Watch() {
  while (true) {
    co_await epoll_.async_wait(asio::posix::stream_descriptor::wait_read, asio::use_awaitable);
    std::array<epoll_event, 64> ended{};
    const int count = epoll_wait(epoll_.native_handle(), ended.data(), static_cast<int>(ended.size()), 0);
    for (int i = 0; i < count; ++i) OnHangUp(ended[static_cast<size_t>(i)].data.u64);
  }
}

void Connections::OnHangUp(uint64_t id) {
  const auto it = open_.find(id);
  if (it == open_.end()) return;
  // Closing is not enough: gRPC's descriptor may keep the socket, and with it its entry in the epoll.
  epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, it->second.duplicate.get(), nullptr);
  const auto named = by_grpc_fd_.find(it->second.grpc_fd);
  if (named != by_grpc_fd_.end() && named->second == id) by_grpc_fd_.erase(named);
  open_.erase(it);
}

std::optional<PeerCredentials> Connections::PeerOf(const std::string& grpc_peer) const {
  constexpr std::string_view kPrefix = "fd:";
  int fd = -1;
  if (grpc_peer.starts_with(kPrefix)) {
    std::from_chars(grpc_peer.data() + kPrefix.size(), grpc_peer.data() + grpc_peer.size(), fd);
  }
  const auto named = by_grpc_fd_.find(fd);
  if (named == by_grpc_fd_.end()) return std::nullopt;
  return open_.at(named->second).peer;
}

void Connections::ShutdownAll() {
  for (const auto& [id, connection] : open_) shutdown(connection.duplicate.get(), SHUT_RDWR);
}

void Connections::ShutdownOthers() {
  for (const auto& [id, connection] : open_) {
    if (counter_.IsRoot(connection.peer.uid)) continue;
    shutdown(connection.duplicate.get(), SHUT_RDWR);
  }
}

}  // namespace berth
