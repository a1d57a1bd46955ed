#include "rpc/uplink/uplink.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/system/system_error.hpp>
#include <charconv>
#include <functional>
#include <random>
#include <utility>

#include "base/process.h"
#include "base/status.h"
#include "rpc/convert.h"
#include "rpc/convert_volume.h"
#include "rpc/plugin_choice.h"
#include "rpc/shown.h"
#include "rpc/uplink/link.pb.h"

namespace berth {
namespace {

constexpr uint32_t kProtocolMajor = 1;
constexpr uint32_t kProtocolMinor = 0;
constexpr size_t kEndedConsumers = 4096;
// A message has room for so many with names as long as may be.
constexpr int kPublicationsTold = 1000;
// What one object, and one result, has at most: a message has up to 4 MiB, and holds more than this.
constexpr size_t kObjectBytes = size_t{2} << 20;
constexpr size_t kResultBytes = (size_t{3} << 20) + (size_t{1} << 19);
constexpr size_t kRefusalsTold = 32;
// Plugins that change all the time are looked at so often.
constexpr auto kPluginsEvery = std::chrono::milliseconds(200);
constexpr auto kNodeLook = std::chrono::seconds(30);
constexpr auto kWriteAgainAfter = std::chrono::seconds(1);

constexpr std::string_view kResultRow = "result/";
constexpr std::string_view kAcknowledgedRow = "acknowledged/";
constexpr std::string_view kEndedRow = "ended/";
constexpr std::string_view kSettledRow = "settled";
constexpr std::string_view kEndedNumberRow = "ended_next";
constexpr std::string_view kInstanceRow = "instance";
constexpr std::string_view kClusterRow = "cluster";

std::string Row(std::string_view kind, uint64_t number) { return fmt::format("{}{}", kind, number); }

// The number that `text` is, beyond `prefix`; nullopt where it is none.
std::optional<uint64_t> NumberIn(std::string_view text, std::string_view prefix = "") {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string RandomId() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// What other runs of berthd began with is far away; exact in languages whose numbers are doubles.
uint64_t FirstAsk() {
  std::random_device random;
  return std::uniform_int_distribution<uint64_t>(1, uint64_t{1} << 52)(random);
}

// What would fit into no message, on this stream or any other, or beside no other result, is told without its
// answer.
void TakeAnswerAway(v1::OperationResult* result, v1::Outcome outcome, const std::string& why) {
  if (result->outcome() != v1::OUTCOME_DONE) return;
  result->clear_answer();
  result->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  result->set_message(why);
  result->set_outcome(outcome);
}

v1::OperationResult Refused(uint64_t id, v1::Refusal refusal, absl::StatusCode code, std::string_view why) {
  v1::OperationResult result;
  result.set_id(id);
  result.set_code(static_cast<int>(code));
  result.set_message(Printable(why));
  result.set_outcome(v1::OUTCOME_REFUSED);
  result.set_refusal(refusal);
  return result;
}

absl::StatusCode CodeOf(v1::Refusal refusal) {
  return refusal == v1::TOO_MANY ? absl::StatusCode::kResourceExhausted
                                 : absl::StatusCode::kFailedPrecondition;
}

// Without what changes with every probe, and what the scheduler counts itself.
v1::Plugin PluginForScheduler(const PluginSnapshot& snapshot) {
  v1::Plugin plugin = ToProto(snapshot, 0);
  plugin.mutable_health()->clear_last_probe_at();
  plugin.mutable_health()->clear_latency();
  return plugin;
}

std::string WordsFor(v1::Refusal refusal, uint64_t asked, const LinkLease& lease) {
  if (refusal == v1::LEASE_EPOCH) {
    return fmt::format("it was asked for under lease epoch {}, and the node's is {}", asked, lease.epoch());
  }
  return lease.state() == v1::LEASE_EXPIRED ? "the node's lease has run out"
                                            : "the node has no lease since berthd was started";
}

}  // namespace

// An operation that runs, and whether it is to be waited for any more.
struct Uplink::Running {
  explicit Running(asio::any_io_executor executor) : bell(std::move(executor)) {}

  bool cancelled = false;
  Condition bell;
};

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
  if (instance_id_.empty()) {
    instance_id_ = RandomId();
    parts_.rows.PutSoon(std::string(kInstanceRow), instance_id_);
  }
}

void Uplink::Start() {
  state_.outbox.Changed({.kind = ObjectKey::Kind::kNode});
  for (const VolumeView& volume : parts_.mounter.List())
    OnVolumeChanged(volume.plugin_id, volume.volume_id, true);
  for (const VolumeRef& volume : parts_.mounter.LivingOn())
    OnVolumeChanged(volume.plugin_id, volume.volume_id, false);
  OnGivenUpChanged();
  tasks_.Spawn("plugins", FollowPlugins());
  tasks_.Spawn("node", FollowNode());
  tasks_.Spawn("link", Run());
}

Awaitable<void> Uplink::Shutdown() {
  co_await tasks_.Join();
  co_await operations_.Join();
}

double Uplink::Random() { return std::uniform_real_distribution<double>(0, 1)(random_); }

void Uplink::SetState(v1::LinkStatus::State state) {
  // A scheduler that takes the stream and never greets is as far away as one that nobody finds.
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

Awaitable<void> Uplink::Run() {
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
    TellEnd(address, ended);
    const TimePoint now = Clock::now();
    if (!ended.welcomed) {
      schedule.OnFailed(now, Random());
    } else {
      const bool elsewhere = ended.said && absl::IsUnavailable(ended.why);
      const auto end = elsewhere ? DialSchedule::End::kUnavailable : DialSchedule::End::kBroken;
      schedule.OnLinkEnded(end, now - *ended.welcomed, now, Random());
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
  SetState(v1::LinkStatus::DIALLING);
  // The session ended in order, with cancellation off: it begins again here.
  if (tasks_.cancelled()) throw boost::system::system_error(asio::error::operation_aborted);
  co_await asio::this_coro::reset_cancellation_state(asio::enable_terminal_cancellation());
  co_await asio::this_coro::throw_if_cancelled(true);
  co_return Ended{.why = std::move(end.why), .said = end.said, .welcomed = welcomed_};
}

void Uplink::TellEnd(const std::string& address, const Ended& ended) {
  std::string why(MessageOf(ended.why));
  // An attempt that fails says by itself where it led.
  if (!why.starts_with(address + ":")) why = fmt::format("{}: {}", address, why);
  status_.set_last_error(Printable(why));
  const bool refused = absl::IsPermissionDenied(ended.why) || absl::IsUnauthenticated(ended.why) ||
                       absl::IsFailedPrecondition(ended.why) || absl::IsAlreadyExists(ended.why);
  if (ended.welcomed || (!refused && !told_lost_)) {
    told_lost_ = true;
    parts_.events.Append({.type = "scheduler.lost", .message = Printable(why)});
    return;
  }
  // A refusal is told, whatever was told before, but once.
  if (refused && told_refusals_.size() < kRefusalsTold && told_refusals_.insert(why).second) {
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
  for (const char* feature : {"logs", "asks.claim", "asks.token"}) hello.add_features(feature);
  hello.set_lease_epoch(parts_.lease.epoch());
  hello.set_highest_operation_id(state_.operations.highest_id());
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
                    Shown(*cluster_id_), Shown(welcome.cluster_id())));
  }
  if (const uint64_t obeyed = parts_.lease.epoch();
      welcome.lease_epoch() != 0 && welcome.lease_epoch() < obeyed) {
    return absl::FailedPreconditionError(
        fmt::format("the scheduler is of lease epoch {}, and {} is obeyed: another one has taken over",
                    welcome.lease_epoch(), obeyed));
  }
  if (!cluster_id_) {
    cluster_id_ = welcome.cluster_id();
    parts_.rows.PutSoon(std::string(kClusterRow), "=" + *cluster_id_);
  }
  welcomed_ = Clock::now();
  told_lost_ = false;
  told_refusals_.clear();
  SetState(v1::LinkStatus::SYNCING);
  status_.clear_last_error();
  parts_.events.Append(
      {.type = "scheduler.connected",
       .message = fmt::format("{}{}{}", status_.address(), status_.peer().empty() ? "" : ", as ",
                              Shown(status_.peer()))});
  return absl::OkStatus();
}

void Uplink::OnBegun() {
  for (const auto& [number, ended] : ended_consumers_) {
    state_.outbox.Changed({.kind = ObjectKey::Kind::kEndedConsumer, .number = number});
  }
  for (const auto& [number, text] : given_up_) {
    state_.outbox.Changed({.kind = ObjectKey::Kind::kGivenUp, .number = number});
  }
}

void Uplink::OnSynced() { SetState(v1::LinkStatus::SYNCED); }

std::optional<v1::LinkStatus> Uplink::Status() const {
  v1::LinkStatus status = status_;
  status.set_lease(parts_.lease.state());
  status.set_lease_epoch(parts_.lease.epoch());
  if (const auto left = parts_.lease.left()) *status.mutable_lease_left() = ToProto(*left);
  status.set_cluster_id(IdText(cluster_id_.value_or("")));
  status.set_operations_running(static_cast<int>(state_.operations.running()));
  status.set_results_kept(static_cast<int>(state_.operations.kept()));
  return status;
}

// --- State -------------------------------------------------------------------------------------------------

void Uplink::OnVolumeChanged(const std::string& plugin_id, const std::string& volume_id, bool here) {
  ObjectKey key{.kind = ObjectKey::Kind::kVolume, .plugin_id = plugin_id, .volume_id = volume_id};
  // One whose file system may live on is told as such for as long as that is so, also to who begins anew.
  if (here || parts_.mounter.MayLiveOn(plugin_id, volume_id)) {
    state_.outbox.Changed(key);
  } else {
    state_.outbox.Removed(key);
  }
  node_changed_ = true;
  Wake();
}

void Uplink::OnNodeChanged() {
  state_.outbox.Changed({.kind = ObjectKey::Kind::kNode});
  Wake();
}

void Uplink::OnGivenUpChanged() {
  const auto key = [](uint64_t number) {
    return ObjectKey{.kind = ObjectKey::Kind::kGivenUp, .number = number};
  };
  std::map<uint64_t, std::string> before = std::exchange(given_up_, {});
  for (const v1::GivenUp& given_up : parts_.lease.given_up()) {
    const std::string& now = given_up_[given_up.number()] = given_up.SerializeAsString();
    const auto known = before.extract(given_up.number());
    if (known.empty() || known.mapped() != now) state_.outbox.Changed(key(given_up.number()));
  }
  for (const auto& [acknowledged, text] : before) state_.outbox.Forget(key(acknowledged));
  Wake();
}

void Uplink::OnConsumerEnded(const std::string& consumer, const std::string& cause, Origin origin) {
  if (origin != Origin::kScheduler) return;
  const ConsumerName name = SplitConsumer(consumer);
  const uint64_t number = next_ended_++;
  v1::EndedConsumer& ended = ended_consumers_[number];
  ended.set_number(number);
  ended.set_namespace_(IdText(name.name_space));
  ended.set_consumer(IdText(name.consumer));
  ended.set_cause(Printable(cause));
  *ended.mutable_ended_at() = ToProto(WallClock::now());
  parts_.rows.PutSoon(Row(kEndedRow, number), ended.SerializeAsString());
  parts_.rows.PutSoon(std::string(kEndedNumberRow), std::to_string(next_ended_));
  state_.outbox.Changed({.kind = ObjectKey::Kind::kEndedConsumer, .number = number});
  // What its volumes say is sent all the same.
  if (ended_consumers_.size() > kEndedConsumers) {
    DropEndedConsumer(ended_consumers_.begin()->first);
    if (!std::exchange(told_dropped_, true)) {
      parts_.events.Append(
          {.type = "scheduler.untold",
           .message = fmt::format("{} ended consumers wait to be acknowledged by the scheduler: the "
                                  "oldest are told no more, only how their volumes stand",
                                  kEndedConsumers)});
    }
  }
  Wake();
}

void Uplink::DropEndedConsumer(uint64_t number) {
  if (ended_consumers_.erase(number) == 0) return;
  if (ended_consumers_.empty()) told_dropped_ = false;
  state_.outbox.Forget({.kind = ObjectKey::Kind::kEndedConsumer, .number = number});
  parts_.rows.DeleteSoon(Row(kEndedRow, number));
}

Awaitable<std::optional<v1::Object>> Uplink::Describe(ObjectKey key) {
  v1::Object object;
  switch (key.kind) {
    case ObjectKey::Kind::kNode: {
      const auto status = co_await parts_.api.GetStatus({}, CallInfo{});
      if (!status.ok()) co_return std::nullopt;
      v1::NodeState& node = *object.mutable_node();
      *node.mutable_status() = *status;
      node.mutable_status()->clear_last_event_sequence();
      node.mutable_status()->clear_scheduler();
      node.set_lease(parts_.lease.state());
      node.set_lease_epoch(parts_.lease.epoch());
      node.set_on_lease_expiry(options_.on_lease_expiry);
      for (const RuntimeAbility& runtime : parts_.api.runtimes()) *node.add_runtimes() = ToProto(runtime);
      co_return object;
    }
    case ObjectKey::Kind::kPlugin: {
      const auto& plugins = parts_.plugins.plugins();
      const auto plugin = plugins.find(key.plugin_id);
      if (plugin == plugins.end()) co_return std::nullopt;
      *object.mutable_plugin() = PluginForScheduler(plugin->second);
      co_return object;
    }
    case ObjectKey::Kind::kVolume: {
      const auto view = parts_.mounter.Find(key.plugin_id, key.volume_id);
      if (!view) {
        if (!parts_.mounter.MayLiveOn(key.plugin_id, key.volume_id)) co_return std::nullopt;
        object.mutable_removed()->mutable_volume()->set_plugin_id(key.plugin_id);
        object.mutable_removed()->mutable_volume()->set_volume_id(IdText(key.volume_id));
        object.mutable_removed()->set_may_live_on(true);
        co_return object;
      }
      v1::Volume& volume = *object.mutable_volume();
      volume = ToProto(*view, /*show_options=*/false);
      // What is of the moment.
      volume.clear_running();
      volume.clear_running_since();
      volume.clear_next_retry_at();
      if (const int beyond = volume.publications_size() - kPublicationsTold; beyond > 0) {
        volume.mutable_publications()->DeleteSubrange(kPublicationsTold, beyond);
      }
      // What is wrong with each of them may be long.
      while (volume.ByteSizeLong() > kObjectBytes && volume.publications_size() > 0) {
        const int left = volume.publications_size() / 2;
        volume.mutable_publications()->DeleteSubrange(left, volume.publications_size() - left);
      }
      co_return object;
    }
    case ObjectKey::Kind::kEndedConsumer: {
      const auto ended = ended_consumers_.find(key.number);
      if (ended == ended_consumers_.end()) co_return std::nullopt;
      *object.mutable_ended_consumer() = ended->second;
      co_return object;
    }
    case ObjectKey::Kind::kGivenUp: {
      for (const v1::GivenUp& given_up : parts_.lease.given_up()) {
        if (given_up.number() != key.number) continue;
        *object.mutable_given_up() = given_up;
        co_return object;
      }
      co_return std::nullopt;
    }
  }
  co_return std::nullopt;
}

Awaitable<void> Uplink::FollowPlugins() {
  while (true) {
    const TimePoint looked_at = Clock::now();
    std::set<std::string> there;
    for (const auto& [id, snapshot] : parts_.plugins.plugins()) {
      there.insert(id);
      const size_t hash = std::hash<std::string>{}(PluginForScheduler(snapshot).SerializeAsString());
      const auto [known, added] = known_plugins_.try_emplace(id, hash);
      if (!added && std::exchange(known->second, hash) == hash) continue;
      state_.outbox.Changed({.kind = ObjectKey::Kind::kPlugin, .plugin_id = id});
      node_changed_ = true;
    }
    std::erase_if(known_plugins_, [&](const auto& known) {
      if (there.contains(known.first)) return false;
      state_.outbox.Removed({.kind = ObjectKey::Kind::kPlugin, .plugin_id = known.first});
      return true;
    });
    Wake();
    // The look and this wait are one step on the loop: no change is missed between them. Any that comes while
    // it rests is seen by the next look.
    co_await parts_.controllers.WaitChange(TimePoint::max());
    co_await SleepUntil(looked_at + kPluginsEvery);
  }
}

Awaitable<void> Uplink::FollowNode() {
  // What follows from volumes and plugins (how many, what is wrong) takes a look at all of them.
  while (true) {
    // What nobody tells of, such as a disk that is full now, is seen with the next look.
    co_await changed_.WaitUntil([this] { return node_changed_; }, Clock::now() + kNodeLook);
    node_changed_ = false;
    OnNodeChanged();
    co_await SleepUntil(Clock::now() + options_.node_state_every);
  }
}

// --- Operations --------------------------------------------------------------------------------------------

std::optional<v1::OperationResult> Uplink::OnOperation(v1::Operation operation) {
  const uint64_t id = operation.id();
  if (id == 0) {
    return Refused(0, v1::REFUSAL_NONE, absl::StatusCode::kInvalidArgument, "id: must be above zero");
  }
  OperationFacts facts = FactsOf(operation);
  const bool known = state_.operations.SubjectOf(id) != nullptr;
  // A repeat does nothing, and is answered whatever has become of the lease: "nothing was begun" would be a
  // lie.
  const v1::Refusal lease =
      known ? v1::REFUSAL_NONE : parts_.lease.Judge(operation.lease_epoch(), facts.forward);
  if (lease != v1::REFUSAL_NONE) {
    return Refused(id, lease, CodeOf(lease), WordsFor(lease, operation.lease_epoch(), parts_.lease));
  }
  const OperationTable::Admission admission = state_.operations.Admit(id, facts.subject);
  switch (admission.kind) {
    case OperationTable::Admission::Kind::kRefused:
      return Refused(id, admission.refusal, CodeOf(admission.refusal), admission.why);
    case OperationTable::Admission::Kind::kAnswered:
      Wake();
      return std::nullopt;
    case OperationTable::Admission::Kind::kRuns:
      return std::nullopt;
    case OperationTable::Admission::Kind::kRun:
      break;
  }
  running_[id] = std::make_shared<Running>(executor_);
  operations_.Spawn(fmt::format("operation {}", id), Execute(std::move(operation), std::move(facts)));
  return std::nullopt;
}

Awaitable<void> Uplink::Execute(v1::Operation operation, OperationFacts facts) {
  using namespace asio::experimental::awaitable_operators;
  const uint64_t id = operation.id();
  const std::shared_ptr<Running> running = running_.at(id);
  v1::OperationResult result;
  const absl::Status prepared = PrepareOperation(parts_.api.runtimes(), &operation);
  if (prepared.ok() && GivingUp(operation)) {
    result.set_code(static_cast<int>(absl::StatusCode::kUnavailable));
    result.set_message(
        "the node is letting go of this volume, since its lease had run out: ask again once it is given up");
    result.set_outcome(v1::OUTCOME_RETRY);
  } else if (prepared.ok()) {
    auto ended =
        co_await (runner_.Run(std::move(operation), Clock::now() + facts.timeout) ||
                  running->bell.WaitUntil([running] { return running->cancelled; }, TimePoint::max()));
    if (ended.index() == 0) {
      result = std::get<0>(std::move(ended));
    } else {
      result.set_code(static_cast<int>(absl::StatusCode::kCancelled));
      result.set_message("cancelled; what was begun goes on");
      result.set_outcome(v1::OUTCOME_UNCERTAIN);
    }
  } else {
    result = Refused(id, v1::REFUSAL_NONE, prepared.code(), MessageOf(prepared));
  }
  result.set_id(id);
  if (const size_t bytes = result.ByteSizeLong(); bytes > kResultBytes) {
    TakeAnswerAway(&result, facts.changes ? v1::OUTCOME_UNCERTAIN : v1::OUTCOME_FAILED,
                   fmt::format("{}the answer has {} bytes, at most {} are told",
                               facts.changes ? "done, but " : "", bytes, kResultBytes));
  } else if (!facts.changes && !state_.operations.HasRoomFor(bytes)) {
    // Those that were begun together may be more than what is kept.
    TakeAnswerAway(&result, v1::OUTCOME_RETRY,
                   "too many results wait to be acknowledged: ask again when they are");
  }
  running_.erase(id);
  if (facts.changes) co_await KeepResult(result, facts.subject);
  state_.operations.Finish(std::move(result));
  // The scheduler has settled it without waiting for this.
  if (state_.operations.SubjectOf(id) == nullptr) parts_.rows.DeleteSoon(Row(kResultRow, id));
  Wake();
}

bool Uplink::GivingUp(const v1::Operation& operation) const {
  if (!operation.has_publish()) return false;
  const v1::PublishVolumeRequest& request = operation.publish().request();
  const auto plugin_id = ResolveNodePlugin(parts_.plugins.plugins(), request.plugin_id());
  return parts_.lease.giving_up(plugin_id.ok() ? *plugin_id : request.plugin_id(), request.volume_id());
}

Awaitable<void> Uplink::KeepResult(v1::OperationResult result, std::string subject) {
  link::v1::StoredResult stored;
  *stored.mutable_result() = std::move(result);
  stored.set_subject(std::move(subject));
  const std::string key = Row(kResultRow, stored.result().id());
  const std::string value = stored.SerializeAsString();
  // What the scheduler has once heard must be heard again by whoever asks again: it is not told before it is
  // kept.
  for (int failures = 1;; ++failures) {
    const absl::Status kept = co_await parts_.rows.Put(key, value);
    if (kept.ok()) co_return;
    if (failures == 1) {
      SPDLOG_WARN("link.db: the result of operation {} waits to be written: {}", stored.result().id(),
                  MessageOf(kept));
    }
    co_await SleepUntil(Clock::now() + kWriteAgainAfter);
  }
}

void Uplink::OnCancel(uint64_t operation_id) {
  const auto running = running_.find(operation_id);
  if (running == running_.end()) return;
  running->second->cancelled = true;
  running->second->bell.NotifyAll();
}

void Uplink::OnAcknowledge(const v1::Acknowledge& acknowledge) {
  const std::vector<uint64_t> ids(acknowledge.operation_ids().begin(), acknowledge.operation_ids().end());
  const OperationTable::Changes changes = state_.operations.Acknowledge(ids, acknowledge.settled_below());
  for (const uint64_t id : changes.acknowledged) {
    parts_.rows.PutSoon(Row(kAcknowledgedRow, id), "1");
    parts_.rows.DeleteSoon(Row(kResultRow, id));
  }
  // First what forbids these ids for ever.
  if (changes.settled) {
    parts_.rows.PutSoon(std::string(kSettledRow), std::to_string(state_.operations.settled_below()));
  }
  for (const uint64_t id : changes.forgotten) {
    parts_.rows.DeleteSoon(Row(kAcknowledgedRow, id));
    parts_.rows.DeleteSoon(Row(kResultRow, id));
  }
  for (const uint64_t number : acknowledge.ended_consumers()) DropEndedConsumer(number);
  for (const uint64_t number : acknowledge.given_up()) parts_.lease.AcknowledgeGivenUp(number);
}

// --- Asks --------------------------------------------------------------------------------------------------

void Uplink::OnAnswer(v1::Answer answer) {
  if (!state_.asks.Answer(std::move(answer))) return;
  changed_.NotifyAll();
}

Awaitable<absl::StatusOr<v1::Answer>> Uplink::Ask(v1::Ask ask, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(const uint64_t number, state_.asks.Add(std::move(ask)));
  struct Leave {
    Uplink& uplink;
    uint64_t number;
    ~Leave() {
      uplink.state_.asks.Leave(number);
      uplink.Wake();
    }
  } const leave{.uplink = *this, .number = number};
  Wake();
  const auto answered = [this, number] { return state_.asks.AnswerOf(number) != nullptr; };
  if (!co_await changed_.WaitUntil(answered, deadline)) {
    co_return absl::DeadlineExceededError("the scheduler has not answered in time");
  }
  const v1::Answer answer = *state_.asks.AnswerOf(number);
  if (answer.code() == 0) co_return answer;
  constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);
  const bool known = answer.code() > 0 && answer.code() <= kLastCode;
  co_return absl::Status(known ? static_cast<absl::StatusCode>(answer.code()) : absl::StatusCode::kUnknown,
                         fmt::format("the scheduler: {}", Printable(answer.message())));
}

Awaitable<absl::StatusOr<v1::ClaimAnswer>> Uplink::Claim(v1::ClaimAsk ask, bool wait, TimePoint deadline) {
  const bool connected = session_ != nullptr && session_->phase() != LinkSession::Phase::kGreeting;
  if (!connected && !wait) {
    co_return absl::UnavailableError(fmt::format("the scheduler is not connected{}{}",
                                                 status_.last_error().empty() ? "" : ": ",
                                                 status_.last_error()));
  }
  v1::Ask asked;
  *asked.mutable_claim() = std::move(ask);
  BERTH_CO_ASSIGN_OR_RETURN(v1::Answer answer, co_await Ask(std::move(asked), deadline));
  if (!answer.has_claim())
    co_return absl::InternalError("the scheduler answered a claim with something else");
  co_return std::move(*answer.mutable_claim());
}

Awaitable<absl::StatusOr<v1::TokenAnswer>> Uplink::Tokens(v1::TokenAsk ask, TimePoint deadline) {
  v1::Ask asked;
  *asked.mutable_token() = std::move(ask);
  BERTH_CO_ASSIGN_OR_RETURN(v1::Answer answer, co_await Ask(std::move(asked), deadline));
  if (!answer.has_token())
    co_return absl::InternalError("the scheduler answered a token with something else");
  co_return std::move(*answer.mutable_token());
}

}  // namespace berth
