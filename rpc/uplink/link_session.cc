#include "rpc/uplink/link_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "base/status.h"
#include "rpc/convert.h"

namespace berth {
namespace {

constexpr Duration kDefaultHeartbeat = std::chrono::seconds(5);
constexpr Duration kShortestHeartbeat = std::chrono::milliseconds(100);
constexpr Duration kLongestHeartbeat = std::chrono::seconds(60);
constexpr int kHeartbeatsMissed = 4;
constexpr int kHeartbeatsPerRecheck = 6;
constexpr int kObjectsPerMessage = 256;
constexpr size_t kBytesPerMessage = size_t{1} << 20;
constexpr size_t kEventsPerMessage = 64;
constexpr size_t kRefusals = 1024;

Duration HeartbeatInterval(const v1::Welcome& welcome) {
  if (!welcome.has_heartbeat_interval()) return kDefaultHeartbeat;
  const auto& asked = welcome.heartbeat_interval();
  const int64_t seconds = std::clamp<int64_t>(asked.seconds(), 0, 3600);
  const Duration interval = std::chrono::seconds(seconds) + std::chrono::nanoseconds(asked.nanos());
  return std::clamp(interval, kShortestHeartbeat, kLongestHeartbeat);
}

// Of an object that is not reported any more. Objects that end with an acknowledgement need no report.
std::optional<v1::Object> RemovalOf(const ObjectKey& key) {
  v1::Object object;
  switch (key.kind) {
    case ObjectKey::Kind::kPlugin:
      object.mutable_removed()->set_plugin_id(ToUtf8(key.plugin_id));
      return object;
    case ObjectKey::Kind::kVolume:
      object.mutable_removed()->mutable_volume()->set_plugin_id(ToUtf8(key.plugin_id));
      object.mutable_removed()->mutable_volume()->set_volume_id(ToUtf8(key.volume_id));
      return object;
    case ObjectKey::Kind::kNode:
    case ObjectKey::Kind::kEndedConsumer:
    case ObjectKey::Kind::kForcedRelease:
      break;
  }
  return std::nullopt;
}

}  // namespace

LinkSession::LinkSession(asio::any_io_executor executor, LinkStream& stream, LinkState& state,
                         EventLog& events, NodeApi& api, LinkHost& host, LinkTimes times)
    : stream_(stream),
      state_(state),
      events_(events),
      host_(host),
      times_(times),
      changed_(executor),
      logs_(executor, api, [this] { Wake(); }),
      tasks_(executor, "link"),
      last_heard_(Clock::now()) {}

Awaitable<LinkEnd> LinkSession::Run() {
  co_await asio::this_coro::throw_if_cancelled(false);
  state_.operations.BeginStream();
  state_.asks.BeginStream();
  tasks_.Spawn("read", Read());
  tasks_.Spawn("write", Write());
  tasks_.Spawn("certificates", RecheckPeer());
  try {
    co_await changed_.WaitUntil([this] { return ended_.has_value(); }, TimePoint::max());
  } catch (const boost::system::system_error&) {
    End(absl::CancelledError("berthd ends the link"));
  }
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await tasks_.Join();
  co_await logs_.Shutdown();
  // They turn cancellation on again. A stream that is not closed must not be destroyed.
  co_await asio::this_coro::throw_if_cancelled(false);
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  LinkEnd closed = co_await stream_.Close();
  if (!broken_ || closed.why.ok()) closed = {.why = *ended_};
  co_return closed;
}

void LinkSession::End(absl::Status why) {
  if (ended_) return;
  ended_ = std::move(why);
  changed_.NotifyAll();
}

void LinkSession::Leave(v1::Goodbye goodbye) {
  if (!welcome_) return;
  goodbye_ = std::move(goodbye);
  Wake();
}

Duration LinkSession::LongestSilence() const {
  return std::max(times_.least_silence, kHeartbeatsMissed * heartbeat_interval_);
}

// --- What arrives ------------------------------------------------------------------------------------------

Awaitable<void> LinkSession::Read() {
  while (!ended_) {
    absl::StatusOr<v1::SchedulerMessage> message = co_await stream_.Receive();
    if (!message.ok()) {
      broken_ = !ended_;
      co_return End(message.status());
    }
    handling_ = true;
    const absl::Status handled = co_await Handle(*std::move(message));
    handling_ = false;
    if (!handled.ok()) co_return End(handled);
    last_heard_ = Clock::now();
    const auto room = [this] { return (refusals_.size() < kRefusals && logs_.room()) || ended_; };
    co_await changed_.WaitUntil(room, TimePoint::max());
  }
}

Awaitable<absl::Status> LinkSession::Handle(v1::SchedulerMessage message) {
  using Message = v1::SchedulerMessage;
  if (message.message_case() == Message::kWelcome) co_return HandleWelcome(message.welcome());
  if (!welcome_) co_return absl::InvalidArgumentError("the scheduler's first message is not Welcome");
  switch (message.message_case()) {
    case Message::kHeartbeatAnswer:
      BERTH_CO_RETURN_IF_ERROR(co_await host_.OnHeartbeatAnswer(message.heartbeat_answer()));
      break;
    case Message::kOperation:
      if (auto refused = host_.OnOperation(std::move(*message.mutable_operation()))) {
        refusals_.push_back(*std::move(refused));
      }
      break;
    case Message::kCancel:
      host_.OnCancel(message.cancel().operation_id());
      break;
    case Message::kAcknowledge:
      host_.OnAcknowledge(message.acknowledge());
      break;
    case Message::kLogRequest:
      logs_.Request(message.log_request());
      break;
    case Message::kLogCredit:
      logs_.Credit(message.log_credit());
      break;
    case Message::kAnswer:
      host_.OnAnswer(std::move(*message.mutable_answer()));
      break;
    case Message::kAskProgress:
      host_.OnAskProgress(message.ask_progress());
      break;
    case Message::kWelcome:
    case Message::MESSAGE_NOT_SET:
      break;  // A newer scheduler's: it does without.
  }
  Wake();
  co_return absl::OkStatus();
}

absl::Status LinkSession::HandleWelcome(const v1::Welcome& welcome) {
  if (welcome_) return absl::InvalidArgumentError("the scheduler said Welcome twice");
  if (welcome.protocol().major() != kProtocolMajor) {
    return absl::FailedPreconditionError(
        fmt::format("the scheduler speaks version {}.{} of the protocol, and this "
                    "node {}.x",
                    welcome.protocol().major(), welcome.protocol().minor(), kProtocolMajor));
  }
  BERTH_RETURN_IF_ERROR(host_.OnWelcome(welcome));
  const bool this_run = welcome.have().run_id() == run_id_;
  state_.outbox.Begin(this_run ? std::optional(welcome.have().revision()) : std::nullopt);
  host_.OnBegun();
  heartbeat_interval_ = HeartbeatInterval(welcome);
  next_heartbeat_ = Clock::now();
  if (welcome.has_events()) {
    events_position_ = std::min(welcome.events().after_sequence(), events_.next_sequence() - 1);
    tasks_.Spawn("events", FollowEvents());
  }
  welcome_ = welcome;
  phase_ = Phase::kSyncing;
  Wake();
  return absl::OkStatus();
}

// --- What is sent ------------------------------------------------------------------------------------------

Awaitable<void> LinkSession::Write() {
  v1::NodeMessage hello;
  *hello.mutable_hello() = host_.MakeHello();
  run_id_ = hello.hello().run_id();
  if (!co_await Send(std::move(hello))) co_return;
  const auto greeted = [this] { return welcome_ || ended_; };
  if (!co_await changed_.WaitUntil(greeted, Clock::now() + times_.greet_within)) {
    co_return End(absl::DeadlineExceededError("the scheduler took the connection and did not say Welcome"));
  }
  while (!ended_) {
    const TimePoint now = Clock::now();
    // Who waits for this node's disk is not silent.
    if (!handling_ && now - last_heard_ >= LongestSilence()) {
      const auto silent = std::chrono::duration_cast<std::chrono::milliseconds>(now - last_heard_);
      co_return End(absl::UnavailableError(
          fmt::format("the scheduler has not been heard for {} ms: the link is dead", silent.count())));
    }
    if (goodbye_) {
      v1::NodeMessage goodbye;
      *goodbye.mutable_goodbye() = *goodbye_;
      if (co_await Send(std::move(goodbye))) End(absl::CancelledError("berthd ends the link"));
      co_return;
    }
    if (now >= next_heartbeat_) {
      next_heartbeat_ = now + heartbeat_interval_;
      v1::NodeMessage heartbeat;
      heartbeat.mutable_heartbeat()->set_number(++heartbeats_);
      host_.OnHeartbeat(heartbeats_);
      if (!co_await Send(std::move(heartbeat))) co_return;
      continue;
    }
    if (auto message = co_await Next()) {
      if (!co_await Send(*std::move(message))) co_return;
      continue;
    }
    TimePoint until = next_heartbeat_;
    if (!handling_) until = std::min(until, last_heard_ + LongestSilence());
    const bool state = StateToSend();
    if (state) until = std::min(until, next_state_);
    // State that only now is to be sent has a time of its own.
    const auto moved = [this, state] { return ended_ || AnythingToSend() || StateToSend() != state; };
    co_await changed_.WaitUntil(moved, until);
  }
}

Awaitable<bool> LinkSession::Send(v1::NodeMessage message) {
  const Duration patience = std::max(LongestSilence(), times_.greet_within);
  absl::Status sent = co_await stream_.Send(std::move(message), Clock::now() + patience);
  if (!sent.ok()) {
    // One that takes nothing is dead, whatever it says of itself.
    broken_ = !ended_ && !absl::IsDeadlineExceeded(sent);
    End(std::move(sent));
  }
  co_return !ended_;
}

bool LinkSession::StateToSend() const { return !synced_ || !state_.outbox.caught_up(); }

bool LinkSession::AnythingToSend() const {
  const bool events = events_position_ && events_.next_sequence() - 1 > *events_position_;
  const bool state = StateToSend() && Clock::now() >= next_state_;
  return goodbye_ || !refusals_.empty() || state_.operations.anything_to_send() ||
         state_.asks.anything_to_send() || state || events || logs_.anything_to_send();
}

Awaitable<std::optional<v1::NodeMessage>> LinkSession::Next() {
  v1::NodeMessage message;
  if (!refusals_.empty()) {
    *message.mutable_result() = std::move(refusals_.front());
    refusals_.pop_front();
    Wake();  // The reader may wait for room.
    co_return message;
  }
  if (const v1::OperationResult* result = state_.operations.NextResult()) {
    *message.mutable_result() = *result;
    co_return message;
  }
  if (auto ask = state_.asks.NextToSend()) {
    if (auto* open = std::get_if<v1::Ask>(&*ask)) {
      *message.mutable_ask() = std::move(*open);
    } else {
      *message.mutable_ask_withdrawn() = std::get<v1::AskWithdrawn>(*ask);
    }
    co_return message;
  }
  if (StateToSend() && Clock::now() >= next_state_) {
    if (auto state = co_await NextState()) co_return state;
  }
  if (auto events = NextEvents()) co_return events;
  if (auto lines = logs_.NextToSend()) {
    *message.mutable_log_lines() = *std::move(lines);
    Wake();  // The reader may wait for room.
    co_return message;
  }
  co_return std::nullopt;
}

Awaitable<std::optional<v1::NodeMessage>> LinkSession::NextState() {
  v1::NodeMessage message;
  v1::State& state = *message.mutable_state();
  state.set_full(state_.outbox.at_full_start());
  if (state.full()) reported_.clear();
  size_t bytes = 0;
  while (state.objects_size() < kObjectsPerMessage && bytes < kBytesPerMessage) {
    const auto change = state_.outbox.Next();
    if (!change) break;
    std::optional<v1::Object> object =
        change->removed ? RemovalOf(change->key) : co_await host_.Describe(change->key);
    // It began again with everything meanwhile: so does the next message.
    if (state_.outbox.at_full_start()) co_return std::nullopt;
    if (!object) continue;
    const std::string text = object->SerializeAsString();
    const size_t hash = std::hash<std::string>{}(text);
    // What is acknowledged has a number, and leaves without a removal: it would stay here.
    if (change->removed) {
      reported_.erase(change->key);
    } else if (change->key.number == 0) {
      const auto [told, first] = reported_.try_emplace(change->key, hash);
      if (!first && std::exchange(told->second, hash) == hash) continue;
    }
    bytes += text.size();
    *state.add_objects() = *std::move(object);
  }
  state.set_revision(state_.outbox.sent());
  state.set_synced(state_.outbox.caught_up());
  const bool was_synced = std::exchange(synced_, state.synced());
  if (state.synced()) {
    next_state_ = Clock::now() + times_.state_every;
    if (phase_ != Phase::kSynced) {
      phase_ = Phase::kSynced;
      host_.OnSynced();
    }
  }
  // What changed looks as it did before.
  if (was_synced && state.synced() && !state.full() && state.objects_size() == 0) co_return std::nullopt;
  co_return message;
}

std::optional<v1::NodeMessage> LinkSession::NextEvents() {
  if (!events_position_) return std::nullopt;
  const EventLog::Batch batch = events_.After(*events_position_, kEventsPerMessage);
  if (batch.events.empty() && batch.missed == 0) return std::nullopt;
  v1::NodeMessage message;
  v1::Events& events = *message.mutable_events();
  for (const Event& event : batch.events) *events.add_events() = ToProto(event);
  events.set_missed(batch.missed);
  *events_position_ = batch.events.empty() ? events_.next_sequence() - 1 : batch.events.back().sequence;
  return message;
}

Awaitable<void> LinkSession::FollowEvents() {
  while (!ended_) {
    const uint64_t newest = events_.next_sequence() - 1;
    if (newest > *events_position_) Wake();
    co_await events_.WaitAfter(newest, TimePoint::max());
  }
}

Awaitable<void> LinkSession::RecheckPeer() {
  // Before Welcome there is a bound of its own.
  co_await changed_.WaitUntil([this] { return welcome_ || ended_; }, TimePoint::max());
  while (!ended_) {
    // A scheduler that wants to know soon that the node is gone is left as soon as it is not to be believed
    // any more.
    const Duration pause = std::min(times_.recheck_every, kHeartbeatsPerRecheck * heartbeat_interval_);
    co_await SleepUntil(Clock::now() + pause);
    if (const absl::Status accepted = co_await stream_.Recheck(); !accepted.ok()) co_return End(accepted);
  }
}

}  // namespace berth
