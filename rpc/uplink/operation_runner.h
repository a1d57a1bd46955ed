// Carries out what the scheduler asks for: each operation to its result, through the node's API and the
// controller calls, as any other caller's request. Who may, and whether it was asked before, is decided by
// then.
//
// Loop thread only; what it is given outlives it. A deadline, and a cancelled coroutine, end the wait, not
// the work.
#pragma once

#include <functional>

#include "berth/v1/scheduler.pb.h"
#include "controller/controller_calls.h"
#include "rpc/node_api.h"

namespace berth {

using CallController =
    std::function<Awaitable<ControllerCalls::Result>(v1::ControllerCall call, TimePoint deadline)>;

// What the end of an operation of the node's own means for what comes next.
[[nodiscard]] v1::Outcome OutcomeOf(const absl::Status& status);
// Of a publish. `may_be_there`: the node still has it.
[[nodiscard]] v1::Outcome OutcomeOfPublish(const absl::Status& status, bool may_be_there);

class OperationRunner {
 public:
  OperationRunner(NodeApi& api, CallController controller) : api_(api), controller_(std::move(controller)) {}

  // `operation` is prepared (operation_check.h). Never fails: what goes wrong is in the result.
  [[nodiscard]] Awaitable<v1::OperationResult> Run(v1::Operation operation, TimePoint deadline);

 private:
  [[nodiscard]] Awaitable<v1::OperationResult> Publish(v1::PublishVolumeRequest request, CallInfo call);
  [[nodiscard]] Awaitable<v1::OperationResult> Expand(v1::ExpandOperation expand, TimePoint deadline);
  [[nodiscard]] Awaitable<v1::OperationResult> Controller(v1::ControllerCall call, TimePoint deadline);

  NodeApi& api_;
  CallController controller_;
};

}  // namespace berth
