// Runs a call that blocks on a helper thread, so that the loop never does: local files, look-ups of names.
//
// RunBlocking is awaited on a loop thread. The caller can always leave, by its deadline or by being
// cancelled, at once; the call is then left behind, its thread ends by itself, its result is dropped. A call
// that hangs for ever keeps neither the loop nor the process from ending, unless the kernel holds the thread
// itself: what may lie on a dead file system belongs in a helper process, not here.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth {

// How many calls run at a time (the next ones queue), how many may wait, and how many may have been left
// behind before nothing more is begun.
inline constexpr int kBlockingThreads = 8;
inline constexpr size_t kBlockingQueue = 1024;
inline constexpr int kBlockingLeftBehind = 32;

namespace blocking_internal {

template <class R>
struct Result {
  using Type = absl::StatusOr<R>;
};
template <class T>
struct Result<absl::StatusOr<T>> {
  using Type = absl::StatusOr<T>;
};
template <>
struct Result<absl::Status> {
  using Type = absl::Status;
};

// OK once `body` has run to its end.
[[nodiscard]] Awaitable<absl::Status> RunOnThread(std::string what, std::function<void()> body,
                                                  TimePoint deadline);

// Shared by the waiter and the thread, whichever lives longest.
template <class F>
struct Call {
  explicit Call(F given) : fn(std::move(given)) {}
  F fn;
  std::optional<std::invoke_result_t<F&>> result;
};

}  // namespace blocking_internal

// Runs `fn` (which returns a Status, a StatusOr<T> or a T, and throws nothing) and returns what it returns.
// `fn` and its result may be destroyed on either thread: they hold nothing that belongs to the loop. `what`
// says what was attempted on what, for messages. Errors besides those of `fn`: DEADLINE_EXCEEDED, "what: not
// done in time"; RESOURCE_EXHAUSTED, too many calls wait or hang. Throws operation_aborted when cancelled.
template <class F>
[[nodiscard]] Awaitable<typename blocking_internal::Result<std::invoke_result_t<F&>>::Type> RunBlocking(
    std::string what, F fn, TimePoint deadline) {
  auto call = std::make_shared<blocking_internal::Call<F>>(std::move(fn));
  std::function<void()> body = [call] { call->result.emplace(call->fn()); };
  const absl::Status ran =
      co_await blocking_internal::RunOnThread(std::move(what), std::move(body), deadline);
  if (!ran.ok()) co_return ran;
  if (!call->result.has_value()) co_return absl::InternalError("a blocking call without a result");
  co_return *std::move(call->result);
}

}  // namespace berth
