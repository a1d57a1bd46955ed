// A task, and what ends it early. For coroutines on the loop.
#pragma once

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/system/system_error.hpp>
#include <optional>
#include <utility>

#include "base/task_scope.h"

namespace berth {

namespace race_internal {

// A cancelled `task` gives nothing: two exceptions at once would not look like a cancellation.
template <class T>
Awaitable<std::optional<T>> Guarded(Awaitable<T> task) {
  try {
    co_return co_await std::move(task);
  } catch (const boost::system::system_error& error) {
    if (error.code() != asio::error::operation_aborted) throw;
  }
  co_return std::nullopt;
}

}  // namespace race_internal

// `task`'s result; nothing where `other` ended first, which then cancels it. Either way both have ended.
template <class T>
Awaitable<std::optional<T>> Race(Awaitable<T> task, Awaitable<bool> other) {
  using boost::asio::experimental::awaitable_operators::operator||;
  // Named first: what is awaited is made of what lives until it has ended.
  auto perform = race_internal::Guarded(std::move(task));
  auto wait = race_internal::Guarded(std::move(other));
  auto first = co_await (std::move(perform) || std::move(wait));
  const auto state = co_await asio::this_coro::cancellation_state;
  if (state.cancelled() != asio::cancellation_type::none) {
    throw boost::system::system_error(asio::error::operation_aborted);
  }
  if (first.index() == 0) co_return std::get<0>(std::move(first));
  co_return std::nullopt;
}

}  // namespace berth
