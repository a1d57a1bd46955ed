// Compares the records with the kernel: what a new berthd does about the state that the last one left, and a
// running one about changes that others made to its mounts.
//
// One planner for all of it: PlanReconciliation, pure. It runs at start, whenever the kernel's mounts change
// (mount_watch.h), and after a reboot. LookAtMounts asks the kernel. Loop thread.
//
//   the kernel shows        same boot, running or at start            after a reboot
//   ─────────────────────── ───────────────────────────────────────── ───────────────────────────────────
//   published, mounted      found (a lost one that is back)           found
//   published, mounted      taken over: its plugin has repaired its   found
//     again by its plugin   own mount
//   published, other mount  over-mounted: reported; unmounted when    found
//     on top                it is unpublished
//   published, not mounted, lost; `remount`, declared: repaired (of   declared, `remount`: resumed at once
//     or another mount in   a scheduler's that is blocked: later)     scheduler's: blocked until confirmed
//     its place                                                       a caller's: blocked until requested
//   publishing              forward (repeated); a scheduler's at      as above: resumed, or blocked
//                           start: blocked until UnblockForward
//   staged, without its     reported; staged again before the next    -
//     mount or with another publish, what lies on top is unmounted
//     on top
//   unpublishing, staging   goes on                                   goes on
//   of a process            -                                         released: it ended with the boot
//
// Calls of a berthd that died may still run in the plugin when the next one begins, and berthd cannot know
// when they end. So data are kept safe in this way: A forward step is repeated with the same arguments, which
// the specification makes harmless (ABORTED while the first call runs, then OK). It is reversed only on
// request, and then by the plugin's own reverse call, which is answered ABORTED while the forward call runs,
// and is repeated until it is not. If a plugin keeps no such order, and mounts after it has answered OK to
// the reverse call, its path does not exist any more: directories are removed as soon as the reverse is done.
// If it makes them again, the mount is reported (volume.orphan), and belongs to no volume. A reverse step is
// only ever repeated.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "mounter/volume_machine.h"
#include "mounter/volume_paths.h"

namespace berth {

// The journal's rows as machines, by key. DATA_LOSS names the row that is no record; FAILED_PRECONDITION the
// one of a newer berthd.
[[nodiscard]] absl::StatusOr<std::map<std::string, VolumeMachine>> ReadRows(
    const std::map<std::string, std::string>& rows, const std::string& boot_id);

// What the kernel shows of one publication, or of the staging.
struct ShownMount {
  std::string error;  // it could not be asked; the rest says nothing
  bool there = false;
  uint64_t mount_id = 0;  // 0: not a mount, or not known
  bool replaced = false;  // the recorded mount has gone, and this one has its place
  bool renewed = false;   // not the recorded mount, in its place or over it, and of the volume (Linux 6.8)
};

struct Circumstances {
  bool start = false;     // a berthd begins; else it runs, and something has changed
  bool rebooted = false;  // the record is of another boot
  bool leaving = false;   // nothing is mounted again any more (VolumeMachine::BeginShutdown)
};

enum class ReconcileAction {
  kFound,        // VolumeMachine::MarkFound
  kLost,         // MarkLost: only reported
  kOvermounted,  // MarkLost: another mount lies over it
  kRenewed,      // MarkFound: its plugin has mounted it again
  kRepair,       // Repair: undone and mounted again
  kResume,       // Resume: after a reboot
  kBlock,        // Hold
  kRelease,      // RequestUnpublish: its consumer has ended
  // Of the staging; they have no key.
  kStagingFound,        // MarkStagingFound
  kStagingLost,         // MarkStagingLost
  kStagingOvermounted,  // MarkStagingLost: another mount lies over it
};

struct Reconciliation {
  ReconcileAction action = ReconcileAction::kFound;
  PublicationKey key;
  std::string why;
  uint64_t mount_id = 0;  // of kRenewed

  bool operator==(const Reconciliation&) const = default;
};

// What follows for each publication of `record` for which something does. `facts` of those that are
// published.
[[nodiscard]] std::vector<Reconciliation> PlanReconciliation(
    const VolumeRecord& record, const std::map<PublicationKey, ShownMount>& facts,
    Circumstances circumstances);

// What follows for the staging of `record`; unset: nothing. A plugin may stage without any mount: then none
// is missed. Also asked just before a publish is sent.
[[nodiscard]] std::optional<Reconciliation> PlanStaging(const VolumeRecord& record, const ShownMount& shown);

// What the kernel shows where the staging's mount lies: about a microsecond.
[[nodiscard]] ShownMount LookAtStagingMount(const VolumeRecord& record, const VolumePaths& paths);

// What the kernel shows of the published publications: about a microsecond each.
[[nodiscard]] std::map<PublicationKey, ShownMount> LookAtMounts(const VolumeRecord& record,
                                                                const VolumePaths& paths);

// An event for each directory in the tree that no row of the journal accounts for, and for each mount in it.
// They are left alone: whether their volumes may go is not to be guessed. `known`: whether the journal has
// this key.
void ReportOrphans(const VolumePaths& paths, const std::function<bool(const std::string& key)>& known,
                   EventLog& events);
// Of one directory, if something is mounted in it. True if it was reported.
bool ReportOrphan(const VolumePaths& paths, const std::string& name, EventLog& events);

}  // namespace berth
