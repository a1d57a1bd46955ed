// What the parts of one volume's actor share: its record and its row in the journal, its queue, what its
// steps were given, and what people see of them.
//
//   volume_actor.h       works on the queue; what an unpublish and an expansion do
//   volume_publisher.h   what a publish does before its steps
//   volume_driver.h      steps: tried, repeated, ended for what supersedes them, written down
//   volume_reconciler.h  what the kernel, consumers and others change, and what may go forward
//   volume_health.h      NodeGetVolumeStats and NodeGetVolumeHealth, past the queue
//
// Owned by the actor, and outlives the other parts; loop thread only.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/task_scope.h"
#include "mounter/forced_options.h"
#include "mounter/mounter_context.h"
#include "mounter/step_report.h"
#include "mounter/step_status.h"
#include "mounter/token_renewer.h"
#include "mounter/volume_machine.h"
#include "mounter/volume_queue.h"
#include "mounter/volume_reporter.h"

namespace berth {

// The row of one volume in the journal, and its identity file.
struct VolumeRow {
  MounterContext& context;
  const VolumeMachine& machine;
  const std::string& key;
  // The row on the disk is not what holds: a commit failed after the plugin had done its part.
  bool stale = false;

  [[nodiscard]] Awaitable<absl::Status> Commit();
  void SaveSoon() const;
  // Without waiting for the disk.
  void WriteIdentity() const;
  void SyncIdentitySoon() const;
};

struct VolumeState {
  VolumeState(MounterContext& ctx, VolumeMachine initial);
  VolumeState(const VolumeState&) = delete;
  VolumeState& operator=(const VolumeState&) = delete;

  MounterContext& context;
  VolumeMachine machine;
  const std::string key;  // in the journal, and of the directory
  VolumeReporter reporter;
  VolumeRow row;
  VolumeQueue queue;
  Condition changed;  // the queue, the time of the next retry, or the context's stopping

  // The secrets of publications that are on their way; dropped once these have arrived or are released.
  // Secrets that cannot be read again stay while tokens are renewed, which repeats the call with them.
  std::map<PublicationKey, Secrets> secrets;
  TokenRenewer tokens;
  ForcedOptions forced;

  Step trying;        // the try that runs
  bool sent = false;  // it has called the plugin
  StepStatus status;
  std::set<PublicationKey> remounting;     // mounted again: its consumer has to know
  bool reconcile_again = false;            // something has changed while a renewal's call ran
  std::optional<ConditionView> condition;  // as its plugin said last

  // Begins now to finish what is pending, or goes on with it at once. Set by the actor; harmless once the
  // actor is gone.
  std::function<void()> start;
  VolumeReporter::OnConsumerEnded on_consumer_ended;

  // VolumeReporter's, with on_consumer_ended.
  void ReportUsers() { reporter.ReportUsers(on_consumer_ended); }

  // What the kernel has at `path`, as the mount `mount_id` (0: any), is noted in the record: it has to be
  // gone before the volume counts as released. kBefore: it was there before, so a disk that has the number of
  // a recorded one by now is not the volume's.
  enum class Noted { kNow, kBefore };
  void NoteObjects(const std::string& path, uint64_t mount_id, Noted noted);
};

}  // namespace berth
