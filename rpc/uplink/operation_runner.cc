#include "rpc/uplink/operation_runner.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "csi/redact.h"

namespace berth {
namespace {

CallInfo CallOf(std::string_view method, TimePoint deadline) {
  CallInfo call;
  call.method = method;
  // What is done was decided before; mount flags stay hidden.
  call.deadline = deadline;
  call.origin = Origin::kScheduler;
  return call;
}

v1::OperationResult Failed(const absl::Status& status, v1::Outcome outcome) {
  v1::OperationResult result;
  result.set_code(static_cast<int>(status.code()));
  result.set_message(Printable(MessageOf(status)));
  result.set_outcome(outcome);
  return result;
}

v1::OperationResult Done() {
  v1::OperationResult result;
  result.set_outcome(v1::OUTCOME_DONE);
  return result;
}

// A reverse one, or one that only looks: repeating it is harmless.
template <class Answer, class Fill>
v1::OperationResult ResultOf(absl::StatusOr<Answer> answer, Fill fill) {
  if (!answer.ok()) return Failed(answer.status(), OutcomeOf(answer.status()));
  v1::OperationResult result = Done();
  fill(result, *std::move(answer));
  return result;
}

void SetPlugin(v1::OperationResult& result, v1::Plugin plugin) {
  *result.mutable_plugin() = std::move(plugin);
}

}  // namespace

v1::Outcome OutcomeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return v1::OUTCOME_DONE;
    // The wait has ended, the work may not have.
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return v1::OUTCOME_UNCERTAIN;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kResourceExhausted:
      return v1::OUTCOME_RETRY;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnauthenticated:
      return v1::OUTCOME_FAILED;
    case absl::StatusCode::kDoNotUseReservedForFutureExpansionUseDefaultInSwitchInstead_:
      break;
  }
  return v1::OUTCOME_UNCERTAIN;
}

v1::Outcome OutcomeOfPublish(const absl::Status& status, bool may_be_there) {
  const v1::Outcome outcome = OutcomeOf(status);
  if (outcome == v1::OUTCOME_DONE || outcome == v1::OUTCOME_UNCERTAIN) return outcome;
  if (may_be_there) return v1::OUTCOME_UNCERTAIN;
  // Nothing is there: it may not be, or cannot be now.
  return outcome == v1::OUTCOME_FAILED ? v1::OUTCOME_REFUSED : outcome;
}

Awaitable<v1::OperationResult> OperationRunner::Run(v1::Operation operation, TimePoint deadline) {
  switch (operation.kind_case()) {
    case v1::Operation::kPublish:
      co_return co_await Publish(std::move(*operation.mutable_publish()->mutable_request()),
                                 CallOf("PublishVolume", deadline));
    case v1::Operation::kUnpublish:
      co_return ResultOf(
          co_await api_.volumes.UnpublishVolume(operation.unpublish().request(),
                                                CallOf("UnpublishVolume", deadline)),
          [](v1::OperationResult& result, auto answer) { *result.mutable_unpublish() = std::move(answer); });
    case v1::Operation::kStats:
      co_return ResultOf(
          co_await api_.stats.GetVolumeStats(operation.stats(), CallOf("GetVolumeStats", deadline)),
          [](v1::OperationResult& result, auto answer) { *result.mutable_stats() = std::move(answer); });
    case v1::Operation::kExpand:
      co_return co_await Expand(operation.expand(), deadline);
    case v1::Operation::kExplain:
      co_return ResultOf(
          co_await api_.list.ExplainVolume(operation.explain(), CallOf("ExplainVolume", deadline)),
          [](v1::OperationResult& result, auto answer) { *result.mutable_explain() = std::move(answer); });
    case v1::Operation::kEndConsumer:
      co_return ResultOf(co_await api_.volumes.EndConsumer(operation.end_consumer().request(),
                                                           CallOf("EndConsumer", deadline)),
                         [](v1::OperationResult& result, auto answer) {
                           *result.mutable_end_consumer() = std::move(answer);
                         });
    case v1::Operation::kRestartPlugin:
      co_return ResultOf(
          co_await api_.plugins.RestartPlugin(operation.restart_plugin(), CallOf("RestartPlugin", deadline)),
          SetPlugin);
    case v1::Operation::kDrainPlugin:
      co_return ResultOf(
          co_await api_.plugins.DrainPlugin(operation.drain_plugin(), CallOf("DrainPlugin", deadline)),
          SetPlugin);
    case v1::Operation::kSwapPlugin:
      co_return ResultOf(
          co_await api_.plugins.SwapPlugin(operation.swap_plugin(), CallOf("SwapPlugin", deadline)),
          SetPlugin);
    case v1::Operation::kStartPlugin:
      co_return ResultOf(
          co_await api_.plugins.StartPlugin(operation.start_plugin(), CallOf("StartPlugin", deadline)),
          SetPlugin);
    case v1::Operation::kDrainNode:
      co_return ResultOf(
          co_await api_.cluster.DrainNode(operation.drain_node(), CallOf("DrainNode", deadline)),
          [](v1::OperationResult& result, auto answer) { *result.mutable_drain_node() = std::move(answer); });
    case v1::Operation::kStopPlugin:
      co_return ResultOf(
          co_await api_.plugins.StopPlugin(operation.stop_plugin(), CallOf("StopPlugin", deadline)),
          SetPlugin);
    case v1::Operation::kPlacePlugin:
      co_return ResultOf(co_await api_.plugins.PlacePlugin(operation.place_plugin(), deadline), SetPlugin);
    case v1::Operation::kRemovePlugin: {
      const absl::Status removed =
          co_await api_.plugins.RemovePlacedPlugin(operation.remove_plugin(), deadline);
      co_return removed.ok() ? Done() : Failed(removed, OutcomeOf(removed));
    }
    case v1::Operation::kReload:
      co_return ResultOf(
          co_await api_.plugins.Reload(operation.reload(), CallOf("Reload", deadline)),
          [](v1::OperationResult& result, auto answer) { *result.mutable_reload() = std::move(answer); });
    case v1::Operation::kExamine:
      co_return ResultOf(
          co_await api_.status.Examine(operation.examine(), CallOf("Examine", deadline)),
          [](v1::OperationResult& result, auto answer) { *result.mutable_examine() = std::move(answer); });
    case v1::Operation::kUsage:
      co_return ResultOf(
          co_await api_.stats.GetConsumerStats(operation.usage(), CallOf("GetConsumerStats", deadline)),
          [](v1::OperationResult& result, auto answer) { *result.mutable_usage() = std::move(answer); });
    case v1::Operation::kConfirm:
      co_return ResultOf(
          co_await api_.volumes.ConfirmHere(operation.confirm(), deadline),
          [](v1::OperationResult& result, auto answer) { *result.mutable_confirm() = std::move(answer); });
    case v1::Operation::kController:
      co_return co_await Controller(operation.controller(), deadline);
    case v1::Operation::KIND_NOT_SET:
      break;
  }
  co_return Failed(absl::UnimplementedError("this node does not know such operations"), v1::OUTCOME_REFUSED);
}

Awaitable<v1::OperationResult> OperationRunner::Publish(v1::PublishVolumeRequest request, CallInfo call) {
  auto answer = co_await api_.volumes.PublishVolume(request, call);
  if (!answer.ok()) {
    co_return Failed(answer.status(),
                     OutcomeOfPublish(answer.status(), api_.volumes.MayBePublished(request)));
  }
  v1::OperationResult result = Done();
  *result.mutable_publish() = *std::move(answer);
  result.mutable_publish()->clear_volume();
  co_return result;
}

Awaitable<v1::OperationResult> OperationRunner::Expand(v1::ExpandOperation expand, TimePoint deadline) {
  auto answer = co_await api_.volumes.ExpandHere(std::move(expand), deadline);
  if (!answer.ok()) co_return Failed(answer.status(), OutcomeOf(answer.status()));
  v1::OperationResult result = Done();
  *result.mutable_expand() = *std::move(answer);
  co_return result;
}

Awaitable<v1::OperationResult> OperationRunner::Controller(v1::ControllerCall call, TimePoint deadline) {
  ControllerCalls::Result called = co_await controller_(std::move(call), deadline);
  if (!called.status.ok()) co_return Failed(called.status, called.outcome);
  v1::OperationResult result = Done();
  *result.mutable_controller() = std::move(called.answer);
  co_return result;
}

}  // namespace berth
