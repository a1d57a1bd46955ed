#include "mounter/publish_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/status.h"
#include "mounter/root_permissions.h"

namespace berth {
namespace {

using AccessMode = ::csi::v1::VolumeCapability::AccessMode;

// What differs between two uses, for people. The flags themselves are not shown.
std::string Difference(const VolumeUse& held, const VolumeUse& wanted) {
  if (held.access_type != wanted.access_type) {
    return held.access_type == AccessType::kBlock ? "as a block device, not mounted"
                                                  : "mounted, not as a block device";
  }
  if (held.access_mode != wanted.access_mode) {
    return fmt::format("with access mode {}, not {}", AccessMode::Mode_Name(held.access_mode),
                       AccessMode::Mode_Name(wanted.access_mode));
  }
  if (held.volume_mount_group != wanted.volume_mount_group) return "with another mount group";
  if (held.fs_type != wanted.fs_type) {
    return fmt::format("with fs type \"{}\", not \"{}\"", Printable(held.fs_type, 64),
                       Printable(wanted.fs_type, 64));
  }
  return "with other mount flags, which its plugin applies when it stages the volume, for all who use it";
}

std::string Holders(const VolumeRecord& record) {
  std::string holders;
  constexpr size_t kShown = 5;
  for (size_t i = 0; i < record.publications.size() && i < kShown; ++i) {
    holders += fmt::format("{}{}", i == 0 ? "" : "; ", Describe(record.publications[i].key));
  }
  if (record.publications.size() > kShown) {
    holders += fmt::format("; and {} more", record.publications.size() - kShown);
  }
  return holders;
}

// What one volume has only once, compared with what is asked for. Empty: the same.
std::string VolumeDifference(const PublishRequest& request, const VolumeRecord& record) {
  VolumeUse wanted = request.use;
  if (record.rebuilt) {
    // This request brings back what the identity file does not have.
    wanted.fs_type = record.use.fs_type;
    wanted.mount_flags = record.use.mount_flags;
    wanted.volume_mount_group = record.use.volume_mount_group;
  }
  // Without a staging each publication has its own.
  if (!record.stages) wanted.mount_flags = record.use.mount_flags;
  if (record.use != wanted) return Difference(record.use, wanted);
  if (record.rebuilt) return "";
  if (record.volume_context != request.volume_context) return "with another volume context";
  if (record.publish_context != request.publish_context) return "with another publish context";
  return "";
}

// The same of one publication.
std::string PublicationDifference(const PublishRequest& request, const VolumeRecord& record,
                                  const PublicationRecord& publication) {
  if (publication.readonly != request.readonly) return publication.readonly ? "read-only" : "writable";
  if (!record.rebuilt && !record.stages && publication.MountFlags(record.use) != request.use.mount_flags) {
    return "with other mount flags";
  }
  if (publication.ephemeral != request.ephemeral) {
    return publication.ephemeral ? "as an ephemeral volume" : "and it is not an ephemeral one";
  }
  // They are set once; a rebuilt record does not have them.
  if (!record.rebuilt && !(publication.permissions == request.permissions)) {
    return "with other permissions of its root";
  }
  return "";
}

bool Writes(const PublicationRecord& publication) { return !publication.readonly; }

}  // namespace

absl::Status CheckAttached(const PublishRequest& request, const PluginFacts& facts) {
  // An ephemeral volume is not there before it is published.
  if (!facts.NeedsAttach() || request.publish_context || request.ephemeral) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "plugin {} needs the volume attached to this node first (ControllerPublishVolume): pass what that call "
      "answered: --publish-context K=V for each pair, or one empty --publish-context if it answered none",
      request.plugin_id));
}

absl::Status CheckPlugin(const PublishRequest& request, const PluginFacts& facts, const VolumeRecord* record,
                         size_t held_through) {
  BERTH_RETURN_IF_ERROR(CheckAttached(request, facts));
  const bool groups = facts.NodeCan(::csi::v1::NodeServiceCapability::RPC::VOLUME_MOUNT_GROUP);
  if (!request.use.volume_mount_group.empty() && !groups) {
    return absl::FailedPreconditionError(
        fmt::format("plugin {} cannot mount for a group (it has no VOLUME_MOUNT_GROUP): leave "
                    "volume_mount_group out, and ask for a group in the permissions instead",
                    request.plugin_id));
  }
  if (!request.permissions.selinux_label().empty() && !SelinuxIsOn()) {
    return absl::FailedPreconditionError(
        "selinux_label: SELinux is not on in this kernel, so there is nothing to label: leave it out");
  }
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  if (record != nullptr && record->Find(key) == nullptr && !record->node_id.empty() &&
      record->node_id != facts.node_id) {
    return absl::FailedPreconditionError(fmt::format(
        "the volume is in use as node \"{}\", and plugin {} now calls this node \"{}\": it must leave "
        "before it is used under the new name",
        Printable(record->node_id, 128), request.plugin_id, Printable(facts.node_id, 128)));
  }
  const int64_t limit = facts.max_volumes_per_node.value_or(0);
  if (limit > 0 && record == nullptr && held_through >= static_cast<uint64_t>(limit)) {
    return absl::ResourceExhaustedError(
        fmt::format("plugin {} takes {} volumes on this node, and has as many", request.plugin_id, limit));
  }
  return absl::OkStatus();
}

absl::Status CheckCompatible(const PublishRequest& request, const VolumeRecord& record) {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  std::string difference = VolumeDifference(request, record);
  if (const PublicationRecord* same = record.Find(key)) {
    // Its file would go on deciding about it, lease or not.
    if (same->origin == Origin::kDeclared && request.origin == Origin::kScheduler) {
      return absl::AlreadyExistsError(fmt::format(
          "{} has this volume already, declared by a file in volumes.d: take it out of there first",
          Describe(key)));
    }
    if (difference.empty()) difference = PublicationDifference(request, record, *same);
    if (difference.empty()) return absl::OkStatus();
    return absl::AlreadyExistsError(
        fmt::format("{} has this volume already, {}: unpublish it first", Describe(key), difference));
  }
  if (record.publications.empty()) return absl::OkStatus();
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("the volume is in use {}, by {}: a volume has one capability on a node at a time",
                    difference, Holders(record)));
  }
  const bool ephemeral = std::ranges::any_of(record.publications, &PublicationRecord::ephemeral);
  if (ephemeral || request.ephemeral) {
    return absl::FailedPreconditionError(fmt::format(
        "the volume is in use{}, by {}: an ephemeral volume is one consumer's alone, and goes with it",
        ephemeral ? " as an ephemeral one" : "", Holders(record)));
  }
  if (record.use.access_mode == AccessMode::SINGLE_NODE_SINGLE_WRITER) {
    return absl::FailedPreconditionError(
        fmt::format("the volume is in use with access mode SINGLE_NODE_SINGLE_WRITER, by {}: it allows one "
                    "publication at a time",
                    Holders(record)));
  }
  const auto writer = std::ranges::find_if(record.publications, Writes);
  const bool one_writer = record.use.access_mode == AccessMode::MULTI_NODE_SINGLE_WRITER;
  if (one_writer && !request.readonly && writer != record.publications.end()) {
    return absl::FailedPreconditionError(
        fmt::format("the volume is in use with access mode MULTI_NODE_SINGLE_WRITER, for writing by {}: it "
                    "allows one writer; ask for readonly",
                    Describe(writer->key)));
  }
  return absl::OkStatus();
}

bool WantsSoleWriter(const PublishRequest& request, const VolumeRecord& record) {
  const AccessMode::Mode mode = request.use.access_mode;
  if (mode == AccessMode::SINGLE_NODE_SINGLE_WRITER) return true;
  const bool one_writer = mode == AccessMode::SINGLE_NODE_WRITER ||
                          (mode == AccessMode::MULTI_NODE_SINGLE_WRITER && !request.readonly);
  const bool its_own = !record.past_consumers.empty() &&
                       std::ranges::all_of(record.past_consumers, [&request](const std::string& consumer) {
                         return consumer == request.consumer;
                       });
  return one_writer && !its_own;
}

absl::Status CheckSame(const PublishRequest& request, const VolumeRecord& other) {
  const AccessMode::Mode mode = request.use.access_mode;
  const AccessMode::Mode held = other.use.access_mode;
  const std::string where = fmt::format("volume {} of plugin {} is the same", Printable(other.volume_id, 128),
                                        Printable(other.plugin_id, 128));
  const bool one_user =
      mode == AccessMode::SINGLE_NODE_SINGLE_WRITER || held == AccessMode::SINGLE_NODE_SINGLE_WRITER;
  const bool one_writer =
      mode == AccessMode::MULTI_NODE_SINGLE_WRITER || held == AccessMode::MULTI_NODE_SINGLE_WRITER;
  const bool both_write = !request.readonly && std::ranges::any_of(other.publications, Writes);
  if (!other.publications.empty() && (one_user || (one_writer && both_write))) {
    return absl::FailedPreconditionError(
        fmt::format("{}, and in use with access mode {} by {}: {} allows one {} at a time", where,
                    AccessMode::Mode_Name(held), Holders(other),
                    AccessMode::Mode_Name(one_user ? AccessMode::SINGLE_NODE_SINGLE_WRITER
                                                   : AccessMode::MULTI_NODE_SINGLE_WRITER),
                    one_user ? "publication" : "writer"));
  }
  const bool leaving = other.publications.empty() || other.still_in_use;
  if (!leaving || !WantsSoleWriter(request, other)) return absl::OkStatus();
  return StillWritable(
      request,
      fmt::format("{}: {}", where, other.last_error.empty() ? "it is being unstaged" : other.last_error));
}

absl::Status StillWritable(const PublishRequest& request, std::string_view used) {
  return absl::FailedPreconditionError(fmt::format(
      "access mode {} is for one writer, and an earlier use of the volume has not ended: {}. It can be "
      "published once that has ended",
      AccessMode::Mode_Name(request.use.access_mode), used));
}

AccessMode::Mode ModeFor(AccessMode::Mode mode, const PluginFacts& facts) {
  const bool finer =
      mode == AccessMode::SINGLE_NODE_SINGLE_WRITER || mode == AccessMode::SINGLE_NODE_MULTI_WRITER;
  const bool known = facts.NodeCan(::csi::v1::NodeServiceCapability::RPC::SINGLE_NODE_MULTI_WRITER);
  return finer && !known ? AccessMode::SINGLE_NODE_WRITER : mode;
}

}  // namespace berth
