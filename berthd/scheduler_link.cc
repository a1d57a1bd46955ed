#include "berthd/scheduler_link.h"

#include <utility>

#include "base/status.h"
#include "berthd/version.h"

namespace berth {
namespace {

// As many as the uplink keeps.
constexpr size_t kEndedEarly = 4096;

}  // namespace

SchedulerLink::SchedulerLink(asio::any_io_executor executor, const BerthdConfig& config, Mounter& mounter,
                             EventLog& events)
    : executor_(executor),
      config_(config),
      mounter_(mounter),
      events_(events),
      tasks_(executor, "scheduler") {}

SchedulerLink::~SchedulerLink() = default;

absl::Status SchedulerLink::Restore() {
  if (!config_.scheduler.wanted()) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(store_, LinkStore::Open(executor_, config_.state_dir));
  rows_ = store_->TakeRows();
  LeaseKeeperOptions options{.state_dir = config_.state_dir,
                             .runtime_dir = config_.runtime_dir,
                             .on_expiry = config_.scheduler.on_lease_expiry};
  options.on_change = [this] {
    if (!uplink_) return;
    uplink_->OnNodeChanged();
    uplink_->OnForcedReleasesChanged();
  };
  keeper_ = std::make_unique<LeaseKeeper>(executor_, std::move(options), mounter_, events_, *store_);
  keeper_->Start(rows_);
  return absl::OkStatus();
}

void SchedulerLink::Start(NodeApi& api, PluginControl& plugins, ControllerDirectory& controllers,
                          ControllerCalls& calls, NodeDrainer& drainer) {
  if (!store_) return;
  UplinkOptions options{
      .node_id = config_.node_id,
      .version = kBerthVersion,
      .on_lease_expiry = config_.scheduler.on_lease_expiry,
      .may = config_.scheduler.may,
  };
  for (const UplinkAddress& address : config_.scheduler.addresses) options.addresses.push_back(address.text);
  dialer_ = std::make_unique<SchedulerDialer>(config_.scheduler);
  UplinkParts parts{
      .dialer = *dialer_,
      .lease = *keeper_,
      .rows = *store_,
      .api = api,
      .plugins = plugins,
      .controllers = controllers,
      .mounter = mounter_,
      .events = events_,
      .controller = [&calls](v1::ControllerCall call,
                             TimePoint deadline) { return calls.Call(std::move(call), deadline); },
  };
  uplink_ = std::make_unique<Uplink>(executor_, std::move(options), std::move(parts), std::move(rows_));
  for (const Ended& ended : std::exchange(ended_early_, {})) {
    uplink_->OnConsumerEnded(ended.consumer, ended.cause, ended.origin);
  }
  uplink_->Start();
  tasks_.Spawn("drain", FollowDrain(drainer));
}

Awaitable<void> SchedulerLink::FollowDrain(NodeDrainer& drainer) {
  while (true) {
    const uint64_t seen = drainer.version();
    co_await drainer.WaitChange(seen, TimePoint::max());
    uplink_->OnNodeChanged();
  }
}

Awaitable<void> SchedulerLink::Shutdown(TimePoint deadline, bool machine_stops) {
  co_await tasks_.Join();
  if (uplink_) co_await uplink_->Shutdown(machine_stops);
  if (keeper_) co_await keeper_->Shutdown();
  if (store_) co_await store_->Flush(deadline);
}

void SchedulerLink::OnVolumeChanged(const std::string& plugin_id, const std::string& volume_id, bool here) {
  if (uplink_) uplink_->OnVolumeChanged(plugin_id, volume_id, here);
}

void SchedulerLink::OnNodeChanged() {
  if (uplink_) uplink_->OnNodeChanged();
}

void SchedulerLink::OnConsumerEnded(const std::string& consumer, const std::string& cause, Origin origin) {
  if (uplink_) {
    uplink_->OnConsumerEnded(consumer, cause, origin);
  } else if (config_.scheduler.wanted() && ended_early_.size() < kEndedEarly) {
    ended_early_.push_back({.consumer = consumer, .cause = cause, .origin = origin});
  }
}

std::vector<std::string> SchedulerLink::Problems() const {
  std::vector<std::string> problems;
  if (!store_) return problems;
  if (std::string problem = store_->problem(); !problem.empty()) problems.push_back("link.db: " + problem);
  for (std::string& problem : keeper_->Problems()) problems.push_back(std::move(problem));
  return problems;
}

std::optional<v1::LinkStatus> SchedulerLink::Status() const {
  return uplink_ ? uplink_->Status() : std::nullopt;
}

absl::Status SchedulerLink::WhyNoLink() const {
  if (store_) return absl::UnavailableError("the link to the scheduler is not up yet");
  return absl::FailedPreconditionError(
      "this node has no scheduler: berthd.toml names none under [scheduler]");
}

Awaitable<absl::StatusOr<v1::Answer>> SchedulerLink::Ask(v1::Ask ask, bool wait, TimePoint deadline,
                                                         OnProgress on_progress) {
  if (!uplink_) co_return WhyNoLink();
  co_return co_await uplink_->Ask(std::move(ask), wait, deadline, std::move(on_progress));
}

Awaitable<absl::StatusOr<v1::TokenAnswer>> SchedulerLink::Tokens(v1::TokenAsk ask, TimePoint deadline) {
  v1::Ask asked;
  *asked.mutable_token() = std::move(ask);
  BERTH_CO_ASSIGN_OR_RETURN(v1::Answer answer, co_await Ask(std::move(asked), true, deadline, {}));
  co_return std::move(*answer.mutable_token());
}

}  // namespace berth
