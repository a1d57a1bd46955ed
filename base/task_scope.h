// The owner of coroutines, and a condition for them to wait on.
//
// Everything here is confined to one thread: the one that runs the executor's io_context.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <string>

#include "base/clock.h"

namespace berth {

namespace asio = boost::asio;

template <class T>
using Awaitable = asio::awaitable<T>;

// A condition variable for coroutines of one thread. The condition is a predicate over state that the waiters
// and the notifier share; a notification carries nothing, so none can be lost. The Condition outlives its
// waiters (join their TaskScope first).
class Condition {
 public:
  explicit Condition(asio::any_io_executor executor) : executor_(std::move(executor)) {}
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  void NotifyAll();

  // Waits until `predicate()` holds or `deadline` has passed, and says whether it holds.
  // Throws boost::system::system_error(operation_aborted) when the coroutine is cancelled.
  [[nodiscard]] Awaitable<bool> WaitUntil(std::function<bool()> predicate, TimePoint deadline);

 private:
  asio::any_io_executor executor_;
  std::list<asio::steady_timer*> waiters_;
};

// Waits until `when`. Throws operation_aborted when cancelled.
[[nodiscard]] Awaitable<void> SleepUntil(TimePoint when);

// Owns the coroutines that are spawned into it: cancels and joins them. A task that ends by a cancellation
// ends quietly; a task that ends by any other exception is a bug and ends the process, named in the log.
// The destructor demands that no task is left: co_await Join() first.
class TaskScope {
 public:
  // `name` leads each task's name in the log.
  TaskScope(asio::any_io_executor executor, std::string name);
  ~TaskScope();
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

  // After Cancel, a new task is not run at all.
  void Spawn(std::string name, Awaitable<void> task);

  // Cancels every task at its present or next wait. Returns at once.
  void Cancel();

  // Cancels, then waits until every task has ended. Not from within a task of this scope.
  [[nodiscard]] Awaitable<void> Join();

  // Waits, without cancelling, until no task is left.
  [[nodiscard]] Awaitable<void> WaitEmpty();

  [[nodiscard]] size_t size() const { return tasks_.size(); }
  [[nodiscard]] bool cancelled() const { return cancelled_; }

 private:
  struct Task {
    std::string name;
    asio::cancellation_signal cancel;
  };

  asio::any_io_executor executor_;
  std::string name_;
  std::list<Task> tasks_;
  Condition ended_;
  bool cancelled_ = false;
};

}  // namespace berth
