// VolumeActor: NodeGetVolumeStats and NodeGetVolumeHealth, past the queue.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status.h"
#include "mounter/volume_actor.h"
#include "mounter/volume_rpcs.h"

namespace berth {

// One call of NodeGetVolumeStats, with everybody who waits for it.
struct VolumeActor::SharedStats {
  explicit SharedStats(asio::any_io_executor executor) : finished(std::move(executor)) {}

  std::optional<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> result;
  Condition finished;

  static Awaitable<void> Ask(std::shared_ptr<SharedStats> self, std::shared_ptr<VolumeActor> actor,
                             std::shared_ptr<CsiClient> client, ::csi::v1::NodeGetVolumeStatsRequest request,
                             TimePoint deadline) {
    self->result = co_await client->NodeGetVolumeStats(std::move(request), deadline);
    if (actor->stats_ == self) actor->stats_.reset();
    // A plugin of CSI 1.13 says it elsewhere.
    if (self->result->ok() && (*self->result)->has_volume_condition()) {
      actor->NoteCondition(ReadHealth((*self->result)->volume_condition()));
    }
    self->finished.NotifyAll();
  }
};

void VolumeActor::NoteCondition(ConditionView told) {
  if (!machine_.present() || told == condition_) return;
  const ConditionView before = condition_.value_or(ConditionView());
  const bool news = told.abnormal != before.abnormal || !SameKind(told.statuses, before.statuses);
  condition_ = std::move(told);
  if (news && condition_->abnormal) {
    reporter_.Emit("volume.abnormal", "", fmt::format("its plugin says of it: {}", condition_->message));
  } else if (news) {
    reporter_.Emit("volume.normal", "", "its plugin says that nothing is wrong with it any more");
  }
  reporter_.ReportView();
}

Awaitable<bool> VolumeActor::AskHealth(std::shared_ptr<VolumeActor> self, TimePoint deadline) {
  const VolumeRecord& record = self->machine_.record();
  const auto published =
      std::ranges::find(record.publications, PublicationState::kPublished, &PublicationRecord::state);
  // A file system that hangs is known to be unwell, and keeps the plugin's call too.
  const bool hangs = self->machine_.stuck().has_value() ||
                     std::ranges::any_of(record.publications, [](const auto& p) { return !p.hung.empty(); });
  const auto plugin = self->context_.plugins.Find(record.plugin_id);
  if (published == record.publications.end() || hangs || !plugin.ok()) co_return true;
  using Rpc = ::csi::v1::NodeServiceCapability::RPC;
  if (plugin->facts.NodeCan(Rpc::GET_VOLUME_HEALTH)) {
    auto request = SeenByPlugin(HealthRequest(record, *published, *self->context_.paths),
                                self->context_.paths->tree(), plugin->volumes_path);
    const auto health = co_await plugin->client->NodeGetVolumeHealth(std::move(request), deadline);
    // Without an answer, what it said last counts.
    if (health.ok()) self->NoteCondition(ReadHealth(health->volume_health()));
    co_return !absl::IsDeadlineExceeded(health.status());
  }
  if (plugin->facts.NodeCan(Rpc::VOLUME_CONDITION) && plugin->facts.NodeCan(Rpc::GET_VOLUME_STATS)) {
    co_return !absl::IsDeadlineExceeded((co_await Stats(self, deadline)).status());
  }
  co_return true;
}

Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> VolumeActor::Stats(
    std::shared_ptr<VolumeActor> self, TimePoint deadline) {
  const std::string plugin_id = self->machine_.record().plugin_id;
  const auto published = [&self] {
    const auto& publications = self->machine_.record().publications;
    return std::ranges::find(publications, PublicationState::kPublished, &PublicationRecord::state);
  };
  if (published() == self->machine_.record().publications.end()) {
    co_return absl::NotFoundError("the volume is not published on this node");
  }
  if (self->stats_ == nullptr) {
    // It may be on its way back: being restarted or swapped.
    const StepProgress untold{.waiting = [](std::string) {}, .sending = [](std::string_view) {}};
    const auto usable = co_await self->caller_.FindPlugin(plugin_id, untold, deadline);
    if (!usable.ok()) co_return usable.status();
  }
  std::shared_ptr<SharedStats> shared = self->stats_;
  if (shared == nullptr) {
    const VolumeRecord& record = self->machine_.record();
    const auto found = published();
    if (found == record.publications.end())
      co_return absl::NotFoundError("the volume is not published on this node");
    auto plugin = self->context_.plugins.Find(plugin_id);
    if (!plugin.ok()) co_return plugin.status();
    if (!plugin->facts.NodeCan(::csi::v1::NodeServiceCapability::RPC::GET_VOLUME_STATS)) {
      co_return absl::FailedPreconditionError(
          fmt::format("plugin {} has no GET_VOLUME_STATS", record.plugin_id));
    }
    shared = std::make_shared<SharedStats>(self->context_.executor);
    self->stats_ = shared;
    auto request = SeenByPlugin(StatsRequest(record, *found, *self->context_.paths),
                                self->context_.paths->tree(), plugin->volumes_path);
    self->context_.scope.Spawn("stats", SharedStats::Ask(shared, self, plugin->client, std::move(request),
                                                         Clock::now() + self->context_.options.rpc_timeout));
  }
  auto done = [shared] { return shared->result.has_value(); };
  if (!co_await shared->finished.WaitUntil(std::move(done), deadline)) {
    co_return absl::DeadlineExceededError(
        fmt::format("plugin {}: NodeGetVolumeStats: no answer yet", self->machine_.record().plugin_id));
  }
  if (!shared->result->ok()) {
    co_return Annotate(shared->result->status(), fmt::format("plugin {}: NodeGetVolumeStats", plugin_id));
  }
  co_return *shared->result;
}

}  // namespace berth
