// How a plugin's controller is reached: which one is called, one call about a volume at a time, and no volume
// deleted, detached from this node or expanded "offline" while this node uses it.
//
// Shared by all that call controllers here: NodeApi, ControllerCalls, and the volumes that files declare.
// Owned by main; loop thread only. What it is given outlives it, and it outlives its callers.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "controller/controller_directory.h"
#include "controller/plugin_choice.h"
#include "controller/volume_call_queue.h"
#include "csi/client.h"
#include "csi/errors.h"
#include "csi/plugin_facts.h"
#include "mounter/mounter.h"

namespace berth {

class ControllerAccess {
 public:
  // Which controller to call, and what it can do.
  struct Controller {
    std::string plugin_id;
    std::shared_ptr<CsiClient> client;
    PluginFacts facts;
  };
  class VolumeUseLock;

  ControllerAccess(asio::any_io_executor executor, ControllerDirectory& controllers, Mounter& mounter)
      : controllers_(controllers), mounter_(mounter), turns_(std::move(executor)) {}

  // The controller that serves `name`, a plugin's id or driver: errors are ChooseController's, and
  // UNAVAILABLE where its socket is not there. While it is held, Find waits, until `deadline`
  // (DEADLINE_EXCEEDED), and FindNow is UNAVAILABLE. Between the return and the call that it is for nothing
  // may be awaited.
  [[nodiscard]] Awaitable<absl::StatusOr<Controller>> Find(std::string name, ControllerWork work,
                                                           TimePoint deadline);
  [[nodiscard]] absl::StatusOr<Controller> FindNow(const std::string& name) const;

  // After a lost journal a volume may be mounted here without a record. Call this before the Find for a
  // delete or a detach: it asks the kernel. UNAVAILABLE: the volume is mounted, or that cannot be known now.
  // A publish that comes later has a record. `node_id`: the node to detach from; OK for another node. Empty:
  // all nodes.
  [[nodiscard]] Awaitable<absl::Status> CheckUnrecorded(std::string name, std::string volume_id,
                                                        std::string node_id, TimePoint deadline);

  // What `name` is a driver of, as far as it is known; else `name`.
  [[nodiscard]] std::string DriverOf(const std::string& name) const;
  // All plugins of the driver of `name` (a plugin or a driver): those that are known, and those that the
  // records of the volume name, which need not run.
  [[nodiscard]] std::set<std::string> PluginsOf(const std::string& name, const std::string& volume_id) const;

  // The turn for a call about `keys`, or about the volume; held for as long as the call takes. Errors are
  // VolumeCallQueue'.
  [[nodiscard]] Awaitable<absl::StatusOr<VolumeCallQueue::Turn>> WaitTurn(std::vector<CallKey> keys,
                                                                          TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<VolumeCallQueue::Turn>> WaitTurn(std::vector<CallKey> keys,
                                                                          VolumeCallQueue::Until until,
                                                                          const void* owner);
  [[nodiscard]] Awaitable<absl::StatusOr<VolumeCallQueue::Turn>> WaitTurn(std::string name,
                                                                          std::string volume_id,
                                                                          TimePoint deadline);

  [[nodiscard]] bool IsLast(const std::vector<CallKey>& keys, const void* owner) const {
    return turns_.IsLast(keys, owner);
  }

  // The volume on this node, through any plugin of the same driver.
  [[nodiscard]] std::optional<VolumeView> FindHeld(const std::string& name,
                                                   const std::string& volume_id) const;
  // UnpublishVolumeResponse.uses_left. While the plugin's driver is not known (berthd has just started), a
  // volume with this id counts through every plugin: too many uses do no harm.
  [[nodiscard]] uint32_t UsesLeft(const std::string& name, const std::string& volume_id) const;

  // UNAVAILABLE once berthd or the machine is being stopped: nothing is created, attached, expanded or
  // otherwise changed at the storage then. Detaching goes on, and so does what changes nothing.
  [[nodiscard]] absl::Status CheckNotShuttingDown() const { return mounter_.CheckNotShuttingDown(); }

  // A publish and a request for an unused volume exclude each other: the first one keeps the other out as
  // long as its VolumeUseLock lives. FAILED_PRECONDITION: it is in use or being published here; UNAVAILABLE:
  // it is, through a plugin with an unknown driver. Of MayPublish ABORTED: it is being deleted, detached or
  // expanded.
  [[nodiscard]] absl::Status MayPublish(const std::string& name, const std::string& volume_id) const;
  [[nodiscard]] VolumeUseLock LockForPublish(const std::string& name, const std::string& volume_id);
  [[nodiscard]] absl::Status MayDelete(const std::string& name, const std::string& volume_id) const;
  [[nodiscard]] VolumeUseLock LockForDelete(const std::string& name, const std::string& volume_id);
  // ControllerUnpublishVolume comes after every NodeUnpublishVolume and NodeUnstageVolume. Only of this node:
  // what is attached to another one is that node's matter, and held for nothing. Empty `node_id`: all nodes.
  [[nodiscard]] absl::Status MayDetach(const std::string& name, const std::string& volume_id,
                                       const std::string& node_id) const;
  [[nodiscard]] std::optional<VolumeUseLock> LockForDetach(const std::string& name,
                                                           const std::string& volume_id,
                                                           const std::string& node_id);
  // Only of a plugin that expands a volume offline alone: while no node uses it.
  [[nodiscard]] absl::Status MayExpand(const Controller& controller, const std::string& volume_id) const;
  [[nodiscard]] std::optional<VolumeUseLock> LockForExpand(const Controller& controller,
                                                           const std::string& volume_id);

  // Forgets the pending expansion of a deleted volume. An error says that it is deleted and still noted.
  [[nodiscard]] Awaitable<absl::Status> CancelPendingExpansion(std::string name, std::string volume_id);

 private:
  using VolumeKey = std::pair<std::string, std::string>;  // driver name (or plugin id), volume id

  using Holds = std::map<VolumeKey, int>;

  [[nodiscard]] VolumeKey KeyOf(const std::string& name, const std::string& volume_id) const {
    return {DriverOf(name), volume_id};
  }
  // Also a lock from before the driver of its plugin was known; any lock, if the driver of a plugin is not
  // known.
  [[nodiscard]] bool Among(const Holds& holds, const std::string& name, const std::string& volume_id) const;
  // OK: the volume is not in use here. The error names the users.
  [[nodiscard]] absl::Status Unused(const std::string& name, const std::string& volume_id) const;
  // OK: it is not used here through a plugin whose driver nobody knows yet (berthd has just started).
  [[nodiscard]] absl::Status UsersKnown(const std::string& volume_id) const;
  // Whether the storage may mean this node by it.
  [[nodiscard]] bool IsThisNode(const std::string& name, const std::string& node_id) const;

  ControllerDirectory& controllers_;
  Mounter& mounter_;
  VolumeCallQueue turns_;
  Holds publishing_;
  Holds deleting_;
  Holds detaching_;
  Holds expanding_;
};

// Counts one piece of work about one volume for as long as it lives.
class ControllerAccess::VolumeUseLock {
 public:
  VolumeUseLock(Holds& map, VolumeKey key) : map_(&map), key_(std::move(key)) { ++(*map_)[key_]; }
  ~VolumeUseLock() {
    if (map_ != nullptr && --(*map_)[key_] == 0) map_->erase(key_);
  }
  VolumeUseLock(VolumeUseLock&& other) noexcept
      : map_(std::exchange(other.map_, nullptr)), key_(std::move(other.key_)) {}
  VolumeUseLock& operator=(VolumeUseLock&&) = delete;

 private:
  Holds* map_;
  VolumeKey key_;
};

// FAILED_PRECONDITION "plugin P cannot WHAT (no CAPABILITY)".
[[nodiscard]] absl::Status Lacks(std::string_view plugin_id, std::string_view capability,
                                 std::string_view what);

// A failed call of the plugin, as the caller sees it.
[[nodiscard]] absl::Status CallError(const absl::Status& status, std::string_view plugin_id, CsiRpc rpc);

// The access modes that came late to CSI are sent only to a controller that knows them; to the others
// SINGLE_NODE_WRITER says as much as can be said, and the node sees to the rest. The mounter does the same
// with its calls.
void FitAccessMode(const PluginFacts& facts, ::csi::v1::VolumeCapability* capability);

}  // namespace berth
