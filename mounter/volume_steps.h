// Carries out one step of a volume's life: the RPC, what its answer means, and what the kernel says to it.
// An OK is believed only after the kernel agrees; what the kernel is asked costs the same with any number of
// mounts. A plugin that says OK and lies is named in the event plugin.lied.
//
//   volume_steps.cc   the way in: stage, publish; and removing what is left at the end
//   volume_expand.cc  expand
//   volume_undo.cc    the way out: unpublish, unstage; busy targets, force, lazy
//   volume_path_steps.cc  the second mount of what is published, at the path that its file names
//
// Owned by a VolumeActor; loop thread only. Every try ends by its deadline.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "csi/errors.h"
#include "mounter/consumer_tokens.h"
#include "mounter/mounter_context.h"
#include "mounter/volume_machine.h"
#include "mounter/volume_rpcs.h"

namespace berth {

using Secrets = std::map<std::string, std::string>;

// Since when a reverse call of the plugin's has not returned, or is refused because it has not.
struct HungSince {
  TimePoint time;
  WallTime shown;
};

// What a step needs besides the record, and what an operator allowed.
struct StepInput {
  Secrets secrets = {};
  bool force = false;  // abort the file system (MNT_FORCE), before the plugin is called and while it hangs
  bool lazy = false;   // detach what stays busy (MNT_DETACH)
  // Detach before the plugin is called: a call has hung in the volume before, and it would hang there, too.
  bool detach_first = false;
  // Of a reverse step: whether `force` has aborted the file system before, and since when the plugin hangs.
  bool aborted = false;
  std::optional<HungSince> hung_since = {};
};

struct StepReport {
  CallOutcome outcome = CallOutcome::kDone;
  absl::Status error = {};  // not OK unless `outcome` is kDone or kAbsent
  // The try ended at its deadline because the plugin, or a helper, did not come back.
  std::optional<StuckView> stuck = {};
  // A mount is out of sight, and its file system may live on. Whatever the outcome; of this try only.
  bool detached_lazily = false;
  // Of a reverse step: the plugin is not there, does not come up, or has refused it.
  bool plugin_cannot = false;
  bool permissions_set = false;  // of a publish: what it asked for of the root was applied, now
  // Of a target that was busy, or a volume that is still in use: who holds it, as `error` says in words too.
  std::vector<MountHolder> holders = {};
  // Of an unstage or a forget: the volume is still in use, and nothing was done. Repeating it at once is of
  // little use.
  bool in_use = false;
  // Of a forget: what the kernel still has of it.
  std::optional<std::vector<KernelObject>> objects = {};
  int64_t capacity_bytes = 0;  // of an expansion: what the plugin answered; 0: it did not say
  // Of a publish or a renewal that is done: how long what the plugin was given is good for, where it is to be
  // renewed.
  std::optional<TokenLife> tokens = {};
  // Of kMountPath: it is mounted at its path now.
  std::optional<PathMount> path = {};
};

// Told as a step goes on: for what people see, and for what the machine must know.
struct StepProgress {
  std::function<void(std::string why)> waiting;          // for the plugin, or for its gate
  std::function<void(std::string_view rpc)> sending;     // an RPC leaves now
  std::function<void(const RpcTrace&)> answered = {};    // it has ended, however
  std::function<void(uint64_t mount_id)> detached = {};  // a mount was detached while in use
  std::function<void()> aborted = {};                    // its file system was aborted
  std::function<void(StuckView)> hangs = {};             // the RPC that runs does not return
  std::function<bool()> still_wanted = {};               // asked just before anything forward leaves
};

class VolumeSteps {
 public:
  explicit VolumeSteps(MounterContext& context) : context_(context) {}

  // One try of `step`. `record` is as it was when the step began.
  [[nodiscard]] Awaitable<StepReport> Perform(VolumeRecord record, Step step, StepInput input,
                                              StepProgress progress, TimePoint deadline);

  // NodeExpandVolume where the volume is published, or staged; one try.
  [[nodiscard]] Awaitable<StepReport> Expand(VolumeRecord record, ::csi::v1::CapacityRange range,
                                             Secrets secrets, StepProgress progress, TimePoint deadline);

  // Unmounts what is being unpublished, and what is staged where nobody else uses that, without the plugin.
  // kDone: it is gone, and where it was all of the volume the kernel has released that.
  [[nodiscard]] Awaitable<StepReport> ReleaseWithoutPlugin(VolumeRecord record, StepInput input,
                                                           StepProgress progress, TimePoint deadline);

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
    bool pod_info = false;
    PluginGates::Pass pass;
  };
  [[nodiscard]] Awaitable<absl::StatusOr<Admission>> Admit(CsiRpc rpc, std::string plugin_id,
                                                           StepProgress progress, TimePoint deadline);

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
  // Who uses a staged volume outside of this mount namespace, as a report; unset: nobody.
  [[nodiscard]] Awaitable<std::optional<StepReport>> InUseOutside(VolumeRecord record, TimePoint deadline);
  // Mounts what is published at its path too; or unmounts it where it may be mounted and is not wanted. One
  // of the two.
  [[nodiscard]] Awaitable<StepReport> MountPath(VolumeRecord record, PublicationRecord publication,
                                                StepInput input, StepProgress progress, TimePoint deadline);
  // Unmounts it at `path_made`; kDone where it is not mounted there, whatever else is.
  [[nodiscard]] Awaitable<StepReport> UnmountPath(VolumeRecord record, PublicationRecord publication,
                                                  StepInput input, StepProgress progress, TimePoint deadline);
  // What outlives its row.

  // What Unpublish and Unstage have in common.
  struct Reverse {
    CsiRpc rpc;
    std::string path;
    std::string consumer;
    std::function<Awaitable<absl::Status>(const Admission&, TimePoint)> call;
    std::function<absl::StatusOr<PathFacts>()> look;
    // Makes the directories that the plugin counts on, where a reboot took them away.
    std::function<absl::Status()> remake;
    uint64_t mount_id = 0;  // of what is to be undone; 0: not known
  };
  [[nodiscard]] Reverse UnpublishCall(const VolumeRecord& record, const PublicationRecord& publication) const;
  [[nodiscard]] Reverse UnstageCall(const VolumeRecord& record) const;
  [[nodiscard]] Awaitable<StepReport> Undo(VolumeRecord record, Reverse reverse, StepInput input,
                                           StepProgress progress, TimePoint deadline);
  // What becomes of a reverse call, beside its answer.
  struct CallWatch {
    HungSince hung_since;
    bool aborted = false;
    bool detached = false;
    bool restart = false;  // it was given up, and the plugin is to be restarted
  };
  // While a reverse call does not return: aborts the file system again (`force`), detaches it (`lazy`), and
  // reports that the plugin hangs. Returns true when the call is to be given up: it may wait in what was
  // detached meanwhile, or `restart` is set.
  [[nodiscard]] Awaitable<bool> WatchCall(VolumeRecord record, Reverse reverse, StepInput input,
                                          StepProgress progress, TimePoint deadline,
                                          std::shared_ptr<CallWatch> watch);
  // Detaches what is mounted at the path, and reports it. OK where nothing is.
  [[nodiscard]] Awaitable<absl::Status> Detach(VolumeRecord record, Reverse reverse, StepProgress progress,
                                               TimePoint deadline);
  // The plugin answered that it does not have the step, and by now its capabilities do not name it: an update
  // has dropped it. The mount is ours to take away then.
  [[nodiscard]] bool HasNoSuchStep(const VolumeRecord& record, const Reverse& reverse,
                                   const absl::Status& answer) const;
  // The plugin itself hangs, as far as berthd can know: no mount of the volume is left that it could wait
  // for.
  [[nodiscard]] static bool PluginHangs(const Reverse& reverse, const CallWatch& watch);
  // Whether its file wants the plugin to be restarted now.
  [[nodiscard]] bool RestartIsDue(const VolumeRecord& record, const Reverse& reverse,
                                  const CallWatch& watch) const;
  [[nodiscard]] Awaitable<StepReport> RestartHung(VolumeRecord record, Reverse reverse, HungSince since,
                                                  TimePoint deadline);
  // Asks the plugin, and unmounts what it leaves, until nothing is mounted at the path.
  [[nodiscard]] Awaitable<StepReport> TakeBack(VolumeRecord record, Reverse reverse, StepInput input,
                                               StepProgress progress, TimePoint deadline);
  // Takes away what somebody mounted over the mount `mount_id`, or where that was: a plugin may refuse to
  // touch what is not its own, or take it for that. OK where the id is not known.
  [[nodiscard]] Awaitable<absl::Status> Uncover(std::function<absl::StatusOr<PathFacts>()> look,
                                                std::string path, uint64_t mount_id, TimePoint deadline);
  // The same of the staging, before it is staged again. What is left there is told, with who keeps it busy.
  [[nodiscard]] Awaitable<StepReport> UncoverStaging(VolumeRecord record, TimePoint deadline);
  // Takes away every mount that lies at the path, the topmost first.
  [[nodiscard]] Awaitable<absl::Status> UnmountOurselves(std::string path,
                                                         std::function<absl::StatusOr<PathFacts>()> look,
                                                         UnmountOptions options, TimePoint deadline);
  // Aborts the file system at the path, if one is mounted there. It may be busy or gone afterwards; an error
  // only where the helper does not come back.
  [[nodiscard]] Awaitable<absl::Status> Abort(Reverse reverse, StepProgress progress, TimePoint deadline);
  // `report`, with who keeps the path busy where somebody does.
  [[nodiscard]] Awaitable<StepReport> WithHolders(VolumeRecord record, StepReport report, std::string path,
                                                  TimePoint deadline);
  // That the mount at a target, whose path is `path`, shows what was staged, or at least not the tree itself.
  // INTERNAL: it does not. UNAVAILABLE: it has gone meanwhile.
  [[nodiscard]] absl::Status VerifyFileSystem(const VolumeRecord& record, const PathFacts& target,
                                              const std::string& path) const;
  // FAILED_PRECONDITION where somebody's files lie in the directory at a target that nothing is mounted on.
  [[nodiscard]] absl::Status TargetIsFree(const VolumeRecord& record,
                                          const PublicationRecord& publication) const;
  // The mount `mount_id` at `path` was detached while it was in use.
  void ReportDetached(const VolumeRecord& record, const std::string& path, const std::string& consumer,
                      uint64_t mount_id, const StepProgress& progress);
  // After an expansion: of a raw block volume the kernel has to show at least `wanted` bytes. UNAVAILABLE
  // names both sizes. OK also where the kernel does not say.
  [[nodiscard]] absl::Status DeviceHasGrown(const VolumeRecord& record, int64_t wanted) const;
  // A helper's failure as a report.
  [[nodiscard]] StepReport FromHelper(const absl::Status& failed, const std::string& path) const;

  // One RPC, told of before and after. The call is begun here.
  template <class Response>
  [[nodiscard]] Awaitable<absl::StatusOr<Response>> Ask(CsiRpc rpc, StepProgress progress,
                                                        Awaitable<absl::StatusOr<Response>> call) {
    const RpcTrace begun = Sending(progress, rpc);
    const TimePoint start = Clock::now();
    absl::StatusOr<Response> answer = co_await std::move(call);
    Answered(progress, rpc, begun, Clock::now() - start, answer.status());
    co_return answer;
  }
  [[nodiscard]] Awaitable<absl::Status> Ask(CsiRpc rpc, StepProgress progress, Awaitable<absl::Status> call);
  [[nodiscard]] RpcTrace Sending(const StepProgress& progress, CsiRpc rpc) const;
  void Answered(const StepProgress& progress, CsiRpc rpc, RpcTrace trace, Duration took,
                const absl::Status& status) const;

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

  MounterContext& context_;
};

// Mounter::FreePath. `helper` outlives it.
[[nodiscard]] Awaitable<absl::Status> FreePublishedPath(MountHelper& helper, std::string path,
                                                        TimePoint deadline);

// What a step's source files share.
namespace volume_steps_internal {

// Set where what goes forward is not to leave any more. Whoever waited for the plugin's gate may be let in,
// and lose its reason to go, in one turn of the loop.
[[nodiscard]] std::optional<StepReport> NotWanted(const StepProgress& progress);

// How a call ended, from its own answer. `began` is when it left: it is stuck if it was given up at
// `deadline`.
[[nodiscard]] StepReport Report(CsiRpc rpc, const std::string& plugin_id, const absl::Status& status,
                                WallTime began, TimePoint deadline);
// Before anything was sent: a plugin that is away may come back, anything else stays as it is.
[[nodiscard]] StepReport NotSent(const absl::Status& status);
// FAILED_PRECONDITION where `facts` of a path show a symbolic link: no plugin is given such a path.
[[nodiscard]] absl::Status SafeToHandOut(const absl::StatusOr<PathFacts>& facts, const std::string& path);

}  // namespace volume_steps_internal

}  // namespace berth
