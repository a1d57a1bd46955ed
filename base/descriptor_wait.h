// A wait for a descriptor under a deadline. Loop thread.
#pragma once

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/multiple_exceptions.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth {

// False: the deadline passed first. Throws when the coroutine is cancelled, or the descriptor cannot be
// waited on. The descriptor outlives the wait.
[[nodiscard]] inline Awaitable<bool> WaitDescriptor(asio::posix::stream_descriptor& descriptor,
                                                    asio::posix::stream_descriptor::wait_type what,
                                                    TimePoint deadline) {
  using boost::asio::experimental::awaitable_operators::operator||;
  asio::steady_timer bound(descriptor.get_executor(), deadline);
  try {
    const auto first =
        co_await (descriptor.async_wait(what, asio::use_awaitable) || bound.async_wait(asio::use_awaitable));
    co_return first.index() == 0;
  } catch (const asio::multiple_exceptions& both) {
    // A cancellation ends both, and is one.
    std::rethrow_exception(both.first_exception());
  }
}

}  // namespace berth
