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
// If the outcome of a step is unknown at its own deadline, the step is shown as uncertain and tried again in
// the background, with a growing pause of up to a minute, forward until an Unpublish reverses the goal.
//
// Events of volumes:
//   staged, published, unpublished, unstaged, expanded
//   failed            a step failed for good
//   uncertain         it is tried again
//   stuck             the plugin or a file system does not answer
//   recovered         berthd ended in the middle of it
//   awaiting_secrets  a step has to be repeated, and its secrets are never written down
//   blocked           after a reboot: nothing is done until a caller or the scheduler requests it
//   lost              the mount is not there any more
//   overmounted       another mount lies over it
//   dead              the mount is there and its file system has ended; the consumer has to be restarted
//   hung              its file system does not answer; its server may come back
//   abnormal, normal  its plugin reports a problem, or its end
//   read_only         it was published for writing, and refuses that
//   alive             well again
//   remounted         lost or dead, it was mounted again
//   released          its consumer has ended
//   leftover          data stood in the way of a removal, and stay
//   token_failed      new tokens for the plugin could not be got or passed; the mount stays
//   token_renewed     and now they could
//   path_mounted      mounted at the path that its file names, too
//   path_lost         unmounted there: it is mounted again
//   orphan            a mount in the tree that is not in the journal; it stays
//   undone_without_plugin  its plugin has lost the step, and berthd did it
// Others: plugin.lied (it answered OK, and the kernel disagrees), node.awaiting_scheduler (a scheduler's
// volumes are blocked: see UnblockForward; once, for the node), node.journal_rebuilt.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/event_log.h"
#include "base/task_scope.h"
#include "consumers/consumer_end.h"
#include "mounter/consumer_tokens.h"
#include "mounter/plugin_directory.h"
#include "mounter/volume_types.h"

namespace berth {

struct MounterOptions {
  std::string state_dir;                           // journal.db, and the tree volumes/<hash>/…
  std::string helper_path;                         // berth-mount-helper
  Duration rpc_timeout = std::chrono::minutes(2);  // a step's own deadline, independent of any caller's
  size_t calls_per_plugin = 32;                    // RPCs that change something, through one plugin at a time
  size_t queue_per_volume = 64;  // requests that may wait for one volume; beyond: RESOURCE_EXHAUSTED
  Duration retry_limit = std::chrono::minutes(5);  // the longest pause between tries in the background
  // Called when HeldThrough(plugin_id) says something else than before.
  std::function<void(const std::string& plugin_id)> on_holders_changed;
  // Called when Find(plugin_id, volume_id) may say something else than before; `here`: it says something.
  // Must not call the Mounter.
  std::function<void(const std::string& plugin_id, const std::string& volume_id, bool here)>
      on_volume_changed;
  // Called once when a consumer has ended, or was reported as ended, for each origin that published for it:
  // what it uses is being released. `cause`: "process 123 has ended", or what ConsumerEnded got. Called again
  // if berthd ends before the release was written down. Must not call the Mounter.
  std::function<void(const std::string& consumer, const std::string& cause, Origin origin)> on_consumer_ended;
  // For tests of crashes: called at each point where the state on disk, or a plugin's, is about to change or
  // has changed ("rpc NodeStageVolume: sending").
  std::function<void(std::string_view point)> at_boundary;
  // How often the file systems that can die (FUSE, network) are asked whether they live, and plugins whether
  // something is wrong with their volumes (CSI's VolumeHealth or VolumeCondition); 0: never.
  Duration health_interval = std::chrono::seconds(30);
  // Called after a tree was mounted again, since it had been unmounted. May be empty.
  std::function<void()> on_tree_mounted = {};
  Duration health_patience = std::chrono::seconds(10);  // how long one may take to answer before it hangs
  // Where secrets that a reference names as credentials lie; empty: $CREDENTIALS_DIRECTORY.
  std::string credentials_dir;
  ConsumerEndOptions consumer_end = {};
  // Issues the tokens that plugins want; outlives the Mounter. Null: there are no tokens.
  TokenSource* tokens = nullptr;
  Duration tokens_within = std::chrono::seconds(30);  // of one try to get them
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

  // berthd or the machine is being stopped, as `why` says ("berthd is stopping"). From now on nothing goes
  // forward: no stage, no publish, no repair, no renewal of tokens, no expansion. What asks for one of these
  // ends with UNAVAILABLE; a call that was sent is waited for, and not repeated. Reverse steps go on. Final.
  virtual void BeginShutdown(std::string why) = 0;
  // OK; UNAVAILABLE with the reason after BeginShutdown. To be asked before anything is begun on this node.
  [[nodiscard]] virtual absl::Status CheckNotShuttingDown() const = 0;

  // Ends berthd's part: waits for running steps up to `deadline`, commits, closes. Volumes stay mounted.
  // The tree's own mount is taken away only if no volume is held.
  [[nodiscard]] virtual Awaitable<void> Shutdown(TimePoint deadline) = 0;

  // See berth.v1.Node for meaning and errors. `deadline` ends the caller's wait, not the work.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<std::string>> Publish(PublishRequest request,
                                                                       TimePoint deadline) = 0;
  [[nodiscard]] virtual Awaitable<absl::StatusOr<UnpublishResult>> Unpublish(UnpublishRequest request,
                                                                             TimePoint deadline) = 0;
  // The consumer has ended, as `cause` says ("said by uid 0"): every publication of its is unpublished, side
  // by side. Returns how many there were; the first error if any could not be undone (it goes on in the
  // background).
  [[nodiscard]] virtual Awaitable<absl::StatusOr<size_t>> ConsumerEnded(std::string consumer,
                                                                        std::string cause,
                                                                        TimePoint deadline) = 0;
  // A lease of `origin`'s is valid, and has held without a break since `since`, on the boot's clock: what was
  // requested or confirmed in that time goes on, and what was lost or died meanwhile is mounted again. The
  // rest is unconfirmed: blocked until Confirm, or until it is requested again. From when berthd starts until
  // then, nothing forward is begun of what was left under way for a scheduler; what is undone goes on.
  // Returns how many publications are unconfirmed.
  virtual size_t UnblockForward(Origin origin, BootTime since) = 0;
  // The opposite: from now on, until UnblockForward, nothing forward is begun or repeated for what `origin`
  // requested, for this reason, which people see. A publish that has not begun ends with UNAVAILABLE. What is
  // published stays, and what is undone goes on. A Publish that comes later is carried out: whether it may
  // come is its caller's to know.
  virtual void BlockForward(Origin origin, std::string why) = 0;
  // The scheduler still wants these publications of its own: they are confirmed. Returns once that is
  // written, or at `deadline`, with those that cannot be confirmed: they are not here, are not the
  // scheduler's, are being unpublished, or the journal that knew how to publish them was lost. UNAVAILABLE,
  // and nothing is changed: the scheduler's publications are blocked (BlockForward).
  [[nodiscard]] virtual Awaitable<absl::StatusOr<std::vector<PublicationRef>>> Confirm(
      std::vector<PublicationRef> wanted, TimePoint deadline) = 0;
  // What plugins want to be given may be something else than before: what is published and lacks it gets it.
  virtual void OnTokensWantedChanged() = 0;

  // Volumes that `origin` published and that one node alone may write to, which those that wait for one
  // that cannot be heard need most. Not among them: what is only read, and what several nodes may write to.
  [[nodiscard]] virtual std::vector<VolumeRef> SingleWriterVolumes(Origin origin) const = 0;
  // Lets a volume go against its consumers' will: ends those that `origin` published it for, as far as it is
  // known what they consist of (consumer_end.h), and unpublishes it for them. OK: they have ended, the volume
  // has left its plugin, and the kernel has released it; or there was nothing to release. An error says what
  // stands in the way, FAILED_PRECONDITION also where others use the volume here; what was begun goes on in
  // the background, and the same may be asked for again.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<UnpublishResult>> ForceRelease(VolumeRef volume,
                                                                                Origin origin,
                                                                                TimePoint deadline) = 0;

  // For GetVolumeStats and ExpandVolume's part on the node; one of each in flight per volume.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> Stats(
      std::string plugin_id, std::string volume_id, TimePoint deadline) = 0;
  // The node must expand the volume to this size: durably noted, and done as soon as it is staged or
  // published here, also where it is not here now. RESOURCE_EXHAUSTED: it is not here, and the disk is full.
  [[nodiscard]] virtual Awaitable<absl::Status> SetPendingExpansion(std::string plugin_id,
                                                                    std::string volume_id,
                                                                    int64_t required_bytes) = 0;
  // A volume that is not here has been deleted: forgets its pending expansion, durably. OK if there was none.
  // An error: it is still pending.
  [[nodiscard]] virtual Awaitable<absl::Status> CancelPendingExpansion(std::string plugin_id,
                                                                       std::string volume_id) = 0;
  // NOT_FOUND where the volume is not published here.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<int64_t>> NodeExpand(
      std::string plugin_id, std::string volume_id, ::csi::v1::CapacityRange range,
      std::map<std::string, std::string> secrets, TimePoint deadline) = 0;

  // Sorted by plugin and volume id. A view is a copy of all that is known of a volume: of ten thousand it
  // takes 0.1 s of the loop, so ask for those that are needed.
  [[nodiscard]] virtual std::vector<VolumeView> List(const VolumeFilter& filter) const = 0;
  [[nodiscard]] virtual VolumeCounts Count() const = 0;
  // Of a volume that the node has no record of: OK where nothing is mounted of it, in any mount namespace.
  // UNAVAILABLE: something is, or it cannot be known now. OK where there is a record, which says more.
  [[nodiscard]] virtual Awaitable<absl::Status> CheckUnrecorded(std::string plugin_id, std::string volume_id,
                                                                TimePoint deadline) = 0;
  [[nodiscard]] virtual std::optional<VolumeView> Find(const std::string& plugin_id,
                                                       const std::string& volume_id) const = 0;
  // A publication as its consumer's runtime needs it; nothing where it is not published.
  [[nodiscard]] virtual std::optional<ConsumerMount> MountOf(const std::string& plugin_id,
                                                             const std::string& volume_id,
                                                             const std::string& consumer,
                                                             const std::string& name) const = 0;
  // All of a consumer's that are published.
  [[nodiscard]] virtual std::vector<ConsumerMount> MountsOf(const std::string& consumer) const = 0;
  // NOT_FOUND: nothing is known of the volume.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<VolumeExplanation>> Explain(std::string plugin_id,
                                                                             std::string volume_id,
                                                                             TimePoint deadline) = 0;
  // Compares everything; with `repair` does what each finding says it would.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<std::vector<Finding>>> Examine(bool repair,
                                                                                TimePoint deadline) = 0;
  // Makes the directory at a PublishedPath that is not used any more an ordinary one again: takes away the
  // immutable flag if the mounter set it, and the directory if the mounter made it and it is empty.
  [[nodiscard]] virtual Awaitable<absl::Status> FreePath(std::string path, TimePoint deadline) = 0;
  // What an operator should know of the mounter itself, a sentence each: that the journal was rebuilt, that
  // the disk is full, that mounts are not seen by the host.
  [[nodiscard]] virtual std::vector<std::string> Problems() const = 0;
  // The ids of the plugins through which this node has a volume with this id, according to its records: those
  // with the id or driver `name`, also plugins that do not run or are gone.
  [[nodiscard]] virtual std::vector<std::string> PluginsOf(const std::string& volume_id,
                                                           const std::string& name) const = 0;
  // The volume here that shows the same object as another one, which has left: that of the plugin or driver
  // `name` with this id.
  [[nodiscard]] virtual std::optional<VolumeView> ShownBy(const std::string& volume_id,
                                                          const std::string& name) const = 0;
  // Whether anything is held through the plugin, by "volume V by consumer C".
  [[nodiscard]] virtual std::vector<std::string> HeldThrough(const std::string& plugin_id) const = 0;

  // Reads what `reference` names, by a helper process (secrets_reference.h, with its errors).
  [[nodiscard]] virtual Awaitable<absl::StatusOr<std::map<std::string, std::string>>> ReadSecrets(
      SecretsReference reference, TimePoint deadline) = 0;
};

}  // namespace berth
