// What is to be done next with a volume that a file of volumes.d declares.
//
// Pure: no clock, no file, no call. One entry is one use of one volume; DeclaredVolumes (declared_volumes.h)
// gathers the facts, carries out what is returned, and asks again.
//
//   file appears → remember (durably: from here on it has to be undone) → attach → publish → published
//   file goes    → unpublish → detach → forget
//   file changes in what a mount is made from: as if it went, and appeared again
//   released by hand, or its consumer ended → noted; stays released until a reload or the next boot
//   file breaks  → nothing
//
// Attach and detach only if the plugin's controller attaches volumes to nodes, or the file says so. A volume
// is detached once it is not in use on this node any more and no other file declares it attached.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <string>

#include "base/clock.h"
#include "declared/declared_record.pb.h"
#include "mounter/volume_types.h"

namespace berth {

// One use of one volume, its plugin as the file names it: by id or by the name of its driver.
struct DeclaredKey {
  std::string plugin;
  std::string volume_id;
  std::string consumer;
  std::string name;

  auto operator<=>(const DeclaredKey&) const = default;
};

// What a sound file asks for.
struct DeclaredUse {
  PublishRequest request;      // with the plugin as the file names it
  std::optional<bool> attach;  // unset: where the plugin needs it
  // Of all that a mount is made from: where it differs, another mount is needed.
  std::string mount_digest;
};
[[nodiscard]] std::string MountDigest(const PublishRequest& request, std::optional<bool> attach);

// What berthd remembers of a use that was begun, until it was undone: on disk, declared_records.h.
using declared::DeclaredRecord;
[[nodiscard]] DeclaredKey KeyOf(const DeclaredRecord& record);

struct DeclaredEntry {
  enum class Will {
    kWanted,
    kWithdrawn,
    kKept,  // its file cannot be read: nothing is begun, nothing undone
  };
  Will will = Will::kWanted;
  std::optional<DeclaredUse> use;  // of kWanted
  std::optional<DeclaredRecord> record;
  // It was published since it was last requested. If it is not any more, or is being unpublished, a caller
  // has released it, or its consumer has ended.
  bool was_published = false;
  // A caller has released it, or its consumer has ended: it stays released until a reload requests it.
  bool released = false;
  std::string boot_id;  // of this boot
  // Its file has a change that needs no new mount: the mounter gets it once.
  bool tell_anew = false;
  // Not before then, after a failure.
  TimePoint not_before{};
};

// What the others say.
struct DeclaredFacts {
  // Why nothing goes forward on this node any more (Mounter::CheckNotShuttingDown); empty: it may.
  std::string leaving;
  bool plugin_ready = false;
  std::string plugin_why;  // where it is not
  bool needs_attach = false;

  // Of the plugin, or another one of its driver.
  bool controller_ready = false;
  std::string controller_why;  // if it is not, or this node has no controller

  // What the mounter has of this use, and whether a file declared it.
  std::optional<PublicationState> publication;
  bool being_unpublished = false;  // it is being unpublished, and not to be mounted again
  bool declared = false;
  std::string blocked;  // why the mounter waits with it
  // Its mount is gone, or does not answer.
  bool lost = false;
  // Published, and not mounted at its path: then `path_error` may say why.
  bool path_pending = false;
  std::string path_error;
  // What else is held of the volume on this node, for people.
  std::string held_by;
  // Another entry is attached to the same volume; one is just being attached or detached.
  bool attached_for_another = false;
  bool attach_busy = false;
};

enum class DeclaredAction {
  kNothing,      // it is as it should be
  kWait,         // for something to change, or for the time in the step
  kRemember,     // durably, that it is begun
  kNoteRelease,  // note durably whether it was released by hand
  kAttach,       // ControllerPublishVolume
  kPublish,      // the mounter's
  kUnpublish,    // the mounter's
  kDetach,       // ControllerUnpublishVolume
  kForget,       // it was undone: away with the record
  kGone,         // there is nothing left of it
};

struct DeclaredStep {
  DeclaredAction action = DeclaredAction::kNothing;
  std::string state;  // for people
  std::optional<TimePoint> at = {};

  bool operator==(const DeclaredStep&) const = default;
};

[[nodiscard]] DeclaredStep NextStep(const DeclaredEntry& entry, const DeclaredFacts& facts, TimePoint now);

// Whether it is released, or being released, although its file wants it published.
[[nodiscard]] bool IsReleased(const DeclaredEntry& entry, const DeclaredFacts& facts);
// Whether it is published as its file says, or said before it was broken, and mounted at its path.
[[nodiscard]] bool IsPublished(const DeclaredEntry& entry, const DeclaredFacts& facts);

}  // namespace berth
