// The mounter's part in leases: what waits for a scheduler that is not reached, and how its volumes are
// released.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "mounter/mounter_impl.h"
#include "mounts/mount_table.h"

namespace berth {
void MounterImpl::ReportAwaitingScheduler(std::string message) {
  if (std::exchange(reported_awaiting_scheduler_, true)) return;
  context_.events.Append({.type = "node.awaiting_scheduler",
                          .plugin_id = "",
                          .volume_id = "",
                          .consumer = "",
                          .message = std::move(message)});
}

size_t MounterImpl::UnblockForward(Origin origin, BootTime since) {
  if (!context_.leaving.empty()) return 0;
  if (origin == Origin::kScheduler) {
    reported_awaiting_scheduler_ = false;
    scheduler_blocked_.clear();
  }
  size_t unconfirmed = 0;
  const auto actors = table_.all();
  for (const auto& [key, actor] : actors) unconfirmed += actor->reconciler().UnblockForward(origin, since);
  return unconfirmed;
}

Awaitable<absl::StatusOr<std::vector<PublicationRef>>> MounterImpl::Confirm(
    std::vector<PublicationRef> wanted, TimePoint deadline) {
  BERTH_CO_RETURN_IF_ERROR(Annotate(context_.CheckNotShuttingDown(), "confirm publications"));
  if (!scheduler_blocked_.empty()) {
    co_return absl::UnavailableError(fmt::format("confirm publications: {}", scheduler_blocked_));
  }
  std::vector<PublicationRef> not_enough;
  for (PublicationRef& use : wanted) {
    const auto actor = table_.Find(use.plugin_id, use.volume_id);
    const PublicationKey key{.consumer = use.consumer, .name = use.name};
    const bool confirmed = actor != nullptr && actor->present() && actor->reconciler().Confirm(key);
    if (!confirmed) not_enough.push_back(std::move(use));
  }
  co_await context_.journal->Flush(deadline);
  co_return not_enough;
}

void MounterImpl::BlockForward(Origin origin, std::string why) {
  if (origin == Origin::kScheduler) {
    scheduler_blocked_ = why;
    ++scheduler_blocks_;
  }
  const auto actors = table_.all();
  size_t its = 0;
  size_t awaiting = 0;
  for (const auto& [key, actor] : actors) {
    actor->reconciler().BlockForward(origin, why);
    const auto& publications = actor->machine().record().publications;
    its += std::ranges::count(publications, origin, &PublicationRecord::origin) > 0 ? 1 : 0;
    awaiting += actor->reconciler().HasBlocked(origin) ? 1 : 0;
  }
  if (its == 0) return;
  ReportAwaitingScheduler(
      fmt::format("{}: of its {} volumes {} are blocked; what is mounted stays, and nothing new is begun",
                  why, its, awaiting));
}

void MounterImpl::OnTokensWantedChanged() {
  const auto actors = table_.all();
  for (const auto& [key, actor] : actors) actor->OnTokensWantedChanged();
}

}  // namespace berth
