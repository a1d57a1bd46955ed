#include "rpc/uplink/link_connection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpc/compression.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/support/channel_arguments.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

// What a pump holds at most; the kernel's buffers come on top.
constexpr size_t kBufferBytes = 32 << 10;
constexpr int kMessageBytes = 4 << 20;  // scheduler.proto, "Limits"
// A scheduler's words about why it ends the stream travel so; with less gRPC would put its own in their
// place.
constexpr int kMetadataBytes = 64 << 10;
// For the peer to say its last words once this side has said its own.
constexpr auto kPeerFinishes = std::chrono::milliseconds(500);

// For Close to end in good order.
constexpr auto kCloses = std::chrono::seconds(1);

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

std::shared_ptr<grpc::Channel> MakeChannel(UniqueFd fd) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetMaxReceiveMessageSize(kMessageBytes);
  arguments.SetMaxSendMessageSize(kMessageBytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytes);
  // A compressed message is refused: the limit would be on its compressed size.
  arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  return grpc::CreateCustomInsecureChannelFromFd("scheduler", fd.Release(), arguments);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinkConnection>> LinkConnection::Make(asio::any_io_executor executor,
                                                                     std::unique_ptr<LinkWire> wire,
                                                                     Peer peer) {
  std::array<int, 2> pair{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  UniqueFd ours(pair[0]);
  UniqueFd grpcs(pair[1]);
  Local local(executor);
  boost::system::error_code error;
  if (local.assign(asio::local::stream_protocol(), ours.get(), error)) {
    return FromErrorCode(error, "the socket to gRPC");
  }
  (void)ours.Release();
  // Not make_unique: the constructor is private.
  std::unique_ptr<LinkConnection> link(
      new LinkConnection(std::move(executor), std::move(wire), std::move(local), std::move(peer)));
  link->channel_ = MakeChannel(std::move(grpcs));
  return link;
}

LinkConnection::LinkConnection(asio::any_io_executor executor, std::unique_ptr<LinkWire> wire, Local local,
                               Peer peer)
    : wire_(std::move(wire)),
      local_(std::move(local)),
      peer_(std::move(peer)),
      changed_(executor),
      pumps_(executor, fmt::format("link to {}", peer_.address)) {
  pumps_.Spawn("up", PumpUp());
  pumps_.Spawn("down", PumpDown());
}

LinkConnection::~LinkConnection() = default;

// From gRPC to the peer.
Awaitable<void> LinkConnection::PumpUp() {
  std::vector<char> buffer(kBufferBytes);
  while (!end_) {
    const auto [error, size] = co_await local_.async_read_some(asio::buffer(buffer), kAsTuple);
    // The end of this socket, in any form, shows that gRPC has closed its end.
    if (error) break;
    const absl::Status written = co_await wire_->WriteAll(buffer.data(), size);
    if (written.ok()) continue;
    // What the peer said last, an alert perhaps, says better why.
    co_await changed_.WaitUntil([this] { return down_ended_ || end_; }, Clock::now() + kPeerFinishes);
    Cut(peer_closed_ ? ClosedByPeer() : written);
  }
  up_ended_ = true;
  changed_.NotifyAll();
  if (end_) co_return;
  wire_->EndWrites();
  co_await changed_.WaitUntil([this] { return down_ended_ || end_; }, Clock::now() + kPeerFinishes);
  Cut(peer_closed_ ? ClosedByPeer() : absl::CancelledError("the link was closed"));
}

// From the peer to gRPC.
Awaitable<void> LinkConnection::PumpDown() {
  std::vector<char> buffer(kBufferBytes);
  while (!end_) {
    const absl::StatusOr<size_t> size = co_await wire_->ReadSome(buffer.data(), buffer.size());
    if (!size.ok()) {
      // After this side's end it is no news that the peer's comes, in whatever form.
      if (!up_ended_) Cut(size.status());
      break;
    }
    if (*size == 0) {
      peer_closed_ = !up_ended_;
      break;
    }
    peer_spoke_ = true;
    const auto [error, written] =
        co_await asio::async_write(local_, asio::buffer(buffer.data(), *size), kAsTuple);
    // gRPC has closed its end, as the other pump finds out, too.
    if (error) break;
  }
  down_ended_ = true;
  changed_.NotifyAll();
  if (end_) co_return;
  // gRPC reads what has come, finds the end, and closes its socket, which ends the other pump.
  boost::system::error_code ignored;
  (void)local_.shutdown(Local::shutdown_send, ignored);
  const bool let_go =
      co_await changed_.WaitUntil([this] { return up_ended_ || end_; }, Clock::now() + kPeerFinishes);
  if (!let_go) Cut(ClosedByPeer());
}

absl::Status LinkConnection::ClosedByPeer() const {
  // TLS 1.3 lets a client finish before the server has looked at its certificate, and gRPC's servers hang up
  // then without an alert. One that takes it speaks first.
  if (!peer_spoke_ && !peer_.chain.empty()) {
    return absl::UnavailableError(
        "the scheduler has closed the connection without an error, which usually means that it refuses this "
        "node's "
        "certificate");
  }
  return absl::UnavailableError("the scheduler has closed the connection");
}

void LinkConnection::Cut(absl::Status why) {
  if (end_) return;
  end_ = std::move(why);
  wire_->Close();
  boost::system::error_code ignored;
  (void)local_.close(ignored);
  changed_.NotifyAll();
}

Awaitable<absl::Status> LinkConnection::Closed() {
  co_await changed_.WaitUntil([this] { return end_.has_value(); }, TimePoint::max());
  co_return *end_;
}

Awaitable<void> LinkConnection::Close() {
  // To be awaited on the way out, too, when the caller has been cancelled. Join sets both back.
  co_await asio::this_coro::throw_if_cancelled(false);
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  // With the channel goes gRPC's end of the pair, after all that gRPC has to say; the pumps do the rest.
  channel_.reset();
  co_await changed_.WaitUntil([this] { return end_.has_value(); }, Clock::now() + kCloses);
  Cut(absl::CancelledError("the link was closed"));
  co_await pumps_.Join();
}

absl::Status LinkConnection::Recheck(const TlsIdentity& identity, WallTime now) const {
  if (peer_.chain.empty()) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(identity.CheckPeer(peer_.chain, now).status());
  if (now <= peer_.valid_until) return absl::OkStatus();
  return absl::FailedPreconditionError("this node's certificate has run out since the link was made");
}

}  // namespace berth
