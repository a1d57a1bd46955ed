#include "base/boot_timer.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

namespace berth {
namespace {

constexpr Duration kLookEvery = std::chrono::seconds(1);

// 0 would take the timer back, so the least is 1 ns: past as well.
itimerspec Until(BootTime when) {
  itimerspec setting{};
  if (when == BootTime::max()) return setting;
  const Duration since_boot = std::max(when.time_since_epoch(), Duration(1));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_boot);
  setting.it_value.tv_sec = seconds.count();
  setting.it_value.tv_nsec = std::chrono::nanoseconds(since_boot - seconds).count();
  return setting;
}

}  // namespace

BootTimer::BootTimer(asio::any_io_executor executor) : executor_(std::move(executor)), timer_(executor_) {
  const int fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
  if (fd >= 0) {
    timer_.assign(fd);
  } else {
    SPDLOG_WARN("no timer from the kernel ({}): the clock is looked at every second", std::strerror(errno));
  }
}

void BootTimer::ExpireAt(BootTime when) {
  when_ = when;
  if (!timer_.is_open()) return;
  // Readable from the time on, until it is set again: nothing is read, so that a later waiter returns at
  // once.
  const itimerspec setting = Until(when);
  timerfd_settime(timer_.native_handle(), TFD_TIMER_ABSTIME, &setting, nullptr);
}

Awaitable<void> BootTimer::Wait() {
  while (BootClock::now() < when_) {
    if (timer_.is_open()) {
      co_await timer_.async_wait(asio::posix::stream_descriptor::wait_read, asio::use_awaitable);
    } else {
      co_await SleepUntil(Clock::now() + std::min<Duration>(kLookEvery, when_ - BootClock::now()));
    }
  }
}

Awaitable<void> SleepUntil(BootTime when) {
  BootTimer timer(co_await asio::this_coro::executor);
  timer.ExpireAt(when);
  co_await timer.Wait();
}

}  // namespace berth
