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

constexpr uint32_t kProtocolMajor = 1;
constexpr uint32_t kProtocolMinor = 0;
constexpr size_t kRefusalsTold = 32;
constexpr auto kGoodbyeWithin = std::chrono::seconds(1);
constexpr auto kWriteAgainAfter = std::chrono::seconds(1);

std::string RandomId() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// Numbers of other runs of berthd are far away; exact in languages that have only doubles.
uint64_t FirstAsk() {
  std::random_device random;
  return std::uniform_int_distribution<uint64_t>(1, uint64_t{1} << 52)(random);
}

}  // namespace

Uplink::Uplink(asio::any_io_executor executor, UplinkOptions options, UplinkParts parts,
               std::map<std::string, std::string> rows)
    : executor_(executor),
      options_(std::move(options)),
      parts_(std::move(parts)),
      runner_(parts_.api, parts_.controller),
      run_id_(RandomId()),
      state_{.outbox = Outbox(), .operations = OperationTable(), .asks = AskTable(FirstAsk())},
      changed_(executor),
      tasks_(executor, "uplink"),
      operations_(executor, "operations of the scheduler") {
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
      state_.operations.RestoreResult(std::move(*stored.mutable_result()),
                                      std::move(*stored.mutable_subject()));
    } else if (const auto acknowledged = NumberIn(key, kAcknowledgedRow)) {
      state_.operations.RestoreAcknowledged(*acknowledged);
    } else if (const auto ended = NumberIn(key, kEndedRow)) {
      v1::EndedConsumer consumer;
      if (!consumer.ParseFromString(value)) continue;
      state_.outbox.Changed({.kind = ObjectKey::Kind::kEndedConsumer, .number = *ended});
      ended_consumers_[*ended] = std::move(consumer);
      next_ended_ = std::max(next_ended_, *ended + 1);
    } else if (key == kSettledRow) {
      settled_below = NumberIn(value).value_or(0);
    } else if (key == kEndedNumberRow) {
      next_ended_ = std::max(next_ended_, NumberIn(value).value_or(0));
    } else if (key == kConnectionRow) {
      connection_number_ = NumberIn(value).value_or(0);
    } else if (key == kInstanceRow) {
      instance_id_ = value;
    } else if (key == kClusterRow) {
      cluster_id_ = value.substr(1);  // a row is not empty, a name may be
    }
  }
  // Of what is settled there may be rows still that were to go when berthd was killed.
  for (const uint64_t id : state_.operations.Acknowledge({}, settled_below).forgotten) {
    parts_.rows.DeleteSoon(Row(kAcknowledgedRow, id));
    parts_.rows.DeleteSoon(Row(kResultRow, id));
  }
}

void Uplink::Start() {
  state_.outbox.Changed({.kind = ObjectKey::Kind::kNode});
  for (const VolumeView& volume : parts_.mounter.List())
    OnVolumeChanged(volume.plugin_id, volume.volume_id, true);
  OnForcedReleasesChanged();
  tasks_.Spawn("plugins", FollowPlugins());
  tasks_.Spawn("node", FollowNode());
  tasks_.Spawn("link", Run());
}

Awaitable<void> Uplink::Shutdown(bool machine_stops) {
  leaving_ = true;
  if (session_ != nullptr && session_->phase() != LinkSession::Phase::kGreeting) {
    v1::Goodbye goodbye;
    goodbye.set_reason(machine_stops ? v1::Goodbye::SHUTTING_DOWN : v1::Goodbye::STOPPING);
    int mounted = 0;
    for (const VolumeView& volume : parts_.mounter.List()) {
      mounted += static_cast<int>(
          std::ranges::count(volume.publications, PublicationState::kPublished, &PublicationView::state));
    }
    goodbye.set_publications_mounted(mounted);
    session_->Leave(std::move(goodbye));
    co_await changed_.WaitUntil([this] { return session_ == nullptr; }, Clock::now() + kGoodbyeWithin);
  }
  co_await tasks_.Join();
  co_await operations_.Join();
}

void Uplink::SetState(v1::LinkStatus::State state) {
  // A scheduler that takes the stream and never greets counts as not reached.
  const auto is_away = [](v1::LinkStatus::State s) {
    return s == v1::LinkStatus::DIALLING || s == v1::LinkStatus::GREETING;
  };
  const bool still_away = status_.has_since() && is_away(status_.state()) && is_away(state);
  status_.set_state(state);
  if (!still_away) *status_.mutable_since() = ToProto(WallClock::now());
}

void Uplink::Wake() {
  if (session_ != nullptr) session_->Wake();
  changed_.NotifyAll();
}

// --- The stream --------------------------------------------------------------------------------------------

// Returns once the row is on the disk: what the scheduler has once seen must not be another one after a
// crash.
Awaitable<void> Uplink::PutUntilDone(std::string key, std::function<std::string()> value) {
  for (int failures = 1;; ++failures) {
    const absl::Status kept = co_await parts_.rows.Put(key, value());
    if (kept.ok()) co_return;
    if (failures == 1) SPDLOG_WARN("link.db: {} waits to be written: {}", key, MessageOf(kept));
    co_await SleepUntil(Clock::now() + kWriteAgainAfter);
  }
}

Awaitable<void> Uplink::Run() {
  if (instance_id_.empty()) {
    const std::string made = RandomId();
    co_await PutUntilDone(std::string(kInstanceRow), [made] { return made; });
    instance_id_ = made;
  }
  DialSchedule schedule(options_.addresses.size(), options_.dial, Clock::now());
  while (true) {
    const DialSchedule::Attempt attempt = schedule.next();
    const auto pause = std::max(Duration(0), attempt.at - Clock::now());
    if (pause > Duration(0)) {
      *status_.mutable_next_attempt_at() =
          ToProto(WallClock::now() + std::chrono::duration_cast<WallClock::duration>(pause));
      co_await SleepUntil(attempt.at);
      status_.clear_next_attempt_at();
    }
    const std::string& address = options_.addresses[attempt.address];
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
  status_.set_address(address);
  status_.clear_peer();
  auto stream = co_await parts_.dialer.Dial(address, Clock::now() + options_.dial_within);
  if (!stream.ok()) co_return Ended{.why = stream.status()};
  status_.set_peer((*stream)->peer());
  SetState(v1::LinkStatus::GREETING);
  parts_.lease.OnStream();
  welcomed_.reset();
  LinkSession session(executor_, **stream, state_, parts_.events, parts_.api, *this, options_.times);
  session_ = &session;
  LinkEnd end = co_await session.Run();
  session_ = nullptr;
  changed_.NotifyAll();
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
  status_.set_last_error(Printable(why));
  const bool refused = absl::IsPermissionDenied(ended.why) || absl::IsUnauthenticated(ended.why) ||
                       absl::IsFailedPrecondition(ended.why) || absl::IsAlreadyExists(ended.why);
  if (ended.welcomed || (!refused && !reported_lost_)) {
    reported_lost_ = true;
    parts_.events.Append({.type = "scheduler.lost", .message = Printable(why)});
    return;
  }
  // A refusal is reported once, whatever was reported before.
  if (refused && reported_refusals_.size() < kRefusalsTold && reported_refusals_.insert(why).second) {
    parts_.events.Append({.type = "scheduler.refused", .message = Printable(why)});
    return;
  }
  SPDLOG_DEBUG("the scheduler is still away: {}", why);
}

v1::Hello Uplink::MakeHello() {
  v1::Hello hello;
  hello.mutable_protocol()->set_major(kProtocolMajor);
  hello.mutable_protocol()->set_minor(kProtocolMinor);
  hello.set_node_id(options_.node_id);
  hello.set_instance_id(instance_id_);
  hello.set_boot_id(BootId());
  hello.set_run_id(run_id_);
  hello.set_version(options_.version);
  for (const char* feature : {"logs", "asks.claim", "asks.release", "asks.token", "asks.progress", "confirm",
                              "drain_node", "place_plugin"})
    hello.add_features(feature);
  hello.set_lease_epoch(parts_.lease.epoch());
  hello.set_highest_operation_id(state_.operations.highest_id());
  // The clock counts if the row could not be written: a disk that refuses must not cut the node off.
  const auto now = static_cast<uint64_t>(WallClock::now().time_since_epoch() / std::chrono::microseconds(1));
  connection_number_ = std::max(connection_number_ + 1, now);
  parts_.rows.PutSoon(std::string(kConnectionRow), std::to_string(connection_number_));
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
  BERTH_RETURN_IF_ERROR(parts_.lease.OnWelcome(welcome.lease_epoch()));
  if (!cluster_id_) {
    cluster_id_ = welcome.cluster_id();
    parts_.rows.PutSoon(std::string(kClusterRow), "=" + *cluster_id_);
  }
  welcomed_ = Clock::now();
  reported_lost_ = false;
  reported_refusals_.clear();
  SetState(v1::LinkStatus::SYNCING);
  status_.clear_last_error();
  parts_.events.Append(
      {.type = "scheduler.connected",
       .message = fmt::format("{}{}{}", status_.address(), status_.peer().empty() ? "" : ", as ",
                              PrintableName(status_.peer()))});
  return absl::OkStatus();
}

void Uplink::OnBegun() {
  for (const auto& [number, ended] : ended_consumers_) {
    state_.outbox.Changed({.kind = ObjectKey::Kind::kEndedConsumer, .number = number});
  }
  for (const auto& [number, text] : forced_releases_) {
    state_.outbox.Changed({.kind = ObjectKey::Kind::kForcedRelease, .number = number});
  }
}

void Uplink::OnSynced() { SetState(v1::LinkStatus::SYNCED); }

std::optional<v1::LinkStatus> Uplink::Status() const {
  v1::LinkStatus status = status_;
  status.set_lease(parts_.lease.state());
  status.set_lease_epoch(parts_.lease.epoch());
  if (const auto left = parts_.lease.left()) *status.mutable_lease_left() = ToProto(*left);
  status.set_cluster_id(ToUtf8(cluster_id_.value_or("")));
  status.set_operations_running(static_cast<int>(state_.operations.running()));
  status.set_results_kept(static_cast<int>(state_.operations.kept()));
  return status;
}

}  // namespace berth
