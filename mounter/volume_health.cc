#include "mounter/volume_health.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "mounter/volume_rpcs.h"

namespace berth {

// One call of NodeGetVolumeStats, with everybody who waits for it.
struct VolumeHealth::SharedStats {
  explicit SharedStats(asio::any_io_executor executor) : finished(std::move(executor)) {}

  std::optional<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> result;
  Condition finished;

  static Awaitable<void> Ask(std::shared_ptr<SharedStats> self, std::shared_ptr<VolumeHealth> health,
                             std::shared_ptr<CsiClient> client, ::csi::v1::NodeGetVolumeStatsRequest request,
                             TimePoint deadline) {
    self->result = co_await client->NodeGetVolumeStats(std::move(request), deadline);
    if (health->stats_ == self) health->stats_.reset();
    // A plugin of CSI 1.13 says it elsewhere.
    if (self->result->ok() && (*self->result)->has_volume_condition()) {
      health->NoteCondition(ReadHealth((*self->result)->volume_condition()));
    }
    self->finished.NotifyAll();
  }
};

void VolumeHealth::NoteCondition(ConditionView now) {
  if (!volume_.machine.present() || now == volume_.condition) return;
  const ConditionView before = volume_.condition.value_or(ConditionView());
  const bool news = now.abnormal != before.abnormal || !SameKind(now.statuses, before.statuses);
  volume_.condition = std::move(now);
  if (news && volume_.condition->abnormal) {
    volume_.reporter.Emit("volume.abnormal", "",
                          fmt::format("its plugin says of it: {}", volume_.condition->message));
  } else if (news) {
    volume_.reporter.Emit("volume.normal", "", "its plugin says that nothing is wrong with it any more");
  }
  volume_.reporter.ReportView();
}

Awaitable<bool> VolumeHealth::Ask(std::shared_ptr<VolumeHealth> self, TimePoint deadline) {
  const VolumeRecord& record = self->volume_.machine.record();
  const auto published =
      std::ranges::find(record.publications, PublicationState::kPublished, &PublicationRecord::state);
  // A file system that hangs is known to be unwell, and keeps the plugin's call too.
  const bool hangs = self->volume_.machine.stuck().has_value() ||
                     std::ranges::any_of(record.publications, [](const auto& p) { return !p.hung.empty(); });
  const auto plugin = self->volume_.context.plugins.Find(record.plugin_id);
  if (published == record.publications.end() || hangs || !plugin.ok()) co_return true;
  using Rpc = ::csi::v1::NodeServiceCapability::RPC;
  if (plugin->facts.NodeCan(Rpc::GET_VOLUME_HEALTH)) {
    auto request = SeenByPlugin(HealthRequest(record, *published, *self->volume_.context.paths),
                                self->volume_.context.paths->tree(), plugin->volumes_path);
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

Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> VolumeHealth::Stats(
    std::shared_ptr<VolumeHealth> self, TimePoint deadline) {
  const std::string plugin_id = self->volume_.machine.record().plugin_id;
  const auto published = [&self] {
    const auto& publications = self->volume_.machine.record().publications;
    return std::ranges::find(publications, PublicationState::kPublished, &PublicationRecord::state);
  };
  if (published() == self->volume_.machine.record().publications.end()) {
    co_return absl::NotFoundError("the volume is not published on this node");
  }
  if (self->stats_ == nullptr) {
    // It may be on its way back: being restarted or swapped.
    const StepProgress unreported{.waiting = [](std::string) {}, .sending = [](std::string_view) {}};
    const auto usable = co_await self->caller_.FindPlugin(plugin_id, unreported, deadline);
    if (!usable.ok()) co_return usable.status();
  }
  std::shared_ptr<SharedStats> shared = self->stats_;
  if (shared == nullptr) {
    const VolumeRecord& record = self->volume_.machine.record();
    const auto found = published();
    if (found == record.publications.end())
      co_return absl::NotFoundError("the volume is not published on this node");
    auto plugin = self->volume_.context.plugins.Find(plugin_id);
    if (!plugin.ok()) co_return plugin.status();
    if (!plugin->facts.NodeCan(::csi::v1::NodeServiceCapability::RPC::GET_VOLUME_STATS)) {
      co_return absl::FailedPreconditionError(
          fmt::format("plugin {} has no GET_VOLUME_STATS", record.plugin_id));
    }
    shared = std::make_shared<SharedStats>(self->volume_.context.executor);
    self->stats_ = shared;
    auto request = SeenByPlugin(StatsRequest(record, *found, *self->volume_.context.paths),
                                self->volume_.context.paths->tree(), plugin->volumes_path);
    self->volume_.context.scope.Spawn(
        "stats", SharedStats::Ask(shared, self, plugin->client, std::move(request),
                                  Clock::now() + self->volume_.context.options.rpc_timeout));
  }
  auto done = [shared] { return shared->result.has_value(); };
  if (!co_await shared->finished.WaitUntil(std::move(done), deadline)) {
    co_return absl::DeadlineExceededError(fmt::format("plugin {}: NodeGetVolumeStats: no answer yet",
                                                      self->volume_.machine.record().plugin_id));
  }
  if (!shared->result->ok()) {
    co_return Annotate(shared->result->status(), fmt::format("plugin {}: NodeGetVolumeStats", plugin_id));
  }
  co_return *shared->result;
}

}  // namespace berth
