// The central scheduler, as the node's API asks it and shows the link to it.
//
// A narrow interface of this folder's own: berthd/scheduler_link implements it, also where berthd.toml
// names no scheduler. Loop thread only. It outlives the NodeApi that is given it.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "berth/v1/node.pb.h"
#include "berth/v1/scheduler.pb.h"

namespace berth {

class SchedulerDirectory {
 public:
  virtual ~SchedulerDirectory() = default;

  // nullopt: berthd.toml names no scheduler.
  [[nodiscard]] virtual std::optional<v1::LinkStatus> Status() const = 0;

  // What an operator should know besides, a sentence each.
  [[nodiscard]] virtual std::vector<std::string> Problems() const { return {}; }

  // Hears what an ask waits for, in words for people, whenever that changes. False: the caller has gone.
  using OnProgress = std::function<Awaitable<bool>(std::string)>;

  // The scheduler's answer to `ask`, of the same kind. Cancelling it withdraws the ask. Several callers can
  // make the same ask at a time, and each of them gets the answer. Errors: FAILED_PRECONDITION: berthd.toml
  // names no scheduler. UNAVAILABLE: it is not connected and `wait` is false, or the link is not up yet.
  // RESOURCE_EXHAUSTED: too many asks wait. DEADLINE_EXCEEDED. INTERNAL: an answer of another kind. The
  // scheduler's own status if it refuses. `on_progress` may be empty.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<v1::Answer>> Ask(v1::Ask ask, bool wait, TimePoint deadline,
                                                                  OnProgress on_progress) = 0;
};

}  // namespace berth
