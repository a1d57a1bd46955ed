// The streams of all nodes: which nodes are connected, the messages to them, and their leases.
//
//   gRPC stream ──► Serve: Hello ─► DecideHello ─► record ─► Welcome ─► one coroutine reads, one writes
//                                                              heartbeat ─► lease
//                                                              result ─► the owner of the operation
//
// A stream says nothing about volumes when it ends. It ends when the node hangs up, says nothing for four
// heartbeats, does not read, or opens another stream.
//
// Owned by Scheduler; loop thread only. It outlives its streams: the server stops first.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/server_call.h"
#include "berth/v1/scheduler.pb.h"
#include "scheduler/links/lease_clock.h"
#include "scheduler/links/node_facts.h"
#include "scheduler/links/node_operations.h"
#include "scheduler/links/node_table.h"
#include "scheduler/records/operation_ids.h"

namespace berth::scheduler {

inline constexpr size_t kMostLinks = 4096;
inline constexpr size_t kMostNodes = 16'384;  // that were ever connected
// Messages that wait for a node; one that does not read them is hung up on.
inline constexpr size_t kMostWaiting = 4096;

struct LinkSettings {
  std::string cluster_id;
  uint64_t epoch = 0;
  LeaseSettings lease;
};

// A machine, as far as it is known now.
struct NodeView {
  std::string name;
  std::string instance_id;
  std::string boot_id;
  std::string version;
  bool connected = false;
  // Another machine than the one that is recorded under this name.
  bool other_machine = false;
  bool two_machines = false;
  // Since when it is connected, or away; unset: it was not here since the scheduler started.
  std::optional<WallTime> since;
  // What it says of itself. Null: it is not connected. Valid until the loop goes on.
  const NodeFacts* facts = nullptr;
};

// The machine that is recorded under a name, as it is now. What it points to is valid until the loop goes on.
struct MachineNow {
  const NodeRecord* record = nullptr;  // null: no machine has this name
  std::string run_id;                  // of its berthd, while it is connected
  // It is connected, and has said everything; and it has a lease.
  bool synced = false;
  bool ready = false;
  // Another number for each stream; 0: it is not connected.
  uint64_t stream = 0;
  // What it says of itself; null: it is not connected.
  const NodeFacts* facts = nullptr;
};

// Hears of changes of recorded machines. It may call NodeLinks then.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  // It has said everything (`synced`), or has got its first lease.
  virtual void MachineChanged(const std::string& node, bool synced) = 0;
  // It has said this, and everything before.
  virtual void StateChanged(const std::string& node, const v1::State& state) = 0;
};

class NodeLinks {
 public:
  using Stream = DuplexStream<v1::NodeMessage, v1::SchedulerMessage>;

  // `known`: the nodes that are recorded; `records` and `ids` outlive it.
  NodeLinks(asio::any_io_executor executor, LinkSettings settings, LeaseClock leases, NodeRecords& records,
            OperationIds& ids, const std::vector<NodeRecord>& known);
  ~NodeLinks();
  NodeLinks(const NodeLinks&) = delete;
  NodeLinks& operator=(const NodeLinks&) = delete;

  // One node's stream, from Hello to its end; the status is what the node hears.
  [[nodiscard]] Awaitable<absl::Status> Serve(Stream& stream);

  // By name. Another machine comes after the machine with the same name.
  [[nodiscard]] std::vector<NodeView> List() const;

  [[nodiscard]] MachineNow Now(const std::string& name) const;
  // The machine of that name is recorded no more; false: there was none. FAILED_PRECONDITION: it is
  // connected. Otherwise as NodeRecords::Write. The caller knows that nothing of it is needed, and is not
  // cancelled.
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> Forget(std::string name);

  // It outlives the streams. One at most.
  void Observe(NodeObserver* observer) { observer_ = observer; }

  // What followed from these notices of the recorded machine is written: it says them no more.
  void AcknowledgeNotices(const std::string& node, const std::vector<uint64_t>& ended_consumers,
                          const std::vector<uint64_t>& forced_releases);

  // The operations of the recorded machine of `node` (node_operations.h): a new id, which is to be written;
  // then what it is; then, once what follows is written, its end. Each id is closed, whether it was added or
  // not. Errors: OperationIds::Reserve.
  [[nodiscard]] Awaitable<absl::StatusOr<uint64_t>> OpenOperation(std::string node);
  void Add(const std::string& node, NodeOperations::Pending pending);
  void Close(const std::string& node, uint64_t id);

  [[nodiscard]] const asio::any_io_executor& executor() const { return executor_; }
  [[nodiscard]] const LeaseClock& leases() const { return leases_; }
  [[nodiscard]] const std::string& cluster_id() const { return settings_.cluster_id; }

 private:
  struct Link;
  struct Node;
  class Turn;

  [[nodiscard]] Awaitable<bool> MayDecide(const Node& node);
  [[nodiscard]] Awaitable<absl::Status> Admit(Stream& stream, std::shared_ptr<Link> link);
  [[nodiscard]] Awaitable<absl::Status> Run(Stream& stream, std::shared_ptr<Link> link);
  [[nodiscard]] Awaitable<absl::Status> ReadAll(Stream& stream, std::shared_ptr<Link> link);
  [[nodiscard]] Awaitable<bool> WriteAll(Stream& stream, std::shared_ptr<Link> link);
  void Take(Link& link, const v1::NodeMessage& message);
  [[nodiscard]] Node& Of(const std::string& name);
  void Say(Link& link, v1::SchedulerMessage message);
  void Say(Node& node, NodeOperations::Messages messages);
  void End(Link& link, absl::Status why);
  void Gone(const std::shared_ptr<Link>& link);
  [[nodiscard]] v1::SchedulerMessage Welcome() const;
  [[nodiscard]] Duration Silence() const;

  asio::any_io_executor executor_;
  LinkSettings settings_;
  LeaseClock leases_;
  NodeRecords& records_;
  OperationIds& ids_;
  Condition decided_;
  std::map<std::string, Node> nodes_;
  size_t links_ = 0;
  uint64_t streams_ = 0;  // that there were
  NodeObserver* observer_ = nullptr;
};

}  // namespace berth::scheduler
