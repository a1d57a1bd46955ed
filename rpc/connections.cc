#include "rpc/connections.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <charconv>
#include <utility>

#include "base/status.h"

namespace berth {

absl::StatusOr<std::unique_ptr<Connections>> Connections::Make(const asio::any_io_executor& executor,
                                                               ConnectionLimits limits) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "epoll_create1");
  return std::unique_ptr<Connections>(new Connections(executor, limits, std::move(epoll)));
}

Connections::Connections(const asio::any_io_executor& executor, ConnectionLimits limits, UniqueFd epoll)
    : limits_(limits), epoll_(executor, epoll.Release()), pipes_(executor, "peers") {}

absl::Status Connections::Admit(const PeerCredentials& peer, Rights rights) const {
  const size_t total =
      rights.change ? limits_.total : limits_.total - std::min(limits_.reserved, limits_.total);
  if (open_.size() >= total) {
    return absl::ResourceExhaustedError(fmt::format("{} connections are open", open_.size()));
  }
  const auto user = per_user_.find(peer.uid);
  if (user != per_user_.end() && user->second >= limits_.per_user) {
    return absl::ResourceExhaustedError(
        fmt::format("uid {} has {} connections open", peer.uid, user->second));
  }
  return absl::OkStatus();
}

absl::Status Connections::Add(int fd, PeerCredentials peer, std::unique_ptr<PeerPipe> pipe) {
  UniqueFd duplicate(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!duplicate.valid()) return ErrnoStatus(errno, "duplicate a connection");
  const uint64_t id = next_id_++;
  epoll_event event{};  // No events asked for: hang-ups and errors are always told.
  event.data.u64 = id;
  if (epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, duplicate.get(), &event) != 0) {
    return ErrnoStatus(errno, "watch a connection");
  }
  by_grpc_fd_[fd] = id;
  ++per_user_[peer.uid];
  const bool piped = pipe != nullptr;
  open_[id] = {.duplicate = std::move(duplicate),
               .grpc_fd = fd,
               .peer = std::move(peer),
               .refused = false,
               .pipe = std::move(pipe)};
  if (piped) pipes_.Spawn("pipe", Carry(id));
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
  StopWatching(id, it->second);
  if (it->second.pipe) {
    it->second.pipe->LetGo();
  } else {
    Forget(id);
  }
}

void Connections::StopWatching(uint64_t id, const Connection& connection) {
  // Closing is not enough: gRPC's descriptor may keep the socket, and with it its place in the epoll.
  epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, connection.duplicate.get(), nullptr);
  const auto named = by_grpc_fd_.find(connection.grpc_fd);
  if (named != by_grpc_fd_.end() && named->second == id) by_grpc_fd_.erase(named);
}

void Connections::Forget(uint64_t id) {
  const auto it = open_.find(id);
  StopWatching(id, it->second);
  const auto user = per_user_.find(it->second.peer.uid);
  if (--user->second == 0) per_user_.erase(user);
  open_.erase(it);
}

Awaitable<void> Connections::Carry(uint64_t id) {
  const absl::Status why = co_await open_.at(id).pipe->Run();
  if (!why.ok()) cut_told_(open_.at(id).peer, why);
  Forget(id);
}

std::optional<uint64_t> Connections::Find(const std::string& grpc_peer) const {
  constexpr std::string_view kPrefix = "fd:";
  int fd = -1;
  if (grpc_peer.starts_with(kPrefix)) {
    std::from_chars(grpc_peer.data() + kPrefix.size(), grpc_peer.data() + grpc_peer.size(), fd);
  }
  const auto named = by_grpc_fd_.find(fd);
  if (named == by_grpc_fd_.end()) return std::nullopt;
  return named->second;
}

std::optional<PeerCredentials> Connections::PeerOf(const std::string& grpc_peer) const {
  const auto id = Find(grpc_peer);
  if (!id) return std::nullopt;
  return open_.at(*id).peer;
}

bool Connections::FirstRefusal(const std::string& grpc_peer) {
  const auto id = Find(grpc_peer);
  return !id || !std::exchange(open_.at(*id).refused, true);
}

void Connections::ShutdownAll() {
  for (const auto& [id, connection] : open_) shutdown(connection.duplicate.get(), SHUT_RDWR);
}

Awaitable<void> Connections::PipesEnded() {
  for (const auto& [id, connection] : open_) {
    if (connection.pipe) connection.pipe->LetGo();
  }
  co_await pipes_.WaitEmpty();
}

}  // namespace berth
