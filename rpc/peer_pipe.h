// The way of a peer without the right to change from its socket to gRPC: through berthd, so that it takes no
// more of the machine than others can spare.
//
//   peer ⇄ pumps (coroutines) ⇄ socket pair ⇄ gRPC
//
// gRPC alone lets one connection take minutes of its threads, which serve the plugins, too, and tens of MiB.
// Here a peer is read
//   * while it reads: answers that it does not take pile up nowhere;
//   * as fast as a busy client speaks: so many frames and bytes a second, beyond a first burst;
//   * as long as it keeps to what frame_guard.h allows.
// Whoever may change anything on this machine is spared the detour.
//
// Owned by Connections; loop thread only.
#pragma once

#include <absl/status/statusor.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <memory>

#include "base/task_scope.h"
#include "base/unique_fd.h"
#include "rpc/frame_guard.h"

namespace berth {

class PeerPipe {
 public:
  // Takes the peer's connection; `grpcs` is the end for gRPC. Errors: errno's, of a socket pair.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<PeerPipe>> Make(const asio::any_io_executor& executor,
                                                                      UniqueFd peer, UniqueFd* grpcs);

  // Returns once both sides have ended, with why the peer was cut off: OK if it was not. Once; not cancelled,
  // but ended by Cut or LetGo.
  [[nodiscard]] Awaitable<absl::Status> Run();

  // gRPC has ended its side: what it said last is still told, for a second at most.
  void LetGo();
  // Ends both sides at once.
  void Cut();

 private:
  using Local = asio::local::stream_protocol::socket;

  PeerPipe(const asio::any_io_executor& executor, Local peer, Local local);

  Awaitable<void> PumpToPeer();
  Awaitable<void> PumpToGrpc();
  Awaitable<void> Linger();
  // Waits until what was taken of the peer is no more than it may say by now.
  Awaitable<void> KeepPace(size_t frames, size_t bytes);

  Local peer_;
  Local local_;
  FrameGuard guard_;
  absl::Status refused_;
  bool cut_ = false;
  bool telling_ = false;  // something that the peer has not taken yet
  TimePoint paid_until_;  // what was taken of the peer, at its pace, is paid for by then
  Condition changed_;
  TaskScope pumps_;
};

}  // namespace berth
