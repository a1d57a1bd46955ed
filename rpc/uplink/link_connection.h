// One connection to a scheduler: a gRPC channel whose bytes pass through berthd.
//
//   gRPC ⇄ socket pair ⇄ pumps (coroutines) ⇄ TLS ⇄ TCP ⇄ scheduler          (unix: the same without TLS)
//
// So TLS is berthd's: it demands version 1.3, knows the peer's certificates, and can end a link the moment
// that they are not valid any more; gRPC has a public way to none of it. Each pump holds one buffer, and
// reads on only when that has been taken: the kernel holds back a peer that floods or does not read, and it
// costs no memory. A message that is too long ends the stream once gRPC holds it: it costs its length for a
// moment.
//
// Dial (dialer.h) makes it. Loop thread only. Close must be awaited before it is destroyed. The channel must
// be dropped on the loop thread: the drop of a process's last channel joins gRPC's threads, so it must not
// happen on one of these.
#pragma once

#include <absl/status/status.h>
#include <grpcpp/channel.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/task_scope.h"
#include "rpc/uplink/tls_identity.h"

namespace berth {

// A byte stream to the scheduler.
class LinkWire {
 public:
  virtual ~LinkWire() = default;
  // At least one byte; 0 at the end of what the peer says. Any other end is an error.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<size_t>> ReadSome(char* data, size_t size) = 0;
  [[nodiscard]] virtual Awaitable<absl::Status> WriteAll(const char* data, size_t size) = 0;
  // Says that nothing more will come from here.
  virtual void EndWrites() = 0;
  // At once; what is under way ends with an error.
  virtual void Close() = 0;
};

class LinkConnection {
 public:
  struct Peer {
    std::string address;  // as it was written: "s1.example:7443"
    std::string name;     // the one of its certificate's names that was expected; empty for a Unix socket
    PeerChain chain;
    // When the first of both sides' certificates runs out; never for a Unix socket.
    WallTime valid_until = WallTime::max();
  };

  // INTERNAL or an errno's code where there are no descriptors left.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LinkConnection>> Make(asio::any_io_executor executor,
                                                                            std::unique_ptr<LinkWire> wire,
                                                                            Peer peer);
  ~LinkConnection();
  LinkConnection(const LinkConnection&) = delete;
  LinkConnection& operator=(const LinkConnection&) = delete;

  // Null after Close. Its calls fail (UNAVAILABLE) once the connection has ended; it never reconnects.
  [[nodiscard]] const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  [[nodiscard]] const std::string& address() const { return peer_.address; }
  [[nodiscard]] const std::string& peer_name() const { return peer_.name; }
  [[nodiscard]] WallTime valid_until() const { return peer_.valid_until; }

  // Waits until the connection has ended, for any reason, and returns the reason, which gRPC cannot:
  // UNAVAILABLE (broken, or closed by the peer), UNAUTHENTICATED (the peer does not accept this node's
  // certificate), CANCELLED (Close, or gRPC has closed it), or Cut's status. Waiters are joined before this
  // is destroyed.
  [[nodiscard]] Awaitable<absl::Status> Closed();
  [[nodiscard]] bool closed() const { return end_.has_value(); }
  // Nothing more comes from the peer, whether gRPC has heard of that yet or not.
  [[nodiscard]] bool peer_gone() const { return down_ended_ || closed(); }

  // Ends it now: what is on its way is lost. Close is still to come.
  void Cut(absl::Status why);

  // Drops the channel, and ends the connection. If this was the last reference, data already given to gRPC is
  // sent for up to one second. A coroutine that has been cancelled may await it, too.
  [[nodiscard]] Awaitable<void> Close();

  // Whether its peer would still be believed at `now`, by an identity that may have been read again since.
  // UNAUTHENTICATED says why not: a certificate has run out, is revoked, or its name is not expected any
  // more. FAILED_PRECONDITION: this node's own certificate, with which the connection was made, has run out.
  [[nodiscard]] absl::Status Recheck(const TlsIdentity& identity, WallTime now) const;

 private:
  using Local = asio::local::stream_protocol::socket;

  LinkConnection(asio::any_io_executor executor, std::unique_ptr<LinkWire> wire, Local local, Peer peer);

  [[nodiscard]] Awaitable<void> PumpUp();
  [[nodiscard]] Awaitable<void> PumpDown();
  [[nodiscard]] absl::Status ClosedByPeer() const;

  std::unique_ptr<LinkWire> wire_;
  Local local_;
  Peer peer_;
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<absl::Status> end_;  // why it has ended
  bool up_ended_ = false;            // gRPC has closed its socket
  bool down_ended_ = false;          // nothing more comes from the peer, or is taken by gRPC
  bool peer_spoke_ = false;          // a byte has come from it
  bool peer_closed_ = false;         // the peer has said that it is done
  Condition changed_;
  TaskScope pumps_;
};

}  // namespace berth
