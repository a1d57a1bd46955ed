#include "rpc/peer_pipe.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/status.h"

namespace berth {
namespace {

// What a pump holds at most; the kernel's buffers come on top.
constexpr size_t kBufferBytes = 16 << 10;
constexpr auto kLinger = std::chrono::seconds(1);

// At most 1000 frames a second, 250 kB or 4000 reads, after a burst of four seconds' worth. A call is some
// six frames, and whoever reads a long log answers with many small windows.
constexpr Duration kFrameCosts = std::chrono::milliseconds(1);
constexpr Duration kByteCosts = std::chrono::microseconds(4);
constexpr Duration kReadCosts = std::chrono::microseconds(250);
constexpr Duration kBurst = std::chrono::seconds(4);

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

// Takes `fd` only if it succeeds.
absl::Status Assign(asio::local::stream_protocol::socket* socket, UniqueFd fd) {
  boost::system::error_code error;
  if (socket->assign(asio::local::stream_protocol(), fd.get(), error)) {
    return FromErrorCode(error, "the socket of a peer");
  }
  (void)fd.Release();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerPipe>> PeerPipe::Make(const asio::any_io_executor& executor, UniqueFd peer,
                                                         UniqueFd* grpcs) {
  std::array<int, 2> pair{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  UniqueFd ours(pair[0]);
  *grpcs = UniqueFd(pair[1]);
  Local outer(executor);
  Local inner(executor);
  BERTH_RETURN_IF_ERROR(Assign(&outer, std::move(peer)));
  BERTH_RETURN_IF_ERROR(Assign(&inner, std::move(ours)));
  // Not make_unique: the constructor is private.
  return std::unique_ptr<PeerPipe>(new PeerPipe(executor, std::move(outer), std::move(inner)));
}

PeerPipe::PeerPipe(const asio::any_io_executor& executor, Local peer, Local local)
    : peer_(std::move(peer)), local_(std::move(local)), changed_(executor), pumps_(executor, "peer") {}

Awaitable<absl::Status> PeerPipe::Run() {
  pumps_.Spawn("to the peer", PumpToPeer());
  pumps_.Spawn("to gRPC", PumpToGrpc());
  co_await pumps_.WaitEmpty();
  co_return refused_;
}

// gRPC's end comes after all that it has said.
Awaitable<void> PeerPipe::PumpToPeer() {
  std::vector<char> buffer(kBufferBytes);
  while (!cut_) {
    const auto [error, size] = co_await local_.async_read_some(asio::buffer(buffer), kAsTuple);
    if (error) break;
    telling_ = true;
    const auto [failed, told] =
        co_await asio::async_write(peer_, asio::buffer(buffer.data(), size), kAsTuple);
    telling_ = false;
    changed_.NotifyAll();
    if (failed) break;
  }
  Cut();
}

Awaitable<void> PeerPipe::PumpToGrpc() {
  std::vector<char> buffer(kBufferBytes);
  while (!cut_) {
    const auto [error, size] = co_await peer_.async_read_some(asio::buffer(buffer), kAsTuple);
    if (error) break;
    const absl::StatusOr<size_t> frames = guard_.Take({buffer.data(), size}, Clock::now());
    if (!frames.ok()) {
      refused_ = frames.status();
      break;
    }
    const auto [failed, written] =
        co_await asio::async_write(local_, asio::buffer(buffer.data(), size), kAsTuple);
    // gRPC has ended its side, and the other pump tells what it said last.
    if (failed) co_return;
    co_await KeepPace(*frames, size);
    co_await changed_.WaitUntil([this] { return !telling_ || cut_; }, TimePoint::max());
  }
  Cut();
}

Awaitable<void> PeerPipe::KeepPace(size_t frames, size_t bytes) {
  const Duration cost =
      static_cast<int64_t>(frames) * kFrameCosts + static_cast<int64_t>(bytes) * kByteCosts + kReadCosts;
  paid_until_ = std::max(paid_until_, Clock::now() - kBurst) + cost;
  if (paid_until_ <= Clock::now()) co_return;
  co_await changed_.WaitUntil([this] { return cut_; }, paid_until_);
}

void PeerPipe::LetGo() {
  if (!cut_) pumps_.Spawn("linger", Linger());
}

Awaitable<void> PeerPipe::Linger() {
  co_await changed_.WaitUntil([this] { return cut_; }, Clock::now() + kLinger);
  Cut();
}

void PeerPipe::Cut() {
  if (std::exchange(cut_, true)) return;
  boost::system::error_code ignored;
  (void)peer_.close(ignored);
  (void)local_.close(ignored);
  changed_.NotifyAll();
}

}  // namespace berth
