// What a step of a volume is given, what it reports while it runs, and what has come of it.
//
// Values; on the loop thread, as the steps.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "csi/errors.h"
#include "mounter/consumer_tokens.h"
#include "mounter/volume_machine.h"
#include "mounter/volume_types.h"
#include "mounts/kernel_object.h"
#include "mounts/mount_helper.h"

namespace berth {

using Secrets = std::map<std::string, std::string>;

// Since when a reverse call of the plugin's has not returned, or is refused because it has not.
struct HungSince {
  TimePoint time;
  WallTime shown;
};

// What a step needs in addition to the record, and what an operator has requested.
struct StepInput {
  Secrets secrets = {};
  bool force = false;  // abort the file system (MNT_FORCE), before the plugin is called and while it hangs
  bool lazy = false;   // detach what stays busy (MNT_DETACH)
  // Detach before the plugin is called: an earlier call has hung in the volume, and this one would, too.
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
  // A mount was detached while it was in use. Whatever the outcome; of this try only.
  bool detached_lazily = false;
  // Of a reverse step: the plugin is not there, does not come up, or has refused it.
  bool plugin_cannot = false;
  // Only a person can remove what stands in the way, and `error` (FAILED_PRECONDITION) says what, and how.
  // The caller gets it at once; the step is tried again later.
  bool needs_person = false;
  bool permissions_set = false;  // of a publish: what it asked for of the root was applied, now
  // Of a target that was busy, or a volume that is still in use: who holds it, as `error` says in words too.
  std::vector<MountHolder> holders = {};
  // Of an unstage or a forget: the volume is still in use, and nothing was done. Repeating it at once is of
  // little use.
  bool in_use = false;
  // Of a forget: what the kernel still has of it.
  std::optional<std::vector<KernelObject>> objects = {};
  int64_t capacity_bytes = 0;  // of an expansion: what the plugin answered; 0: it did not say
  // Of a publish or a renewal that is done: how long the tokens that the plugin got are good for, if they are
  // to be renewed.
  std::optional<TokenLife> tokens = {};
  // Of a stage that is done.
  StagingMount staging = {};
  // Of kMountPath: it is mounted at its path now.
  std::optional<PathMount> path = {};
};

// Called as a step goes on: for what people see, and for what the machine must know.
struct StepProgress {
  std::function<void(std::string why)> waiting;          // for the plugin, or for its gate
  std::function<void(std::string_view rpc)> sending;     // an RPC leaves now
  std::function<void(const RpcTrace&)> answered = {};    // it has ended, in whatever way
  std::function<void(uint64_t mount_id)> detached = {};  // a mount was detached while in use
  std::function<void()> aborted = {};                    // its file system was aborted
  std::function<void(StuckView)> hangs = {};             // the RPC that runs does not return
  std::function<bool()> still_wanted = {};               // asked just before anything forward leaves
};

// Set if what goes forward must not leave any more. It may have passed the plugin's gate and lost its reason
// in one turn of the loop.
[[nodiscard]] std::optional<StepReport> NotWanted(const StepProgress& progress);

// How a call ended, from its own answer. It left at `began`: it is stuck if it was ended at `deadline`.
[[nodiscard]] StepReport ReportAnswer(CsiRpc rpc, const std::string& plugin_id, const absl::Status& status,
                                      WallTime began, TimePoint deadline);

// Before anything was sent: a plugin that is away may come back, any other failure is final.
[[nodiscard]] StepReport NotSent(const absl::Status& status);

// A failure of `helper` at `path`, as a report.
[[nodiscard]] StepReport FromHelper(const MountHelper& helper, const absl::Status& failed,
                                    const std::string& path);

}  // namespace berth
