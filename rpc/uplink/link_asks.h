// What is asked of the scheduler: a claim, a release, a token. A question waits until it is answered, over as
// many streams as that takes.
//
// Owned by the Uplink; loop thread only.
#pragma once

#include <absl/status/statusor.h>

#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"
#include "rpc/scheduler_directory.h"
#include "rpc/uplink/uplink_context.h"

namespace berth {

class LinkAsks {
 public:
  explicit LinkAsks(UplinkContext& link) : link_(link) {}

  // SchedulerDirectory::Ask.
  [[nodiscard]] Awaitable<absl::StatusOr<v1::Answer>> Ask(v1::Ask ask, bool wait, TimePoint deadline,
                                                          SchedulerDirectory::OnProgress on_progress);
  // See LinkHost.
  void OnAnswer(v1::Answer answer);
  void OnAskProgress(const v1::AskProgress& progress);

 private:
  UplinkContext& link_;
};

}  // namespace berth
