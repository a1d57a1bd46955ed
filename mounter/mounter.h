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
// good), .uncertain (it is tried again), .stuck (the plugin or a file system does not come back from it),
// .recovered (berthd ended in the middle of it), .awaiting_secrets (a step has to be repeated, and nobody
// wrote its secrets down), .blocked (after a reboot: nothing is done before somebody says so), .lost (the
// mount is not there any more), .overmounted (somebody mounted over it), .dead (the mount is there and its
// file system has ended; the consumer has to be restarted), .hung (its file system does not answer; its
// server may come back), .abnormal (its plugin says what is wrong with it), .normal (no more), .read_only (it
// was asked for to write, and refuses that), .alive (well again), .remounted (lost or dead, it was mounted
// again), .released (its consumer has ended), .leftover (data in the way of a removal, left alone),
// .token_failed (what the plugin is to be given anew could not be got or passed; the mount stands),
// .token_renewed (and now it could), .path_mounted (mounted at the path that its file names, too), .path_lost
// (it was unmounted there: it is mounted again), .stranger (in the tree and not in the journal, left alone),
// .undone_without_plugin (its plugin has lost the step, and berthd did it); plugin.lied (it answered OK, and
// the kernel disagrees); node.awaiting_scheduler (a scheduler's volumes are blocked: see AllowForward; once,
// for the node), node.journal_rebuilt.
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
#include "csi/health.h"
#include "csi/plugin_facts.h"
#include "mounter/consumer_tokens.h"
#include "mounter/values.h"

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
  // CSI's VolumeCapability.MountVolume.volume_mount_group: only for a plugin with VOLUME_MOUNT_GROUP.
  std::string volume_mount_group;

  bool operator==(const VolumeUse&) const = default;
};

// Who asked for a publication, and so whose word counts once the node has been away. A scheduler that
// publishes what a caller has published takes it over; what is declared it does not get (ALREADY_EXISTS).
enum class Origin {
  kCaller,     // a person or a local program
  kDeclared,   // a file in volumes.d
  kScheduler,  // the central scheduler: after a start of berthd blocked until AllowForward
};

// Where a published file system is mounted a second time, for people and programs that know it by a path of
// their own. Empty: nowhere.
struct PublishedPath {
  std::string path;   // absolute, without symlinks, outside of the tree
  bool suid = false;  // set-user-id bits count there
  bool dev = false;   // device nodes count there

  bool operator==(const PublishedPath&) const = default;
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
  // At most one of `secrets` and this. Read when they are needed.
  SecretsReference secrets_reference = {};

  Origin origin = Origin::kCaller;
  // Mount it again of itself when its mount is gone or dead, and after a reboot. Of kDeclared always so; of
  // kCaller not unless asked for, since another node may have the volume by then; of kScheduler once
  // the scheduler has confirmed it.
  bool remount = false;
  // An ephemeral inline volume: the plugin makes it with NodePublishVolume and deletes it, data and all, with
  // NodeUnpublishVolume. It is not staged, and never unpublished to repair it.
  bool ephemeral = false;
  ConsumerLife life = {};
  RootPermissions permissions = {};
  std::optional<RuntimeAbility> runtime = {};
  // What the consumer is, in the caller's terms; for plugins with PluginDirectory::Entry::pod_info.
  std::map<std::string, std::string> consumer_labels = {};
  std::string label = {};  // the caller's name of the volume; empty: the volume keeps the one that it has
  // Of kDeclared only. A repeated request changes it without publishing the volume anew.
  PublishedPath path = {};

  bool operator==(const PublishRequest&) const = default;
};

struct UnpublishRequest {
  std::string plugin_id;
  std::string volume_id;
  std::string consumer;
  std::string name;
  bool all_names = false;
  // Begin only once the consumer's process, cgroup or unit has ended (ConsumerLife).
  bool wait_for_consumer = false;
  // An operator's levers against a file system that does not answer. `force` aborts it (MNT_FORCE) before the
  // plugin is called; data that it had not written are lost. `lazy` detaches a target that stays busy
  // (MNT_DETACH): the file system may stay in use, and the volume is not free.
  // `force` also releases without the plugin, where that is gone, does not come up, or refuses each time.
  bool force = false;
  bool lazy = false;
  std::string requested_by = {};  // for people: "uid 0"

  bool operator==(const UnpublishRequest&) const = default;
};

// A volume was released without its plugin: berthd has unmounted it, and the kernel has it no more. The
// plugin's NodeUnpublishVolume and NodeUnstageVolume are still to be called, once it can.
struct WithoutPlugin {
  std::string requested_by;  // for people
  WallTime at;

  bool operator==(const WithoutPlugin&) const = default;
};

// A volume, by what its plugin and the storage call it.
struct VolumeRef {
  std::string plugin_id;
  std::string volume_id;

  auto operator<=>(const VolumeRef&) const = default;
};

// One use of a volume.
struct PublicationRef {
  std::string plugin_id;
  std::string volume_id;
  std::string consumer;
  std::string name;

  auto operator<=>(const PublicationRef&) const = default;
};

struct UnpublishResult {
  bool was_published = false;  // there was something to undo
  bool still_in_use = false;   // the kernel may still have the volume: it is not free
  std::string used_by = {};    // with still_in_use, where that is known: by whom, for people
  bool aborted = false;        // its file system was aborted
  bool detached = false;       // a mount of it was detached
  // It was unmounted by berthd, and its plugin does not know: whatever needs it to know, as a detach, is not
  // safe without fencing.
  bool without_plugin = false;
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

  Origin origin = Origin::kCaller;
  bool remount = false;
  bool ephemeral = false;
  ConsumerLife life = {};
  bool awaiting_secrets = false;
  // Why nothing is done about it until somebody says so: "the node was restarted: ...", "no valid lease of
  // the scheduler since ...". Empty: nothing is awaited.
  std::string blocked = {};
  // Its mount is there, and its file system has ended (ENOTCONN, ESTALE): the error. Empty: it has not.
  std::string dead = {};
  // Its mount is there, and its file system does not answer, though it may again: the error. Never together
  // with `dead`.
  std::string hung = {};
  // It was asked for to write, and its mount, its file system or its block device refuses that: why.
  std::string writes_refused = {};
  // It is being undone to be mounted again, a repair: then kUnpublishing is not its way out.
  bool again = false;
  // Where it is to be mounted too; whether it is, and why not (empty: nothing was tried yet).
  PublishedPath path = {};
  bool path_mounted = false;
  std::string path_error = {};
};

// A step that a file system, or a plugin inside one, does not come back from.
struct StuckView {
  std::string on;   // what hangs: "NodeUnpublishVolume", "umount /var/lib/...": for people
  int64_t pid = 0;  // of the helper process that hangs; 0: the plugin's call does
  WallTime since;
  // The plugin's call hangs, and no file system is left that it could wait for.
  bool plugin_hangs = false;
};

// Who has a volume, or keeps a mount busy.
struct MountHolder {
  int64_t pid = 0;  // 0: no process, but what `how` says
  std::string command;
  std::optional<uint32_t> uid = {};  // the process's real user; unset: not known
  std::string consumer;              // of this node's publications, where the process is one's
  std::string how;  // "open file /x", "in another mount namespace, mounted at /x", "what is mounted inside
                    // it: /x (ext4)"
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

  std::optional<StuckView> stuck;
  // Who stood in the way of the last try to unpublish, unstage or release it.
  std::vector<MountHolder> holders = {};
  // The node's part of an expansion that is owed until NodeExpandVolume has succeeded; 0: none.
  int64_t pending_expansion_bytes = 0;
  // Nothing of it is published or staged, or a mount of it was detached while in use, and the kernel still
  // has it: `last_error` says what is known of its users.
  bool still_in_use = false;
  // As its plugin said last, asked at an interval or for stats, since it came here; unset: it said nothing.
  std::optional<ConditionView> condition = {};
  // When its file system was aborted, and a mount of it detached, for an unpublish with `force` or `lazy`
  // since it was published last; unset: not so.
  std::optional<WallTime> aborted_at = {};
  std::optional<WallTime> detached_at = {};
  // Its plugin is not on this node.
  bool plugin_missing = false;
  std::optional<WithoutPlugin> without_plugin = {};
  int failures = 0;            // how often in a row a step of it has failed
  bool rebuilt = false;        // its record was rebuilt after the journal was lost
  std::string driver_name;     // when it came here
  std::string driver_version;  // of its plugin now; empty: it does not run
  std::string label;           // PublishRequest::label; empty: none
  // It is not taken back, since its plugin refuses that again and again.
  bool plugin_refuses = false;
};

// What a consumer's runtime needs to use a publication.
struct ConsumerMount {
  std::string plugin_id;
  std::string volume_id;
  std::string consumer;
  std::string name;
  std::string source_path;  // the target path: a mounted directory, or a block device node
  AccessType access_type = AccessType::kMount;
  bool readonly = false;
  std::string fs_type;                   // as the kernel shows it
  std::vector<std::string> mount_flags;  // the effective ones: for those who may change
  std::string propagation;               // "private", "rslave": how a runtime should bind it
  uint32_t device_major = 0;             // of a block device
  uint32_t device_minor = 0;
};

// One RPC of a volume's, as it ended.
struct RpcTrace {
  std::string rpc;
  WallTime started_at;
  Duration took{};
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string error;
};

struct KernelMount {
  std::string target;
  std::string source;
  std::string fs_type;
  std::string options;
  uint64_t id = 0;  // 0: not asked, for it lies inside another file system
};

// Everything about one volume, in one view.
struct VolumeExplanation {
  VolumeView view;
  std::string journal_key;
  bool in_journal = false;  // the row on the disk is what the view says
  std::string identity;     // what its identity file says, for people
  std::string directory;
  std::vector<KernelMount> mounts;
  std::vector<MountHolder> holders;
  std::vector<RpcTrace> rpcs;        // the newest last, at most 16
  std::vector<std::string> remarks;  // what does not fit together, a sentence each
};

// One thing that does not fit together, found by comparing the journal, the identity files, the kernel's
// mounts and the plugins.
struct Finding {
  enum class Severity { kInfo, kWarning, kError };
  Severity severity = Severity::kWarning;
  // "mount.missing", "mount.dead", "mount.hung", "volume.failing", "volume.expansion_pending", "row.stale",
  // ...
  std::string code;
  std::string plugin_id;
  std::string volume_id;
  std::string consumer;
  std::string path;
  std::string text;  // what was found, and what it means
  // What an operator does next, often a command. Of a volume: AdviceFor (volume_advice.h), the same in all of
  // its findings. May be empty.
  std::string advice;
  std::string repair;  // what a repair would do; empty: only a person can
  bool repaired = false;
  std::string repair_error;
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
    // It reads Kubernetes' keys about the consumer, as its file says.
    bool pod_info = false;
    // Who serves its socket; 0: unknown.
    int64_t pid = 0;
  };
  virtual ~PluginDirectory() = default;
  // The plugin, if it is registered and serves Node now. NOT_FOUND: no such plugin (the message names those
  // there are). UNAVAILABLE: not now (the message says its state and reason). FAILED_PRECONDITION: it has no
  // node service.
  [[nodiscard]] virtual absl::StatusOr<Entry> Find(const std::string& plugin_id) = 0;
  // Waits until Find(plugin_id) could give something else than UNAVAILABLE, or `deadline`.
  [[nodiscard]] virtual Awaitable<void> WaitUsable(std::string plugin_id, TimePoint deadline) = 0;
  // The tokens that it wants with each NodePublishVolume, whether it can be called now or not. Empty: none,
  // or there is no such plugin.
  [[nodiscard]] virtual std::vector<WantedToken> TokensWanted(const std::string& plugin_id) const = 0;
  // For how long a reverse call may hang in the plugin itself before RestartHung; zero: for ever.
  [[nodiscard]] virtual Duration RestartAfterHungCall(const std::string& plugin_id) const = 0;
  // Restarts a plugin that hangs in a call, which has been cancelled; its other calls are waited for. OK once
  // the new process runs; joins a restart that is under way. Errors: why it is not restarted;
  // DEADLINE_EXCEEDED: it goes on.
  [[nodiscard]] virtual Awaitable<absl::Status> RestartHung(std::string plugin_id, TimePoint deadline) = 0;
};

// How consumers are ended (consumer_end.h).
struct ConsumerEndOptions {
  // Between being asked to end (SIGTERM) and being killed.
  Duration grace = std::chrono::seconds(10);
  // What no consumer may be, besides berthd itself: the slice, and the name of the directory, of the plugins'
  // control groups.
  std::string plugins_slice = "berth-plugins.slice";
  std::string plugins_directory = "berth-plugins";
};

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
  // Called once when a consumer has ended, or somebody said so, for each origin that published for it: what
  // it uses is being released. `cause`: "process 123 has ended", or as ConsumerEnded was told. Told anew if
  // berthd ends before the release was written down. Does not call back.
  std::function<void(const std::string& consumer, const std::string& cause, Origin origin)> on_consumer_ended;
  // For tests of crashes: called at each point where the state on disk, or a plugin's, is about to change or
  // has changed ("rpc NodeStageVolume: sending").
  std::function<void(std::string_view point)> at_boundary;
  // How often the file systems that can die (FUSE, network) are asked whether they live, and plugins whether
  // something is wrong with their volumes (CSI's VolumeHealth or VolumeCondition); 0: never.
  Duration health_interval = std::chrono::seconds(30);
  // Called once a tree was mounted in the place of one that somebody had unmounted. May be empty.
  std::function<void()> on_tree_mounted = {};
  Duration health_patience = std::chrono::seconds(10);  // how long one may take to answer before it hangs
  // Where secrets that a reference names as credentials lie; empty: $CREDENTIALS_DIRECTORY.
  std::string credentials_dir;
  ConsumerEndOptions consumer_end = {};
  // Who makes out the tokens that plugins want; outlives the Mounter. Null: nobody does.
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
  virtual void Leave(std::string why) = 0;
  // OK; UNAVAILABLE with the reason after Leave. Everybody on this node who begins something asks here.
  [[nodiscard]] virtual absl::Status MayGoForward() const = 0;

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
  virtual size_t AllowForward(Origin origin, BootTime since) = 0;
  // The opposite: from now on, until AllowForward, nothing forward is begun or repeated for what `origin`
  // requested, for this reason, which people see. A publish that has not begun ends with UNAVAILABLE. What is
  // published stays, and what is undone goes on. A Publish that comes later is carried out: whether it may
  // come is its caller's to know.
  virtual void Withhold(Origin origin, std::string why) = 0;
  // The scheduler still wants these publications of its own: they are not unconfirmed any more. Returns once
  // that is written, or at `deadline`, with those for which a confirmation is not enough: they are not here,
  // are not the scheduler's, are being unpublished, or the journal that knew how to publish them was lost.
  // UNAVAILABLE, and nothing is changed: the scheduler's publications are withheld.
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
  // A volume that is not here has been deleted: no expansion is owed to it any more, durably. OK where none
  // was. An error: it is owed still.
  [[nodiscard]] virtual Awaitable<absl::Status> CancelOwedExpansion(std::string plugin_id,
                                                                    std::string volume_id) = 0;
  // NOT_FOUND where the volume is not published here.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<int64_t>> NodeExpand(
      std::string plugin_id, std::string volume_id, ::csi::v1::CapacityRange range,
      std::map<std::string, std::string> secrets, TimePoint deadline) = 0;

  [[nodiscard]] virtual std::vector<VolumeView> List() const = 0;
  // Those with a publication that a file declared.
  [[nodiscard]] virtual std::vector<VolumeView> ListDeclared() const = 0;
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
  // The volumes that a consumer uses, each once, however often it does.
  [[nodiscard]] virtual std::vector<VolumeView> VolumesOf(const std::string& consumer) const = 0;
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
  // whose id or driver is `name`, also of plugins that do not run or are gone.
  [[nodiscard]] virtual std::vector<std::string> PluginsOf(const std::string& volume_id,
                                                           const std::string& name) const = 0;
  // The volumes here with this label, of the plugins whose id or driver is `plugin`.
  [[nodiscard]] virtual std::vector<VolumeRef> Labelled(const std::string& label,
                                                        const std::string& plugin) const = 0;
  // Whether anything is held through the plugin, by "volume V by consumer C".
  [[nodiscard]] virtual std::vector<std::string> HeldThrough(const std::string& plugin_id) const = 0;

  // What `reference` names, read anew by a helper process (secrets_reference.h, with its errors).
  [[nodiscard]] virtual Awaitable<absl::StatusOr<std::map<std::string, std::string>>> ReadSecrets(
      SecretsReference reference, TimePoint deadline) = 0;
};

}  // namespace berth
