// The volumes of this node: staged and published through plugins, remembered in a journal, checked against
// the kernel.
//
// Owned by main; loop thread only. One volume's way, and the only way: request → validate → the volume's
// queue → intent in the journal → plugin RPC → look at the mount table → outcome in the journal → answer
// and event. Work on one volume is serial, different volumes run side by side.
//
// What may hang never runs here: it runs in berth-mount-helper processes with a deadline (mount_helper.h).
// Decisions are the VolumeMachine's (pure, volume_machine.h); each volume's VolumeActor carries them out.
//
// A step whose outcome stays unknown until its own deadline is shown as uncertain and tried again in the
// background, with a growing pause of up to a minute, forward until an Unpublish reverses the goal.
//
// Events: volume.staged, .published, .unpublished, .unstaged, .expanded; volume.failed (a step failed for
// good), .uncertain (it is tried again), .recovered (berthd ended in the middle of it), .lost (the mount is
// not there any more), .leftover (data in the way of a removal, left alone), .stranger (in the tree and not
// in the journal, left alone); plugin.lied (it answered OK, and the kernel disagrees).
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "csi/client.h"
#include "csi/plugin_facts.h"

namespace berth {

enum class AccessType { kMount, kBlock };

struct VolumeUse {  // a CSI VolumeCapability, by value
  // On this node, by any number of consumers. CSI's table for a second NodePublishVolume lets a plugin refuse
  // a second target of SINGLE_NODE_WRITER, so that is not what most callers mean; it is what a plugin without
  // the finer modes is told, though.
  ::csi::v1::VolumeCapability::AccessMode::Mode access_mode =
      ::csi::v1::VolumeCapability::AccessMode::SINGLE_NODE_MULTI_WRITER;
  AccessType access_type = AccessType::kMount;
  std::string fs_type;
  std::vector<std::string> mount_flags;

  bool operator==(const VolumeUse&) const = default;
};

struct PublishRequest {
  std::string plugin_id;
  std::string volume_id;
  std::string consumer;
  std::string name;
  VolumeUse use;
  bool readonly = false;
  std::map<std::string, std::string> volume_context;
  std::optional<std::map<std::string, std::string>> publish_context;  // set: it is attached
  std::map<std::string, std::string> secrets;

  bool operator==(const PublishRequest&) const = default;
};

struct UnpublishRequest {
  std::string plugin_id;
  std::string volume_id;
  std::string consumer;
  std::string name;
  bool all_names = false;

  bool operator==(const UnpublishRequest&) const = default;
};

// The volume's and each publication's place in its life; drawn in volume_machine.h.
enum class StageState { kAbsent, kStaging, kStaged, kUnstaging };
enum class PublicationState { kPublishing, kPublished, kUnpublishing };

struct PublicationView {
  std::string consumer;
  std::string name;
  std::string target_path;
  bool readonly = false;
  PublicationState state = PublicationState::kPublishing;
  bool uncertain = false;
  std::string last_error;
  std::optional<WallTime> published_at;
};

struct VolumeView {
  std::string plugin_id;
  std::string volume_id;
  StageState stage_state = StageState::kAbsent;
  bool uncertain = false;
  bool awaiting_secrets = false;
  VolumeUse use;
  std::string staging_path;
  std::vector<PublicationView> publications;
  std::string last_error;
  std::optional<WallTime> next_retry_at;
  std::string running;  // the RPC that runs now; empty: none
  std::optional<WallTime> running_since;
};

// How the mounter reaches plugins. Implemented by main over the registry.
class PluginDirectory {
 public:
  struct Entry {
    std::shared_ptr<CsiClient> client;
    PluginFacts facts;
    // Not empty: it is being drained, or comes as another node. Nothing new is staged or published through
    // it, with this for the reason; what has begun goes on, and what takes volumes away.
    std::string refuses_new = {};
    // Where the plugin sees the tree of volumes; empty: where we do.
    std::string volumes_path = {};
  };
  virtual ~PluginDirectory() = default;
  // The plugin, if it is registered and serves Node now. NOT_FOUND: no such plugin (the message names those
  // there are). UNAVAILABLE: not now (the message says its state and reason). FAILED_PRECONDITION: it has no
  // node service.
  [[nodiscard]] virtual absl::StatusOr<Entry> Find(const std::string& plugin_id) = 0;
  // Waits until Find(plugin_id) could give something else than UNAVAILABLE, or `deadline`.
  [[nodiscard]] virtual Awaitable<void> WaitUsable(std::string plugin_id, TimePoint deadline) = 0;
};

struct MounterOptions {
  std::string state_dir;                           // journal.db, and the tree volumes/<hash>/…
  std::string helper_path;                         // berth-mount-helper
  Duration rpc_timeout = std::chrono::minutes(2);  // a step's own deadline, independent of any caller's
  size_t calls_per_plugin = 32;                    // RPCs that change something, through one plugin at a time
  size_t queue_per_volume = 64;  // requests that may wait for one volume; beyond: RESOURCE_EXHAUSTED
  Duration retry_limit = std::chrono::minutes(1);  // the longest pause between tries in the background
  // Called when HeldThrough(plugin_id) says something else than before.
  std::function<void(const std::string& plugin_id)> on_holders_changed;
  // For tests of crashes: called at each point where the state on disk, or a plugin's, is about to change or
  // has changed ("rpc NodeStageVolume: sending").
  std::function<void(std::string_view point)> at_boundary;
};

class Mounter {
 public:
  // Opens the journal and the tree (made, bound onto itself, made shared, verified), loads every record.
  // Nothing is called yet. FAILED_PRECONDITION: the journal is of a newer version, or another berthd has it.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Mounter>> Open(asio::any_io_executor executor,
                                                                     MounterOptions options,
                                                                     PluginDirectory& plugins,
                                                                     EventLog& events);
  virtual ~Mounter() = default;

  // Compares the journal with the kernel and begins to finish what was under way. Returns once the state is
  // restored and may be shown; the finishing goes on.
  [[nodiscard]] virtual Awaitable<absl::Status> Recover() = 0;

  // Ends berthd's part: waits for running steps up to `deadline`, commits, closes. Volumes stay mounted.
  // The tree's own mount is taken away only if no volume is held.
  [[nodiscard]] virtual Awaitable<void> Shutdown(TimePoint deadline) = 0;

  // See berth.v1.Node for meaning and errors. `deadline` ends the caller's wait, not the work.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<std::string>> Publish(PublishRequest request,
                                                                       TimePoint deadline) = 0;
  // The value says whether there was anything to undo.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<bool>> Unpublish(UnpublishRequest request,
                                                                  TimePoint deadline) = 0;

  // For GetVolumeStats and ExpandVolume's part on the node; one of each in flight per volume.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> Stats(
      std::string plugin_id, std::string volume_id, TimePoint deadline) = 0;
  // NOT_FOUND where the volume is not published here.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<int64_t>> NodeExpand(
      std::string plugin_id, std::string volume_id, ::csi::v1::CapacityRange range,
      std::map<std::string, std::string> secrets, TimePoint deadline) = 0;

  [[nodiscard]] virtual std::vector<VolumeView> List() const = 0;
  [[nodiscard]] virtual std::optional<VolumeView> Find(const std::string& plugin_id,
                                                       const std::string& volume_id) const = 0;
  // Whether anything is held through the plugin, by "volume V by consumer C".
  [[nodiscard]] virtual std::vector<std::string> HeldThrough(const std::string& plugin_id) const = 0;

  // Durably reserves `count` event numbers above all reserved before, and returns the first.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<uint64_t>> ReserveEventNumbers(uint64_t count) = 0;
};

}  // namespace berth
