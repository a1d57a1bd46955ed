// Carries out one step of a volume's life: the RPC, what its answer means, and what the kernel says to it.
// An OK is believed only after the kernel agrees; what the kernel is asked costs the same with any number of
// mounts. A plugin that says OK and lies is named in the event plugin.lied.
//
//   volume_steps.cc       stage, publish, unpublish, unstage; and removing what is left at the end
//   volume_expand.cc      expand
//   volume_path_steps.cc  the second mount of what is published, at the path that its file names
//
// An unpublish and an unstage call the plugin through reverse_call.h; what a publish has mounted is checked
// by verify_published.h.
//
// Owned by a VolumeActor; loop thread only. Every try ends by its deadline.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <optional>
#include <string>

#include "mounter/consumer_tokens.h"
#include "mounter/mounter_context.h"
#include "mounter/plugin_caller.h"
#include "mounter/step_report.h"
#include "mounter/volume_machine.h"

namespace berth {

class VolumeSteps {
 public:
  explicit VolumeSteps(MounterContext& context) : context_(context), caller_(context) {}

  // One try of `step`. `record` is as it was when the step began.
  [[nodiscard]] Awaitable<StepReport> Perform(VolumeRecord record, Step step, StepInput input,
                                              StepProgress progress, TimePoint deadline);

  // NodeExpandVolume where the volume is published, or staged; one try.
  [[nodiscard]] Awaitable<StepReport> Expand(VolumeRecord record, ::csi::v1::CapacityRange range,
                                             Secrets secrets, StepProgress progress, TimePoint deadline);

  // Unmounts what is being unpublished, and the staging if no other publication uses it, without the plugin.
  // kDone: it is gone, and if it was all of the volume the kernel has released that.
  [[nodiscard]] Awaitable<StepReport> ReleaseWithoutPlugin(VolumeRecord record, StepInput input,
                                                           StepProgress progress, TimePoint deadline);

 private:
  [[nodiscard]] Awaitable<StepReport> Stage(VolumeRecord record, PublicationRecord publication,
                                            Secrets secrets, StepProgress progress, TimePoint deadline);
  [[nodiscard]] Awaitable<StepReport> Publish(VolumeRecord record, PublicationRecord publication,
                                              Secrets secrets, StepProgress progress, TimePoint deadline);
  // The same of what is published already, with the tokens that its plugin wants.
  [[nodiscard]] Awaitable<StepReport> PublishWith(VolumeRecord record, PublicationRecord publication,
                                                  Secrets secrets, PluginTokens tokens, StepProgress progress,
                                                  TimePoint deadline);
  // The tokens that the plugin wants for a publication, made out now; none where it wants none. Errors as
  // TokenSource has them, and FindPlugin: tokens grow old, so it has to be there first.
  [[nodiscard]] Awaitable<absl::StatusOr<PluginTokens>> GetTokens(VolumeRecord record,
                                                                  PublicationRecord publication,
                                                                  StepProgress progress, TimePoint deadline);
  [[nodiscard]] Awaitable<StepReport> SetPermissions(std::string path, RootPermissions permissions,
                                                     TimePoint deadline);
  [[nodiscard]] Awaitable<StepReport> Unpublish(VolumeRecord record, PublicationRecord publication,
                                                StepInput input, StepProgress progress, TimePoint deadline);
  [[nodiscard]] Awaitable<StepReport> Unstage(VolumeRecord record, StepInput input, StepProgress progress,
                                              TimePoint deadline);
  [[nodiscard]] Awaitable<StepReport> Forget(VolumeRecord record, TimePoint deadline);
  // The users of a staged volume outside of this mount namespace, as a report; unset: there are none.
  [[nodiscard]] Awaitable<std::optional<StepReport>> InUseOutside(VolumeRecord record, TimePoint deadline);
  // Mounts what is published at its path too; or unmounts it where it may be mounted and is not wanted. One
  // of the two.
  [[nodiscard]] Awaitable<StepReport> MountPath(VolumeRecord record, PublicationRecord publication,
                                                StepInput input, StepProgress progress, TimePoint deadline);
  // Unmounts it at `path_made`; kDone where it is not mounted there, whatever else is.
  [[nodiscard]] Awaitable<StepReport> UnmountPath(VolumeRecord record, PublicationRecord publication,
                                                  StepInput input, StepProgress progress, TimePoint deadline);
  // CheckSame against every volume here that is the same.
  [[nodiscard]] absl::Status CheckAlone(const VolumeRecord& record,
                                        const PublicationRecord& publication) const;
  // FAILED_PRECONDITION if nothing is mounted at a target and files lie in its directory.
  [[nodiscard]] absl::Status TargetIsFree(const VolumeRecord& record,
                                          const PublicationRecord& publication) const;
  // After an expansion: of a raw block volume the kernel has to show at least `wanted` bytes. UNAVAILABLE
  // names both sizes. OK also where the kernel does not say.
  [[nodiscard]] absl::Status DeviceHasGrown(const VolumeRecord& record, int64_t wanted) const;
  // Something stood in the way of removing `directory`. A mount there means that the volume is not free:
  // UNAVAILABLE. Data are left where they are, and reported: OK.
  [[nodiscard]] absl::Status OnLeftover(const VolumeRecord& record, const std::string& directory,
                                        const absl::Status& error);

  MounterContext& context_;
  PluginCaller caller_;
};

// Mounter::FreePath. `helper` outlives it.
[[nodiscard]] Awaitable<absl::Status> FreePublishedPath(MountHelper& helper, std::string path,
                                                        TimePoint deadline);

}  // namespace berth
