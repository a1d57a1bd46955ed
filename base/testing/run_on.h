// For tests only: runs a coroutine, or all that is left, on an io_context to its end, under a bound.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <exception>
#include <optional>

#include "base/task_scope.h"
#include "base/testing/test_bound.h"

namespace berth {

// Runs `work` on `loop` and returns what it returns. Fails the test, and aborts it, after `bound`, or if the
// loop runs out of work before `work` has ended.
template <class T>
T RunOn(asio::io_context& loop, Awaitable<T> work, Duration bound = kTestBound) {
  std::optional<T> result;
  std::exception_ptr error;
  asio::co_spawn(loop, std::move(work), [&](std::exception_ptr failure, T value) {
    error = std::move(failure);
    result = std::move(value);
  });
  const TimePoint deadline = Clock::now() + bound;
  loop.restart();
  while (!result && Clock::now() < deadline) {
    if (loop.run_one_until(deadline) == 0) break;
  }
  if (!result) {
    ADD_FAILURE() << (loop.stopped() ? "the loop ran out of work before the coroutine had ended"
                                     : "the coroutine did not end in time");
    std::abort();
  }
  if (error) std::rethrow_exception(error);
  return *std::move(result);
}

inline void RunOn(asio::io_context& loop, Awaitable<void> work, Duration bound = kTestBound) {
  auto wrapped = [](Awaitable<void> inner) -> Awaitable<bool> {
    co_await std::move(inner);
    co_return true;
  };
  RunOn<bool>(loop, wrapped(std::move(work)), bound);
}

// Runs `loop` until it has no work left, and fails the test after `bound`. The last thing that a test with
// gRPC calls does with its loop: gRPC drops a call on the loop, some time after the call's owner has gone.
inline void Drain(asio::io_context& loop, Duration bound = kTestBound) {
  loop.restart();
  loop.run_for(bound);
  EXPECT_TRUE(loop.stopped()) << "the loop still has work";
}

}  // namespace berth
