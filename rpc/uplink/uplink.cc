#include "rpc/uplink/uplink.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <boost/system/system_error.hpp>
#include <random>
#include <utility>

#include "base/backoff.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/status.h"
#include "rpc/convert.h"
#include "rpc/uplink/link.pb.h"
#include "rpc/uplink/link_rows.h"

namespace berth {
namespace {

constexpr size_t kRefusalsReported = 32;
constexpr auto kGoodbyeWithin = std::chrono::seconds(1);

std::string RandomId() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

Uplink::Uplink(asio::any_io_executor executor, UplinkOptions options, UplinkParts parts,
               std::map<std::string, std::string> rows)
    : link_(executor, std::move(options), std::move(parts)), run_id_(RandomId()), tasks_(executor, "uplink") {
  SetState(v1::LinkStatus::DIALLING);
  Restore(std::move(rows));
}

Uplink::~Uplink() = default;

void Uplink::Restore(std::map<std::string, std::string> rows) {
  uint64_t settled_below = 0;
  for (auto& [key, value] : rows) {
    if (const auto id = NumberIn(key, kResultRow)) {
      link::v1::StoredResult stored;
      if (!stored.ParseFromString(value) || stored.result().id() != *id) {
        SPDLOG_WARN("link.db: row {} cannot be read; the operation is done again when it is asked for", key);
        continue;
      }
      link_.state.operations.RestoreResult(std::move(*stored.mutable_result()),
                                           std::move(*stored.mutable_subject()));
    } else if (const auto acknowledged = NumberIn(key, kAcknowledgedRow)) {
      link_.state.operations.RestoreAcknowledged(*acknowledged);
    } else if (const auto ended = NumberIn(key, kEndedRow)) {
      v1::EndedConsumer consumer;
      if (!consumer.ParseFromString(value)) continue;
      objects_.RestoreEnded(*ended, std::move(consumer));
    } else if (key == kSettledRow) {
      settled_below = NumberIn(value).value_or(0);
    } else if (key == kEndedNumberRow) {
      objects_.RestoreNextEnded(NumberIn(value).value_or(0));
    } else if (key == kConnectionRow) {
      connection_number_ = NumberIn(value).value_or(0);
    } else if (key == kInstanceRow) {
      instance_id_ = value;
    } else if (key == kClusterRow) {
      cluster_id_ = value.substr(1);  // a row is not empty, a name may be
    }
  }
  // Of what is settled there may be rows still that were to go when berthd was killed.
  for (const uint64_t id : link_.state.operations.Acknowledge({}, settled_below).forgotten) {
    link_.parts.rows.DeleteSoon(Row(kAcknowledgedRow, id));
    link_.parts.rows.DeleteSoon(Row(kResultRow, id));
  }
}

void Uplink::Start() {
  objects_.Start();
  tasks_.Spawn("plugins", objects_.FollowPlugins());
  tasks_.Spawn("node", objects_.FollowNode());
  tasks_.Spawn("link", Run());
}

Awaitable<void> Uplink::Shutdown(bool machine_stops) {
  leaving_ = true;
  if (link_.IsGreeted()) {
    v1::Goodbye goodbye;
    goodbye.set_reason(machine_stops ? v1::Goodbye::SHUTTING_DOWN : v1::Goodbye::STOPPING);
    goodbye.set_publications_mounted(link_.parts.mounter.Count().mounted);
    link_.session->Leave(std::move(goodbye));
    co_await link_.changed.WaitUntil([this] { return link_.session == nullptr; },
                                     Clock::now() + kGoodbyeWithin);
  }
  co_await tasks_.Join();
  co_await operations_.Shutdown();
  co_await objects_.Shutdown();
}

void Uplink::SetState(v1::LinkStatus::State state) {
  // A scheduler that takes the stream and never greets counts as not reached.
  const auto is_away = [](v1::LinkStatus::State s) {
    return s == v1::LinkStatus::DIALLING || s == v1::LinkStatus::GREETING;
  };
  const bool still_away = link_.status.has_since() && is_away(link_.status.state()) && is_away(state);
  link_.status.set_state(state);
  if (!still_away) *link_.status.mutable_since() = ToProto(WallClock::now());
}

// --- The stream --------------------------------------------------------------------------------------------

Awaitable<void> Uplink::Run() {
  if (instance_id_.empty()) {
    const std::string made = RandomId();
    co_await link_.PutUntilDone(std::string(kInstanceRow), [made] { return made; });
    instance_id_ = made;
  }
  DialSchedule schedule(link_.options.addresses.size(), link_.options.dial, Clock::now());
  while (true) {
    const DialSchedule::Attempt attempt = schedule.next();
    const auto pause = std::max(Duration(0), attempt.at - Clock::now());
    if (pause > Duration(0)) {
      *link_.status.mutable_next_attempt_at() =
          ToProto(WallClock::now() + std::chrono::duration_cast<WallClock::duration>(pause));
      co_await SleepUntil(attempt.at);
      link_.status.clear_next_attempt_at();
    }
    const std::string& address = link_.options.addresses[attempt.address];
    const Ended ended = co_await RunOnce(address);
    if (leaving_) co_return;
    ReportEnd(address, ended);
    const TimePoint now = Clock::now();
    if (!ended.welcomed) {
      schedule.OnFailed(now, RandomShare());
    } else {
      const bool elsewhere = ended.said && absl::IsUnavailable(ended.why);
      const auto end = elsewhere ? DialSchedule::End::kUnavailable : DialSchedule::End::kBroken;
      schedule.OnLinkEnded(end, now - *ended.welcomed, now, RandomShare());
    }
  }
}

Awaitable<Uplink::Ended> Uplink::RunOnce(std::string address) {
  link_.status.set_address(address);
  link_.status.clear_peer();
  auto stream = co_await link_.parts.dialer.Dial(address, Clock::now() + link_.options.dial_within);
  if (!stream.ok()) co_return Ended{.why = stream.status()};
  link_.status.set_peer((*stream)->peer());
  SetState(v1::LinkStatus::GREETING);
  link_.parts.lease.OnStream();
  welcomed_.reset();
  LinkSession session(link_.executor, **stream, link_.state, link_.parts.events, link_.parts.api, *this,
                      link_.options.times);
  link_.session = &session;
  LinkEnd end = co_await session.Run();
  link_.session = nullptr;
  link_.changed.NotifyAll();
  SetState(v1::LinkStatus::DIALLING);
  // The session ended in order, with cancellation off: it begins again here.
  if (tasks_.cancelled()) throw boost::system::system_error(asio::error::operation_aborted);
  co_await asio::this_coro::reset_cancellation_state(asio::enable_terminal_cancellation());
  co_await asio::this_coro::throw_if_cancelled(true);
  co_return Ended{.why = std::move(end.why), .said = end.said, .welcomed = welcomed_};
}

void Uplink::ReportEnd(const std::string& address, const Ended& ended) {
  std::string why(MessageOf(ended.why));
  // An attempt that fails says by itself where it led.
  if (!why.starts_with(address + ":")) why = fmt::format("{}: {}", address, why);
  link_.status.set_last_error(Printable(why));
  const bool refused = absl::IsPermissionDenied(ended.why) || absl::IsUnauthenticated(ended.why) ||
                       absl::IsFailedPrecondition(ended.why) || absl::IsAlreadyExists(ended.why);
  if (ended.welcomed || (!refused && !reported_lost_)) {
    reported_lost_ = true;
    link_.parts.events.Append({.type = "scheduler.lost", .message = Printable(why)});
    return;
  }
  // A refusal is reported once, whatever was reported before.
  if (refused && reported_refusals_.size() < kRefusalsReported && reported_refusals_.insert(why).second) {
    link_.parts.events.Append({.type = "scheduler.refused", .message = Printable(why)});
    return;
  }
  SPDLOG_DEBUG("the scheduler is still away: {}", why);
}

v1::Hello Uplink::MakeHello() {
  v1::Hello hello;
  hello.mutable_protocol()->set_major(kProtocolMajor);
  hello.mutable_protocol()->set_minor(kProtocolMinor);
  hello.set_node_id(link_.options.node_id);
  hello.set_instance_id(instance_id_);
  hello.set_boot_id(BootId());
  hello.set_run_id(run_id_);
  hello.set_version(link_.options.version);
  for (const char* feature : {"logs", "asks.claim", "asks.release", "asks.token", "asks.progress", "confirm",
                              "drain_node", "place_plugin"})
    hello.add_features(feature);
  hello.set_lease_epoch(link_.parts.lease.epoch());
  hello.set_highest_operation_id(link_.state.operations.highest_id());
  // The clock counts if the row could not be written: a disk that refuses must not cut the node off.
  const auto now = static_cast<uint64_t>(WallClock::now().time_since_epoch() / std::chrono::microseconds(1));
  connection_number_ = std::max(connection_number_ + 1, now);
  link_.parts.rows.PutSoon(std::string(kConnectionRow), std::to_string(connection_number_));
  hello.set_connection_number(connection_number_);
  return hello;
}

absl::Status Uplink::OnWelcome(const v1::Welcome& welcome) {
  constexpr size_t kClusterLimit = 256;
  if (welcome.cluster_id().size() > kClusterLimit)
    return absl::InvalidArgumentError("its cluster_id is too long");
  if (cluster_id_ && welcome.cluster_id() != *cluster_id_) {
    return absl::FailedPreconditionError(
        fmt::format("this node belongs to cluster \"{}\", and the scheduler is of cluster \"{}\"; to give "
                    "the node to it, stop "
                    "berthd and remove link.db from its state directory",
                    PrintableName(*cluster_id_), PrintableName(welcome.cluster_id())));
  }
  BERTH_RETURN_IF_ERROR(link_.parts.lease.OnWelcome(welcome.lease_epoch()));
  if (!cluster_id_) {
    cluster_id_ = welcome.cluster_id();
    link_.parts.rows.PutSoon(std::string(kClusterRow), "=" + *cluster_id_);
  }
  welcomed_ = Clock::now();
  reported_lost_ = false;
  reported_refusals_.clear();
  SetState(v1::LinkStatus::SYNCING);
  link_.status.clear_last_error();
  link_.parts.events.Append(
      {.type = "scheduler.connected",
       .message = fmt::format("{}{}{}", link_.status.address(), link_.status.peer().empty() ? "" : ", as ",
                              PrintableName(link_.status.peer()))});
  return absl::OkStatus();
}

std::optional<v1::LinkStatus> Uplink::Status() const {
  v1::LinkStatus status = link_.status;
  status.set_lease(link_.parts.lease.state());
  status.set_lease_epoch(link_.parts.lease.epoch());
  if (const auto left = link_.parts.lease.left()) *status.mutable_lease_left() = ToProto(*left);
  status.set_cluster_id(ToUtf8(cluster_id_.value_or("")));
  status.set_operations_running(static_cast<int>(link_.state.operations.running()));
  status.set_results_kept(static_cast<int>(link_.state.operations.kept()));
  return status;
}

void Uplink::OnAcknowledge(const v1::Acknowledge& acknowledge) {
  operations_.OnAcknowledge(acknowledge);
  for (const uint64_t number : acknowledge.ended_consumers()) objects_.DropEndedConsumer(number);
  for (const uint64_t number : acknowledge.forced_releases()) {
    link_.parts.lease.AcknowledgeForcedRelease(number);
  }
}

}  // namespace berth
