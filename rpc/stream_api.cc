#include "rpc/stream_api.h"

#include <fmt/format.h>

#include <boost/asio/this_coro.hpp>
#include <utility>

#include "base/printable.h"
#include "base/status.h"
#include "controller/plugin_choice.h"
#include "request/request_check.h"
#include "rpc/convert.h"

namespace berth {
namespace {

constexpr size_t kEventBatch = 64;
constexpr size_t kLogBatch = 128;
// A reader that follows waits for lines so long at a time, and then sees whether the plugin is still there.
constexpr auto kLookAgain = std::chrono::seconds(10);
constexpr auto kNoLogYet = std::chrono::milliseconds(500);

WallTime ToWallTime(const google::protobuf::Timestamp& time) {
  return WallTime(std::chrono::seconds(time.seconds()) + std::chrono::nanoseconds(time.nanos()));
}

// It does not wait: a new follower learns its position at once.
LogQuery FirstQuery(const v1::ReadPluginLogRequest& request) {
  LogQuery query;
  if (request.has_after()) {
    query.after = LogCursor{.position = request.after().position()};
    if (request.after().has_number()) query.after->number = request.after().number();
  }
  if (request.has_since()) query.since = ToWallTime(request.since());
  if (request.has_last_lines()) query.last = request.last_lines();
  return query;
}

bool Matches(const Event& event, const v1::WatchEventsRequest& filter) {
  return (filter.plugin_id().empty() || filter.plugin_id() == event.plugin_id) &&
         (filter.volume_id().empty() || filter.volume_id() == event.volume_id);
}

}  // namespace

Awaitable<absl::Status> StreamApi::WatchEvents(v1::WatchEventsRequest request, CallInfo,
                                               StreamWriter<v1::WatchEventsResponse>& out) {
  BERTH_CO_RETURN_IF_ERROR(CheckWatch(request));
  uint64_t position = request.after_sequence();
  const uint64_t newest = events_.next_sequence() - 1;
  if (position > newest) {
    co_return absl::OutOfRangeError(fmt::format(
        "after_sequence: {} lies beyond the newest event, {}: begin again with 0", position, newest));
  }
  if (request.has_since()) {
    position = events_.Before(ToWallTime(request.since()));
  } else if (position == 0) {
    // With the oldest that is kept: what came before it was not asked for, and so is not missed.
    const EventLog::Batch oldest = events_.After(0, 1);
    position = oldest.events.empty() ? newest : oldest.events.front().sequence - 1;
  }

  while (true) {
    const EventLog::Batch batch = events_.After(position, kEventBatch);
    uint64_t missed = batch.missed;
    for (const Event& event : batch.events) {
      position = event.sequence;
      if (!Matches(event, request)) continue;
      v1::WatchEventsResponse message;
      *message.mutable_event() = ToProto(event);
      message.set_missed(std::exchange(missed, 0));
      if (!co_await out.Send(std::move(message))) co_return absl::CancelledError("the caller has gone");
    }
    if (missed > 0) {
      v1::WatchEventsResponse message;
      message.set_missed(missed);
      if (!co_await out.Send(std::move(message))) co_return absl::CancelledError("the caller has gone");
    }
    if (!batch.events.empty()) continue;
    if (!request.follow()) co_return absl::OkStatus();
    [[maybe_unused]] const bool more = co_await events_.WaitAfter(position, TimePoint::max());
  }
}

Awaitable<absl::Status> StreamApi::ReadPluginLog(v1::ReadPluginLogRequest request, CallInfo call,
                                                 StreamWriter<v1::ReadPluginLogResponse>& out) {
  BERTH_CO_RETURN_IF_ERROR(CheckReadLog(request));
  const auto& plugins = control_.plugins();
  const auto plugin = plugins.find(request.id());
  if (plugin == plugins.end()) co_return NoSuchPlugin(plugins, request.id());
  if (plugin->second.external) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {} is external: its log is not here", PrintableName(request.id())));
  }
  LogQuery query = FirstQuery(request);
  const WallTime began = WallClock::now();
  bool placed = false;  // The reader knows its position.
  while (true) {
    const TimePoint deadline = request.follow() ? Clock::now() + kLookAgain : call.deadline;
    auto read = co_await control_.ReadLog(request.id(), query, deadline);
    const bool exists = control_.plugins().contains(request.id());
    if (absl::IsNotFound(read.status()) && request.follow() && exists) {
      // It has not written anything yet, and may begin to.
      if (!query.after) query = {.after = LogCursor{.position = 0, .number = 0}, .follow = true};
      read = LogBatch{.next = *query.after, .at_end = true};
      co_await SleepUntil(Clock::now() + kNoLogYet);
    }
    BERTH_CO_RETURN_IF_ERROR(read.status());
    const LogBatch batch = *std::move(read);
    const bool anything = !batch.lines.empty() || batch.missed_lines > 0 || batch.missed_bytes > 0;
    if (anything || (request.follow() && !placed)) {
      if (!co_await out.Send(ToProto(batch))) co_return absl::CancelledError("the caller has gone");
      placed = true;
    }
    query = {.after = batch.next, .follow = request.follow()};
    if (request.follow()) {
      if (anything || exists) continue;
      co_return absl::NotFoundError(
          fmt::format("plugin {} is gone from this node", PrintableName(request.id())));
    }
    // A plugin may write faster than one reads: what came after the call is not waited for.
    if (batch.at_end || batch.lines.empty() || batch.lines.back().time > began) co_return absl::OkStatus();
  }
}

Awaitable<absl::Status> StreamApi::WatchLog(v1::WatchLogRequest request, CallInfo,
                                            StreamWriter<v1::WatchLogResponse>& out) {
  if (!log_) co_return absl::UnimplementedError("this berthd keeps no log that could be followed");
  const auto level = ParseLogLevel(request.level().empty() ? "info" : request.level());
  if (!level.ok()) co_return absl::InvalidArgumentError(fmt::format("level: {}", MessageOf(level.status())));
  const auto subscription = log_->Subscribe(co_await asio::this_coro::executor, *level);
  while (true) {
    const LogSubscription::Batch batch = co_await subscription->Next(kLogBatch, TimePoint::max());
    if (batch.entries.empty() && batch.missed == 0) continue;
    v1::WatchLogResponse message;
    for (const LogEntry& entry : batch.entries) *message.add_entries() = ToProto(entry);
    message.set_missed(batch.missed);
    if (!co_await out.Send(std::move(message))) co_return absl::CancelledError("the caller has gone");
  }
}

}  // namespace berth
