#include "scheduler/decide/claim_machine.h"

#include <absl/status/status.h>
#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <utility>

#include "base/backoff.h"
#include "base/status.h"

namespace berth::scheduler {
namespace {

using google::protobuf::operator>=;

using Kind = ClaimStep::Kind;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr Duration kFirstPause = seconds(1);
constexpr Duration kLongestPause = minutes(2);
// After an error that a repeat does not end.
constexpr Duration kPauseAfterFailure = minutes(5);
// A repeat joins what is still running. So a slow step holds up an id for no longer than this.
constexpr int kOperationSeconds = 120;
// State follows a result within a second or so.
constexpr Duration kShownWithin = seconds(10);
constexpr size_t kErrorLimit = 1024;
// What is recorded has to fit into a transaction.
constexpr size_t kMountLimit = size_t{64} << 10;

const v1::Publication* Find(const pb::ClaimRecord& claim, const ClaimNode& node) {
  if (node.volume == nullptr) return nullptr;
  const std::string consumer = claim.namespace_() + "/" + claim.request().consumer();
  for (const v1::Publication& publication : node.volume->publications()) {
    if (publication.origin() == v1::SCHEDULER && publication.consumer() == consumer &&
        publication.name() == claim.request().name())
      return &publication;
  }
  return nullptr;
}

// The node does no step forward for it. Empty: it does.
std::string Blocked(const pb::ClaimRecord& claim, const ClaimNode& node) {
  const v1::Publication* const publication = Find(claim, node);
  if (publication == nullptr) return "";
  if (!publication->blocked().empty()) return Printable(publication->blocked(), kErrorLimit);
  return publication->awaiting_secrets() ? "it waits for secrets" : "";
}

// State does not show it, and is complete.
bool IsMissing(const pb::ClaimRecord& claim, const ClaimNode& node) {
  return Find(claim, node) == nullptr && (node.volume == nullptr || node.volume->publications_omitted() == 0);
}

// The mount of a claim has to be made again.
bool MountLost(const ClaimState& claim, const ClaimNode& node) {
  if (claim.record.mount_boot_id() != node.boot_id) return true;
  if (!Blocked(claim.record, node).empty()) return true;
  // A result and the State of its volume come in any order, so its absence counts on a later stream alone.
  return claim.stream != node.stream && IsMissing(claim.record, node);
}

ClaimStep Ask(ClaimState claim, const ClaimNode& node, Kind kind) {
  pb::ClaimOperation& operation = *claim.record.mutable_operation();
  operation.set_unpublish(kind == Kind::kUnpublish);
  operation.set_run_id(node.run_id);
  if (kind == Kind::kPublish) {
    claim.record.clear_mount();
    claim.record.set_sent(true);
  }
  return {.kind = kind, .after = std::move(claim)};
}

// Its operation has failed: it is repeated under a new id.
ClaimStep TryAgain(ClaimState claim, int code, std::string_view error, Duration pause, TimePoint now) {
  claim.record.set_code(code);
  claim.record.set_error(Printable(error, kErrorLimit));
  claim.record.set_tries(claim.record.tries() + 1);
  claim.not_before = now + pause;
  return {.kind = Kind::kWrite, .after = std::move(claim)};
}

void Succeeded(pb::ClaimRecord& claim) {
  claim.set_code(0);
  claim.clear_error();
  claim.set_tries(0);
}

std::string StillThere(const v1::UnpublishVolumeResponse& answer) {
  if (answer.without_plugin())
    return "it was unmounted without its plugin, which has not undone its part yet";
  if (!answer.still_in_use())
    return fmt::format("{} other uses of the volume are left on its node", answer.uses_left());
  return answer.used_by().empty() ? "the kernel of its node still has the volume"
                                  : fmt::format("still used by {}", Printable(answer.used_by(), kErrorLimit));
}

ClaimStep ApplyPublish(ClaimState claim, const v1::OperationResult& result, const ClaimNode& node,
                       Duration pause, TimePoint now) {
  pb::ClaimRecord& record = claim.record;
  if (result.outcome() == v1::OUTCOME_DONE) {
    if (!result.has_publish() || result.publish().target_path().empty()) {
      return TryAgain(std::move(claim), static_cast<int>(absl::StatusCode::kInternal),
                      "the node says that it is published, and not where", pause, now);
    }
    v1::PublishVolumeResponse mount = result.publish();
    mount.clear_volume();
    if (mount.ByteSizeLong() > kMountLimit) {
      return TryAgain(std::move(claim), static_cast<int>(absl::StatusCode::kInternal),
                      fmt::format("the node says of the mount more than {} bytes", kMountLimit), pause, now);
    }
    // Of a boot that is over: a reboot ends every mount.
    if (result.boot_id() != node.boot_id) {
      return TryAgain(std::move(claim), static_cast<int>(absl::StatusCode::kAborted),
                      "it was published in another boot of its node", pause, now);
    }
    if (const std::string blocked = Blocked(record, node); !blocked.empty()) {
      return TryAgain(std::move(claim), static_cast<int>(absl::StatusCode::kFailedPrecondition),
                      fmt::format("blocked on its node: {}", blocked), pause, now);
    }
    Succeeded(record);
    record.set_was_mounted(true);
    *record.mutable_mount() = std::move(mount);
    record.set_mount_boot_id(result.boot_id());
    claim.stream = node.stream;
    claim.shown_by = now + kShownWithin;
    return {.kind = Kind::kWrite, .after = std::move(claim)};
  }
  if (result.outcome() != v1::OUTCOME_REFUSED && result.outcome() != v1::OUTCOME_FAILED)
    return TryAgain(std::move(claim), result.code(), result.message(), pause, now);
  if (record.was_mounted())
    return TryAgain(std::move(claim), result.code(), result.message(), kPauseAfterFailure, now);
  record.set_code(result.code());
  record.set_error(Printable(result.message(), kErrorLimit));
  return Leave(claim, "it could not be published");
}

ClaimStep ApplyUnpublish(ClaimState claim, const v1::OperationResult& result, bool others_there,
                         Duration pause, TimePoint now) {
  if (result.outcome() == v1::OUTCOME_DONE) {
    if (!result.has_unpublish()) {
      return TryAgain(std::move(claim), static_cast<int>(absl::StatusCode::kInternal),
                      "the node says that it is unpublished, and not what is left", pause, now);
    }
    const v1::UnpublishVolumeResponse& answer = result.unpublish();
    if (!answer.still_in_use() && !answer.without_plugin() && (answer.uses_left() == 0 || others_there))
      return {.kind = Kind::kEnd, .after = std::move(claim)};
    return TryAgain(std::move(claim), static_cast<int>(absl::StatusCode::kFailedPrecondition),
                    StillThere(answer), pause, now);
  }
  const bool failed = result.outcome() == v1::OUTCOME_REFUSED || result.outcome() == v1::OUTCOME_FAILED;
  return TryAgain(std::move(claim), result.code(), result.message(), failed ? kPauseAfterFailure : pause,
                  now);
}

}  // namespace

ClaimStep Next(const ClaimState& claim, const ClaimNode& node, TimePoint now) {
  const pb::ClaimRecord& record = claim.record;
  ClaimStep nothing{.after = claim};
  if (record.has_operation()) return nothing;
  if (record.phase() == pb::ClaimRecord::LEAVING) {
    if (!record.sent()) return {.kind = Kind::kEnd, .after = claim};
    return node.synced && now >= claim.not_before ? Ask(claim, node, Kind::kUnpublish) : nothing;
  }
  if (!node.ready || now < claim.not_before) return nothing;
  if (!record.has_mount() || MountLost(claim, node)) return Ask(claim, node, Kind::kPublish);
  if (Find(record, node) != nullptr) nothing.after.shown_by = {};
  nothing.after.stream = node.stream;
  return nothing;
}

ClaimStep Apply(const ClaimState& claim, const v1::OperationResult& result, const ClaimNode& node,
                bool others_there, TimePoint now, double random) {
  const Duration pause = Backoff(static_cast<int>(std::min(claim.record.tries(), 1000U)) + 1, kFirstPause,
                                 kLongestPause, random);
  const bool unpublish = claim.record.operation().unpublish();
  ClaimState after = claim;
  after.record.clear_operation();
  // The node has forgotten what became of it.
  if (result.refusal() != v1::REFUSAL_NONE)
    return TryAgain(std::move(after), result.code(), result.message(), pause, now);
  return unpublish ? ApplyUnpublish(std::move(after), result, others_there, pause, now)
                   : ApplyPublish(std::move(after), result, node, pause, now);
}

ClaimStep Leave(const ClaimState& claim, std::string cause) {
  ClaimState after = claim;
  pb::ClaimRecord& record = after.record;
  record.set_phase(pb::ClaimRecord::LEAVING);
  record.set_cause(std::move(cause));
  record.set_tries(0);
  record.clear_mount();
  if (record.has_operation()) {
    *record.mutable_retired() = record.operation();
    record.clear_operation();
  }
  after.not_before = {};
  return {.kind = Kind::kWrite, .after = std::move(after)};
}

EndOf IsEndOf(const ClaimState& claim, const ClaimNode& node, const v1::EndedConsumer* consumer,
              bool at_synced, TimePoint now) {
  const pb::ClaimRecord& record = claim.record;
  if (!record.sent()) return EndOf::kAnother;
  if (record.phase() == pb::ClaimRecord::LEAVING) return EndOf::kThis;
  if (!node.synced) return EndOf::kUnknown;
  if (const v1::Publication* const publication = Find(record, node); publication != nullptr) {
    if (publication->state() == v1::UNPUBLISHING || publication->state() == v1::UNSTAGING)
      return EndOf::kThis;
    if (!at_synced) return EndOf::kUnknown;
    // By the node's own clock. It may not have come to undo it yet.
    const bool after = consumer != nullptr && consumer->has_ended_at() && publication->has_published_at() &&
                       consumer->ended_at() >= publication->published_at();
    return after ? EndOf::kThis : EndOf::kAnother;
  }
  // What is not in State now may have been there, or may come.
  const bool was_there = record.has_mount() && (now >= claim.shown_by || claim.stream != node.stream);
  return was_there && IsMissing(record, node) ? EndOf::kThis : EndOf::kUnknown;
}

v1::Operation OperationOf(const pb::ClaimRecord& claim) {
  v1::Operation operation;
  operation.set_id(claim.operation().id());
  operation.mutable_timeout()->set_seconds(kOperationSeconds);
  const v1::PublishVolumeRequest& request = claim.request();
  if (!claim.operation().unpublish()) {
    operation.mutable_publish()->set_namespace_(claim.namespace_());
    *operation.mutable_publish()->mutable_request() = request;
    return operation;
  }
  v1::UnpublishOperation& unpublish = *operation.mutable_unpublish();
  unpublish.set_namespace_(claim.namespace_());
  unpublish.mutable_request()->set_plugin_id(request.plugin_id());
  unpublish.mutable_request()->set_volume_id(request.volume_id());
  unpublish.mutable_request()->set_consumer(request.consumer());
  unpublish.mutable_request()->set_name(request.name());
  return operation;
}

}  // namespace berth::scheduler
