// Carries out one step of a volume's life: the RPC, what its answer means, and what the kernel says to it.
// An OK is believed only after the kernel agrees.
//
// Owned by a VolumeActor; loop thread only. Every try ends by its deadline.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "csi/errors.h"
#include "mounter/mounter_context.h"
#include "mounter/volume_machine.h"
#include "mounter/volume_rpcs.h"

namespace berth {

using Secrets = std::map<std::string, std::string>;

struct StepReport {
  CallOutcome outcome = CallOutcome::kDone;
  absl::Status error;  // not OK unless `outcome` is kDone or kAbsent
};

// Told as a step goes on: for what people see, and for what the machine must know.
struct StepProgress {
  std::function<void(std::string why)> waiting;       // for the plugin, or for its gate
  std::function<void(std::string_view rpc)> sending;  // an RPC leaves now
};

class VolumeSteps {
 public:
  explicit VolumeSteps(MounterContext& context) : context_(context) {}

  // One try of `step`. `record` is as it was when the step began.
  [[nodiscard]] Awaitable<StepReport> Perform(VolumeRecord record, Step step, Secrets secrets,
                                              StepProgress progress, TimePoint deadline);

  // NodeExpandVolume on the volume's first publication; one try.
  struct ExpandReport {
    StepReport step;
    int64_t capacity_bytes = 0;
  };
  [[nodiscard]] Awaitable<ExpandReport> Expand(VolumeRecord record, ::csi::v1::CapacityRange range,
                                               Secrets secrets, StepProgress progress, TimePoint deadline);

  // The plugin, once it is usable; its UNAVAILABLE at `deadline`.
  [[nodiscard]] Awaitable<absl::StatusOr<PluginDirectory::Entry>> FindPlugin(std::string plugin_id,
                                                                             StepProgress progress,
                                                                             TimePoint deadline);

  // OK where the kernel shows the publication as it should be. INTERNAL: what it shows instead. Any other
  // code: it could not be asked.
  [[nodiscard]] Awaitable<absl::Status> VerifyPublished(VolumeRecord record, PublicationRecord publication,
                                                        TimePoint deadline);

 private:
  // The plugin's client and the right to call it.
  struct Admission {
    std::shared_ptr<CsiClient> client;
    std::string volumes_path;
    PluginGates::Pass pass;
  };
  [[nodiscard]] Awaitable<absl::StatusOr<Admission>> Admit(std::string plugin_id, StepProgress progress,
                                                           TimePoint deadline);

  [[nodiscard]] Awaitable<StepReport> Stage(VolumeRecord record, Secrets secrets, StepProgress progress,
                                            TimePoint deadline);
  [[nodiscard]] Awaitable<StepReport> Publish(VolumeRecord record, PublicationRecord publication,
                                              Secrets secrets, StepProgress progress, TimePoint deadline);
  [[nodiscard]] Awaitable<StepReport> Unpublish(VolumeRecord record, PublicationRecord publication,
                                                StepProgress progress, TimePoint deadline);
  [[nodiscard]] Awaitable<StepReport> Unstage(VolumeRecord record, StepProgress progress, TimePoint deadline);
  [[nodiscard]] Awaitable<StepReport> Forget(VolumeRecord record);

  // What Unpublish and Unstage have in common.
  struct Reverse {
    CsiRpc rpc;
    std::string path;
    std::string consumer;
    std::function<Awaitable<absl::Status>(const Admission&, TimePoint)> call;
    std::function<absl::StatusOr<PathFacts>()> look;
  };
  [[nodiscard]] Awaitable<StepReport> Undo(VolumeRecord record, Reverse reverse, StepProgress progress,
                                           TimePoint deadline);
  [[nodiscard]] Awaitable<absl::Status> UnmountOurselves(std::string path,
                                                         std::function<absl::StatusOr<PathFacts>()> look,
                                                         TimePoint deadline);

  // `request` as the plugin is to get it.
  template <class Request>
  [[nodiscard]] Request Seen(Request request, const Admission& admission) const {
    return SeenByPlugin(std::move(request), context_.paths->tree(), admission.volumes_path);
  }

  // Something stood in the way of removing `directory`. A mount there means that the volume is not free:
  // UNAVAILABLE. Data are left where they are, and reported: OK.
  [[nodiscard]] absl::Status OnLeftover(const VolumeRecord& record, const std::string& directory,
                                        const absl::Status& error);
  void ReportLie(const VolumeRecord& record, const std::string& consumer, const std::string& message);
  void Sending(const StepProgress& progress, CsiRpc rpc) const;
  void Answered(CsiRpc rpc) const;

  MounterContext& context_;
};

}  // namespace berth
