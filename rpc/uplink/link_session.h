// One stream to the scheduler, from Hello to its end: what is sent next, and what becomes of what arrives.
//
//   stream ──▶ Read ──▶ LinkHost (operations, leases, answers)
//   stream ◀── Write ◀── heartbeats, then refusals, results, asks, state, events, logs: in this order
//
// A session holds no queue but refusals (bounded: beyond, nothing more is read) and one message of each log.
// What is to be sent lies in what outlives it (outbox, operations, asks), and is taken when the stream has
// room.
//
// The link is dead when nothing has been heard for four heartbeats, or the stream takes nothing for as long.
// Every heartbeat is answered, so a half-open connection is found by this, whatever the kernel says.
//
// Made for one stream; loop thread only. What it is given outlives it.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"
#include "rpc/node_api.h"
#include "rpc/uplink/ask_table.h"
#include "rpc/uplink/link_logs.h"
#include "rpc/uplink/link_stream.h"
#include "rpc/uplink/operation_table.h"
#include "rpc/uplink/outbox.h"

namespace berth {

// The version of the link (berth/v1/scheduler.proto) that this node speaks. A scheduler with another major
// version is left.
inline constexpr uint32_t kProtocolMajor = 1;
inline constexpr uint32_t kProtocolMinor = 0;

// What a session reports to its owner, and asks it for. Called on the loop.
class LinkHost {
 public:
  virtual ~LinkHost() = default;

  [[nodiscard]] virtual v1::Hello MakeHello() = 0;
  // An error ends the stream: the scheduler is not ours, or speaks another protocol.
  [[nodiscard]] virtual absl::Status OnWelcome(const v1::Welcome& welcome) = 0;
  // The stream goes on at the scheduler's position: what each stream repeats until it is acknowledged is to
  // be sent again.
  virtual void OnBegun() = 0;
  // The object as it is now; unset if it does not exist. What changes all the time is left out.
  [[nodiscard]] virtual Awaitable<std::optional<v1::Object>> Describe(ObjectKey key) = 0;

  // Just before it is sent.
  virtual void OnHeartbeat(uint64_t number) = 0;
  // Nothing else that arrived after it is handed over before this returns: it may need the lease.
  // An error ends the stream.
  [[nodiscard]] virtual Awaitable<absl::Status> OnHeartbeatAnswer(v1::HeartbeatAnswer answer) = 0;
  // What is to be answered at once, without being remembered: a refusal.
  [[nodiscard]] virtual std::optional<v1::OperationResult> OnOperation(v1::Operation operation) = 0;
  virtual void OnCancel(uint64_t operation_id) = 0;
  virtual void OnAcknowledge(const v1::Acknowledge& acknowledge) = 0;
  virtual void OnAnswer(v1::Answer answer) = 0;
  virtual void OnAskProgress(const v1::AskProgress& progress) = 0;
  // Everything has been sent.
  virtual void OnSynced() = 0;
};

// What outlives a stream.
struct LinkState {
  Outbox outbox;
  OperationTable operations;
  AskTable asks;
};

struct LinkTimes {
  Duration greet_within = std::chrono::seconds(10);
  Duration state_every = std::chrono::milliseconds(100);  // State messages of a stream that has caught up
  Duration least_silence = std::chrono::seconds(2);       // before a link is taken for dead
  // The peer's certificate: with every sixth heartbeat, and at least so often.
  Duration recheck_every = std::chrono::seconds(30);
};

class LinkSession {
 public:
  enum class Phase { kGreeting, kSyncing, kSynced };

  LinkSession(asio::any_io_executor executor, LinkStream& stream, LinkState& state, EventLog& events,
              NodeApi& api, LinkHost& host, LinkTimes times = {});

  // From Hello until the stream ends, or is ended; says how. Nothing of it runs any more then, and the stream
  // is closed, also where the caller is cancelled (CANCELLED). Cancellation is off for the caller
  // afterwards.
  [[nodiscard]] Awaitable<LinkEnd> Run();

  // There may be something to send.
  void Wake() { changed_.NotifyAll(); }
  // Ends it, with a reason.
  void End(absl::Status why);
  // Sends it as the last message, and ends. Without effect before Welcome.
  void Leave(v1::Goodbye goodbye);

  [[nodiscard]] Phase phase() const { return phase_; }

 private:
  [[nodiscard]] Awaitable<void> Read();
  [[nodiscard]] Awaitable<void> Write();
  [[nodiscard]] Awaitable<void> FollowEvents();
  [[nodiscard]] Awaitable<void> RecheckPeer();

  [[nodiscard]] Awaitable<absl::Status> Handle(v1::SchedulerMessage message);
  [[nodiscard]] absl::Status HandleWelcome(const v1::Welcome& welcome);
  // False: the stream is dead, and the session ended.
  [[nodiscard]] Awaitable<bool> Send(v1::NodeMessage message);
  // What is to be sent now; nothing: all has been, or has to wait.
  [[nodiscard]] Awaitable<std::optional<v1::NodeMessage>> Next();
  [[nodiscard]] Awaitable<std::optional<v1::NodeMessage>> NextState();
  [[nodiscard]] std::optional<v1::NodeMessage> NextEvents();
  [[nodiscard]] bool AnythingToSend() const;
  [[nodiscard]] bool StateToSend() const;
  [[nodiscard]] Duration LongestSilence() const;

  LinkStream& stream_;
  LinkState& state_;
  EventLog& events_;
  LinkHost& host_;
  LinkTimes times_;
  Condition changed_;
  LinkLogs logs_;
  TaskScope tasks_;

  Phase phase_ = Phase::kGreeting;
  std::string run_id_;  // of Hello
  std::optional<v1::Welcome> welcome_;
  std::optional<absl::Status> ended_;
  bool broken_ = false;    // by the stream itself, which knows why
  bool handling_ = false;  // a message, which may take the disk its time
  TimePoint last_heard_;
  Duration heartbeat_interval_{};
  TimePoint next_heartbeat_{};
  uint64_t heartbeats_ = 0;
  TimePoint next_state_{};
  bool synced_ = false;                   // the scheduler knows it, and nothing has changed since
  std::map<ObjectKey, size_t> reported_;  // what was sent of each on this stream, as a hash: not sent again
  std::optional<uint64_t> events_position_;
  std::deque<v1::OperationResult> refusals_;
  std::optional<v1::Goodbye> goodbye_;
};

}  // namespace berth
