// For tests: an event loop, and coroutines run on it to their end, each under a bound.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <exception>
#include <functional>
#include <optional>

#include "base/task_scope.h"
#include "base/testing/test_bound.h"

namespace berth {

class LoopRunner {
 public:
  [[nodiscard]] asio::any_io_executor executor() { return io_.get_executor(); }

  // Runs the loop until `predicate` holds; false at the bound.
  [[nodiscard]] bool RunUntil(const std::function<bool()>& predicate, Duration bound = kTestBound) {
    const TimePoint deadline = Clock::now() + bound;
    while (!predicate()) {
      if (Clock::now() >= deadline) return false;
      if (io_.stopped()) io_.restart();
      io_.run_one_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  // Starts `task`; its result is set once it has ended.
  template <class T>
  [[nodiscard]] std::shared_ptr<std::optional<T>> Start(Awaitable<T> task) {
    auto result = std::make_shared<std::optional<T>>();
    asio::co_spawn(io_, std::move(task), [result](const std::exception_ptr& error, T value) {
      if (error) std::rethrow_exception(error);
      result->emplace(std::move(value));
    });
    return result;
  }

  template <class T>
  T Run(Awaitable<T> task) {
    const auto result = Start(std::move(task));
    if (!RunUntil([&] { return result->has_value(); })) {
      ADD_FAILURE() << "not done within the bound";
      std::abort();
    }
    return std::move(**result);
  }

  void RunVoid(Awaitable<void> task) {
    auto wrapped = [](Awaitable<void> inner) -> Awaitable<bool> {
      co_await std::move(inner);
      co_return true;
    };
    EXPECT_TRUE(Run(wrapped(std::move(task))));
  }

 private:
  asio::io_context io_;
};

}  // namespace berth
