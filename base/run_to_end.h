// Work that goes on when its caller has gone: what was begun in a store must be known to have ended.
#pragma once

#include <absl/status/status.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/task_scope.h"

namespace berth {

// Runs `work`, with a Status or a StatusOr as its result, as a task of `scope`. A caller that is cancelled
// stops waiting; so does one at its `deadline`, with DEADLINE_EXCEEDED; the task runs on. Loop thread. If
// `scope` is cancelled first, the caller waits for its deadline.
template <class T>
[[nodiscard]] Awaitable<T> RunToEnd(TaskScope& scope, std::string name, Awaitable<T> work,
                                    TimePoint deadline) {
  struct Outcome {
    explicit Outcome(const asio::any_io_executor& executor) : ended(executor) {}
    std::optional<T> result;
    Condition ended;
  };
  const auto outcome = std::make_shared<Outcome>(co_await asio::this_coro::executor);
  scope.Spawn(std::move(name), [](std::shared_ptr<Outcome> its, Awaitable<T> task) -> Awaitable<void> {
    its->result = co_await std::move(task);
    its->ended.NotifyAll();
  }(outcome, std::move(work)));
  if (!co_await outcome->ended.WaitUntil([outcome] { return outcome->result.has_value(); }, deadline))
    co_return absl::DeadlineExceededError("it was not done in time, and goes on");
  co_return *std::move(outcome->result);
}

}  // namespace berth
