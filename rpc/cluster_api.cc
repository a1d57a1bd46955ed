#include "rpc/cluster_api.h"

#include <fmt/format.h>

#include "base/printable.h"
#include "base/process.h"
#include "base/status.h"
#include "request/request_check.h"
#include "rpc/convert_volume.h"

namespace berth {
namespace {

// `about` is what the kernel says of process `pid`.
template <class Value>
absl::StatusOr<Value> IfThere(int64_t pid, absl::StatusOr<Value> about) {
  if (!absl::IsNotFound(about.status())) return about;
  return absl::FailedPreconditionError(fmt::format("life.pid: there is no process {}", pid));
}
absl::StatusOr<uint64_t> StartOf(int64_t pid) { return IfThere(pid, StartTimeOf(static_cast<pid_t>(pid))); }
// The real user: kill(2) asks for that one, too, and not for the effective user.
absl::StatusOr<uid_t> OwnerOf(int64_t pid) { return IfThere(pid, UserOf(static_cast<pid_t>(pid))); }

// A caller that may change things names any life. Others name only a process that they could end anyway: one
// of the same user. (The process that connected may have ended, and its number be another user's by now,
// while one that it started uses the connection.) A cgroup or a unit may hold other users' processes, and
// neither names its user.
//
// The scheduler may grant the claim much later. So what is checked here is one process: its start time goes
// with its number from now on.
absl::Status PinLife(v1::ConsumerLife* life, const PeerCredentials& peer, bool may_change) {
  if (life->kind_case() != v1::ConsumerLife::kPid) {
    if (may_change || life->kind_case() == v1::ConsumerLife::KIND_NOT_SET) return absl::OkStatus();
    return absl::PermissionDeniedError(
        "life: to name a cgroup or a unit takes the right to change; without it, name a process of your own");
  }
  BERTH_ASSIGN_OR_RETURN(const uint64_t started, StartOf(life->pid()));
  if (life->start_time() != 0 && life->start_time() != started) {
    return absl::FailedPreconditionError(
        fmt::format("life.pid: process {} is another one by now", life->pid()));
  }
  life->set_start_time(started);
  if (may_change) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(const uid_t owner, OwnerOf(life->pid()));
  BERTH_ASSIGN_OR_RETURN(const uint64_t still, StartOf(life->pid()));
  if (owner == peer.uid && still == started) return absl::OkStatus();
  return absl::PermissionDeniedError(
      fmt::format("life.pid: process {} is not one of uid {}; to name another's takes the right to change",
                  life->pid(), peer.uid));
}

}  // namespace

ApiAnswer<v1::DrainNodeResponse> ClusterApi::DrainNode(v1::DrainNodeRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckDrain(request));
  BERTH_CO_RETURN_IF_ERROR(request.end() ? co_await drainer_.End(call.deadline)
                                         : co_await drainer_.Begin(request.reason(), call.deadline));
  v1::DrainNodeResponse answer;
  while (true) {
    const uint64_t seen = drainer_.version();
    auto drain = drainer_.Describe();
    const bool waits = request.wait() && !request.end();
    if (waits && !drain) co_return absl::AbortedError("the drain was ended meanwhile");
    if (!waits || drain->publications_left() == 0) {
      if (drain) *answer.mutable_drain() = *std::move(drain);
      co_return answer;
    }
    if (!co_await drainer_.WaitChange(seen, call.deadline)) {
      co_return absl::DeadlineExceededError(
          fmt::format("{} publications are left; the drain goes on", drain->publications_left()));
    }
  }
}

Awaitable<absl::Status> ClusterApi::ClaimVolume(v1::ClaimVolumeRequest request, CallInfo call,
                                                StreamWriter<v1::ClaimVolumeResponse>& out) {
  v1::Ask ask;
  BERTH_CO_ASSIGN_OR_RETURN(*ask.mutable_claim(), CheckClaim(request));
  v1::ClaimAsk& claim = *ask.mutable_claim();
  if (!call.peer) co_return absl::CancelledError("the caller has gone");
  if (claim.has_life()) BERTH_CO_RETURN_IF_ERROR(PinLife(claim.mutable_life(), *call.peer, call.may_change));
  claim.set_uid(call.peer->uid);
  claim.set_gid(call.peer->gid);
  const auto tell = [&out](std::string progress) {
    v1::ClaimVolumeResponse message;
    message.set_progress(std::move(progress));
    return out.Send(std::move(message));
  };
  BERTH_CO_ASSIGN_OR_RETURN(const v1::Answer answer,
                            co_await scheduler_.Ask(ask, request.wait(), call.deadline, tell));
  const v1::ClaimAnswer& granted = answer.claim();
  const std::string consumer = fmt::format("{}/{}", claim.namespace_(), claim.consumer());
  // By the plugin's id or its driver's name, as in a publish.
  const auto plugin_id = lookup_.PluginOf(granted.plugin_id(), granted.volume_id());
  const auto mount = mounter_.MountOf(plugin_id.ok() ? *plugin_id : granted.plugin_id(), granted.volume_id(),
                                      consumer, claim.name());
  if (!mount) {
    co_return absl::AbortedError(
        fmt::format("volume {} was granted to {}, and is not published here: ask again",
                    PrintableName(claim.volume()), PrintableName(consumer)));
  }
  v1::ClaimVolumeResponse last;
  *last.mutable_mount() = ToProto(*mount, call.may_change);
  const bool sent = co_await out.Send(std::move(last));
  co_return sent ? absl::OkStatus() : absl::CancelledError("the caller has gone");
}

ApiAnswer<v1::ReleaseClaimResponse> ClusterApi::ReleaseClaim(v1::ReleaseClaimRequest request, CallInfo call) {
  v1::Ask ask;
  BERTH_CO_ASSIGN_OR_RETURN(*ask.mutable_release(), CheckRelease(request));
  if (!call.peer) co_return absl::CancelledError("the caller has gone");
  ask.mutable_release()->set_uid(call.peer->uid);
  ask.mutable_release()->set_gid(call.peer->gid);
  BERTH_CO_RETURN_IF_ERROR(
      (co_await scheduler_.Ask(std::move(ask), request.wait(), call.deadline, {})).status());
  co_return v1::ReleaseClaimResponse();
}

}  // namespace berth
