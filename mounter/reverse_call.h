// One NodeUnpublishVolume or NodeUnstageVolume, repeated until the kernel shows nothing at its path.
//
//   force: abort the file system ──► pause its probes ──► detach_first: detach
//      ──► the plugin and its gate ──► unmount overlays ──► call ◄─────────────────────────┐
//            answered OK, and nothing is mounted: done                                     │
//            answered OK, and something is: plugin.lied; call again, then unmount ourselves┘
//            answered an error: name who keeps it busy; lazy: detach, and call again
//            does not return: abort again, detach, restart the plugin (as the levers and its file allow)
//
// Owned by the step that makes it, and outlives what its coroutines return; loop thread only. Every try ends
// by its deadline. Of the levers in StepInput nothing is done without an operator's request.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/task_scope.h"
#include "csi/errors.h"
#include "mounter/mounter_context.h"
#include "mounter/plugin_caller.h"
#include "mounter/step_report.h"
#include "mounter/volume_record.h"
#include "mounts/tree_access.h"

namespace berth {

class ReverseCall {
 public:
  [[nodiscard]] static ReverseCall Unpublish(MounterContext& context, VolumeRecord record,
                                             const PublicationRecord& publication, StepProgress progress,
                                             TimePoint deadline);
  [[nodiscard]] static ReverseCall Unstage(MounterContext& context, VolumeRecord record,
                                           StepProgress progress, TimePoint deadline);

  // The whole of it, once. kDone: nothing is mounted at the path.
  [[nodiscard]] Awaitable<StepReport> Run(StepInput input);

  // Unmounts it without the plugin; `lazy`: detaches what stays busy. kDone: nothing is mounted at the path.
  [[nodiscard]] Awaitable<StepReport> UnmountWithoutPlugin(bool lazy);

  // Unmounts only what others have mounted over it. kRetry: some of that stays, with who keeps it busy.
  [[nodiscard]] Awaitable<StepReport> RemoveOverlays();

 private:
  // What is to be undone, and how.
  struct Target {
    CsiRpc rpc;
    std::string path;
    std::function<std::string()> top;  // where the mount lies that is unmounted first
    std::string consumer;
    std::function<Awaitable<absl::Status>(const PluginCaller::Admission&, TimePoint)> call;
    std::function<absl::StatusOr<PathFacts>()> look;
    // Makes the directories that the plugin counts on, if a reboot took them away.
    std::function<absl::Status()> remake;
    uint64_t mount_id = 0;  // 0: not known
  };

  ReverseCall(MounterContext& context, VolumeRecord record, Target target, StepProgress progress,
              TimePoint deadline);

  [[nodiscard]] Awaitable<StepReport> CallUntilUnmounted();
  // One call, and what the kernel shows after it. Unset: call again.
  [[nodiscard]] Awaitable<std::optional<StepReport>> CallOnce(const PluginCaller::Admission& admission,
                                                              int number);
  // The plugin answered OK, and something is mounted still. Unset: call again.
  [[nodiscard]] Awaitable<std::optional<StepReport>> UnmountAfterOk(absl::Status answer, CallOutcome outcome,
                                                                    PathFacts facts, int number);
  // The plugin could not be called.
  [[nodiscard]] StepReport NotAdmitted(const absl::Status& why) const;

  // While the call does not return: aborts the file system again (`force`), detaches it (`lazy`), and reports
  // that the plugin hangs. Returns true when the call is to be ended: it may wait in what was detached
  // meanwhile, or the plugin is to be restarted.
  [[nodiscard]] Awaitable<bool> WatchCall();
  // The plugin itself hangs, as far as berthd can know: no mount of the volume is left that it could wait
  // for.
  [[nodiscard]] bool PluginHangs() const;
  [[nodiscard]] StuckView Hanging() const;
  // Whether the plugin's file asks for a restart by now.
  [[nodiscard]] bool RestartIsDue() const;
  [[nodiscard]] Awaitable<StepReport> RestartHung();

  // The plugin answered that it does not have the step, and by now its capabilities do not name it: an update
  // has dropped it. The mount is ours to unmount then.
  [[nodiscard]] bool HasNoSuchStep(const absl::Status& answer) const;

  // Aborts the file system at the path, if one is mounted there. It may be busy or gone afterwards; an error
  // only if the helper does not come back.
  [[nodiscard]] Awaitable<absl::Status> Abort(TimePoint deadline);
  // Detaches what is mounted at the path, and reports it. OK if nothing is.
  [[nodiscard]] Awaitable<absl::Status> LazyUnmount();
  // Unmounts everything at the path, the topmost first.
  [[nodiscard]] Awaitable<absl::Status> UnmountOurselves(UnmountOptions options, TimePoint deadline);
  // Mounts that others made over our mount: a plugin may refuse to touch a foreign mount, or take it for its
  // own. OK if the id of ours is not known.
  [[nodiscard]] Awaitable<absl::Status> UnmountOverlays();

  [[nodiscard]] StepReport Unmounted() const { return {.detached_lazily = detached_}; }
  [[nodiscard]] StepReport Failed(const absl::Status& status) const {
    return FromHelper(context_.helper, status, target_.path);
  }

  MounterContext& context_;
  PluginCaller caller_;
  VolumeRecord record_;
  Target target_;
  StepProgress progress_;
  TimePoint deadline_;

  StepInput input_;
  absl::Status overlays_;  // why some of them stay
  HungSince hung_since_{};
  bool aborted_ = false;
  bool detached_ = false;
  bool restart_ = false;  // the call was ended, and the plugin is to be restarted
};

// `report`, with who keeps `path` busy, if anybody does.
[[nodiscard]] Awaitable<StepReport> WithHolders(MounterContext& context, VolumeRecord record,
                                                StepReport report, std::string path, TimePoint deadline);

// The mount `mount_id` at `path` was detached while it was in use.
void ReportDetached(MounterContext& context, const VolumeRecord& record, const std::string& path,
                    const std::string& consumer, uint64_t mount_id, const StepProgress& progress);

}  // namespace berth
