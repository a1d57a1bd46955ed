#include "base/call_scope.h"

#include <algorithm>

namespace berth {
namespace {

constexpr Duration kToAnswer = std::chrono::seconds(3);

}  // namespace

CallScope::CallScope(asio::any_io_executor executor, std::string name, std::string program, size_t most)
    : executor_(executor),
      name_(std::move(name)),
      program_(std::move(program)),
      most_(most),
      changed_(executor),
      tasks_(std::move(executor), name_) {}

TimePoint DeadlineOf(gpr_timespec deadline, Duration longest) {
  const auto most = std::chrono::duration_cast<std::chrono::nanoseconds>(longest);
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  const gpr_timespec bound = gpr_time_from_nanos(most.count(), GPR_TIMESPAN);
  const gpr_timespec wait = gpr_time_min(left, bound);
  const Duration patience = std::chrono::seconds(wait.tv_sec) + std::chrono::nanoseconds(wait.tv_nsec);
  // On the wire gRPC rounds a deadline up, by 1% at most.
  const Duration to_answer = std::min<Duration>(patience / 40, kToAnswer);
  return Clock::now() + std::max(patience, Duration(0)) - std::max(to_answer, Duration(0));
}

absl::Status CallScope::Admit() const {
  if (stopping_) return Stopping();
  if (tasks_.size() < most_) return absl::OkStatus();
  return absl::ResourceExhaustedError(program_ + " has too many calls now: try again later");
}

void CallScope::Spawn(std::string_view method, Awaitable<void> task) {
  tasks_.Spawn(std::string(method), std::move(task));
}

Awaitable<void> CallScope::Stop(TimePoint grace) {
  StopAdmitting();
  // A task leaves the scope just before its reactor goes, so the reactors' bell rings for both.
  co_await changed_.WaitUntil([this] { return tasks_.size() == 0; }, grace);
  co_await tasks_.Join();
}

void CallScope::ReactorGone() {
  --reactors_;
  changed_.NotifyAll();
}

Awaitable<bool> CallScope::WaitReactorsGone(TimePoint deadline) {
  return changed_.WaitUntil([this] { return reactors_ == 0; }, deadline);
}

}  // namespace berth
