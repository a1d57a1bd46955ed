// What the mounter is asked about volumes and what it answers, as values: requests, views, findings.
//
// Values; any thread.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "berth/v1/values.h"
#include "csi/csi.pb.h"
#include "csi/health.h"
#include "mounts/mount_types.h"

namespace berth {

enum class AccessType { kMount, kBlock };

struct VolumeUse {  // a CSI VolumeCapability, by value
  // On this node, by any number of consumers. CSI's table for a second NodePublishVolume lets a plugin refuse
  // a second target of SINGLE_NODE_WRITER, so most callers do not mean that; a plugin without the finer modes
  // gets it, though.
  ::csi::v1::VolumeCapability::AccessMode::Mode access_mode =
      ::csi::v1::VolumeCapability::AccessMode::SINGLE_NODE_MULTI_WRITER;
  AccessType access_type = AccessType::kMount;
  std::string fs_type;
  std::vector<std::string> mount_flags;
  // CSI's VolumeCapability.MountVolume.volume_mount_group: only for a plugin with VOLUME_MOUNT_GROUP.
  std::string volume_mount_group;

  bool operator==(const VolumeUse&) const = default;
};

// Who requested a publication. After a reboot only that party may resume it. A scheduler that publishes what
// a caller has published takes it over; it cannot take over a declared one (ALREADY_EXISTS).
enum class Origin {
  kCaller,     // a person or a local program
  kDeclared,   // a file in volumes.d
  kScheduler,  // the central scheduler: after a start of berthd blocked until UnblockForward
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
  // Of kDeclared only. A repeated request changes it without another publish.
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
  std::string used_by = {};    // with still_in_use, if known: the user, for people
  bool aborted = false;        // its file system was aborted
  bool detached = false;       // a mount of it was detached
  // It was unmounted by berthd, and its plugin does not know: whatever needs it to know, as a detach, is not
  // safe without fencing.
  bool without_plugin = false;
};

// The volume's and each publication's place in its life; drawn in volume_machine.h.
enum class StageState { kAbsent, kStaging, kStaged, kUnstaging };
enum class PublicationState { kPublishing, kPublished, kUnpublishing };

// Why nothing forward is begun or repeated for a publication; what ends it: volume_machine.h.
struct Blocked {
  enum class Reason {
    kRestart,      // the node was restarted, or its journal was lost
    kNoLease,      // of a scheduler's: no lease is valid
    kUnconfirmed,  // of a scheduler's: it is older than the lease
  };
  Reason reason = Reason::kRestart;
  std::string text;  // "the node was restarted: ...", "no valid lease of the scheduler since ..."
};

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
  std::optional<Blocked> blocked = {};
  // Its mount is there, and its file system has ended (ENOTCONN, ESTALE): the error. Empty: it has not.
  std::string dead = {};
  // Its mount is there, and its file system does not answer, though it may again: the error. Never together
  // with `dead`.
  std::string hung = {};
  // It was asked for to write, and its mount, its file system or its block device refuses that: why.
  std::string writes_refused = {};
  // It is being undone to be mounted again, a repair: then kUnpublishing is not its way out.
  bool remount_after_undo = false;
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
  // The node's part of an expansion, pending until NodeExpandVolume has succeeded; 0: none.
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

// Which volumes of the node are meant: those that all of it applies to. An empty field applies to any.
struct VolumeFilter {
  std::string plugin_id = {};
  std::string consumer = {};  // which uses it
  std::string label_prefix = {};
  bool declared = false;  // with a publication that a file declared
  VolumeRef after = {};   // only what comes after it, in the order of plugin and volume ids
  size_t limit = std::numeric_limits<size_t>::max();
};

// How much this node has.
struct VolumeCounts {
  int publications = 0;
  int declared = 0;                    // of the publications: those that files declared
  int mounted = 0;                     // of the publications: those that are published
  std::map<std::string, int> volumes;  // by plugin id
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

}  // namespace berth
