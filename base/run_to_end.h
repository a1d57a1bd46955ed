// Work that goes on when its caller has gone: what was begun in a store must be known to have ended.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/task_scope.h"

namespace berth {

// Runs `work` as a task of `scope`, and returns its result. A caller that is cancelled stops waiting; the
// task runs on. Loop thread. If `scope` is cancelled before the task has ended, the caller waits until it is
// cancelled, too: so a scope of callers ends first.
template <class T>
[[nodiscard]] Awaitable<T> RunToEnd(TaskScope& scope, std::string name, Awaitable<T> work) {
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
  co_await outcome->ended.WaitUntil([outcome] { return outcome->result.has_value(); }, TimePoint::max());
  co_return *std::move(outcome->result);
}

}  // namespace berth
