#include "base/task_scope.h"

#include <spdlog/spdlog.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/multiple_exceptions.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <cstdlib>
#include <exception>

namespace berth {
namespace {

// Whether `error` is how a cancelled coroutine unwinds; anything else that escapes a task is a bug.
bool IsCancellation(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const boost::system::system_error& e) {
    return e.code() == asio::error::operation_aborted;
  } catch (const asio::multiple_exceptions& both) {
    // Of `a || b`: a cancellation ends both, and is one.
    return IsCancellation(both.first_exception());
  } catch (...) {
    return false;
  }
}

std::string Describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

void Condition::NotifyAll() {
  for (asio::steady_timer* waiter : waiters_) waiter->cancel();
}

Awaitable<bool> Condition::WaitUntil(std::function<bool()> predicate, TimePoint deadline) {
  if (predicate()) co_return true;
  asio::steady_timer timer(executor_);
  const auto place = waiters_.insert(waiters_.end(), &timer);
  struct Leave {
    std::list<asio::steady_timer*>* waiters;
    std::list<asio::steady_timer*>::iterator place;
    ~Leave() { waiters->erase(place); }
  } leave{&waiters_, place};

  while (!predicate()) {
    if (Clock::now() >= deadline) co_return false;
    timer.expires_at(deadline);
    // The timer is only the bell: what counts is the predicate, asked again after each ring.
    [[maybe_unused]] const auto rung = co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
    const auto state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) {
      throw boost::system::system_error(asio::error::operation_aborted);
    }
  }
  co_return true;
}

Awaitable<void> SleepUntil(TimePoint when) {
  asio::steady_timer timer(co_await asio::this_coro::executor, when);
  co_await timer.async_wait(asio::use_awaitable);
}

TaskScope::TaskScope(asio::any_io_executor executor, std::string name)
    : executor_(executor), name_(std::move(name)), ended_(std::move(executor)) {}

TaskScope::~TaskScope() {
  if (tasks_.empty()) return;
  SPDLOG_CRITICAL("task scope {} destroyed with {} tasks left, first: {}", name_, tasks_.size(),
                  tasks_.front().name);
  std::abort();
}

void TaskScope::Spawn(std::string name, Awaitable<void> task) {
  if (cancelled_) return;
  const auto place = tasks_.emplace(tasks_.end());
  place->name = std::move(name);
  auto on_end = [this, place](const std::exception_ptr& error) {
    if (error && !IsCancellation(error)) {
      SPDLOG_CRITICAL("task {}/{} ended by an exception: {}", name_, place->name, Describe(error));
      std::abort();
    }
    tasks_.erase(place);
    ended_.NotifyAll();
  };
  asio::co_spawn(executor_, std::move(task),
                 asio::bind_cancellation_slot(place->cancel.slot(), std::move(on_end)));
}

void TaskScope::Cancel() {
  cancelled_ = true;
  // Emitting may end a task at once and erase it: posted per task, found again by its place in the list.
  for (auto it = tasks_.begin(); it != tasks_.end();) {
    auto next = std::next(it);
    it->cancel.emit(asio::cancellation_type::terminal);
    it = next;
  }
}

Awaitable<void> TaskScope::Join() {
  Cancel();
  co_await WaitEmpty();
}

Awaitable<void> TaskScope::WaitEmpty() {
  // The scope's owner waits for its tasks even when it is itself being cancelled.
  co_await asio::this_coro::throw_if_cancelled(false);
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await ended_.WaitUntil([this] { return tasks_.empty(); }, TimePoint::max());
  // Both settings belong to the caller's whole coroutine, not to this frame: set them back.
  co_await asio::this_coro::reset_cancellation_state(asio::enable_terminal_cancellation());
  co_await asio::this_coro::throw_if_cancelled(true);
}

}  // namespace berth
