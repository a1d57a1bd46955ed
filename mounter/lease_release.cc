#include "mounter/lease_release.h"

#include <absl/cleanup/cleanup.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "base/status.h"
#include "mounts/mount_table.h"

namespace berth {
namespace {

using Mode = ::csi::v1::VolumeCapability::AccessMode;

// Whether no other node may write to the volume while this one uses it, by its access mode: only then is a
// forced release of use. Reading does no harm; if several nodes may write at once, they keep order among
// themselves, also while this node is silent.
bool OneNodeWrites(const VolumeRecord& record, Origin origin) {
  const auto mode = record.use.access_mode;
  if (ReadsOnly(mode) || mode == Mode::MULTI_NODE_MULTI_WRITER) return false;
  // The single-node modes, and whatever is not known, though a consumer only reads: the volume can be nowhere
  // else before it has left.
  if (mode != Mode::MULTI_NODE_SINGLE_WRITER) return true;
  // This node may be one of those that only read.
  return std::ranges::any_of(record.publications, [origin](const PublicationRecord& p) {
    return p.origin == origin && !p.readonly;
  });
}

// Beyond the deadline by which each consumer has ended, or has not.
constexpr Duration kAfterDeadline = std::chrono::seconds(1);

// What one process, cgroup or unit has of a volume.
struct ConsumerShare {
  ConsumerLife life;
  std::vector<PublicationKey> keys;  // never empty
};

// What several publications of a volume's are used by is asked to end once.
std::vector<ConsumerShare> SharesOf(const std::vector<PublicationRecord>& publications) {
  std::vector<ConsumerShare> shares;
  for (const PublicationRecord& p : publications) {
    const ConsumerLife life = p.Consumer();
    auto share = std::ranges::find(shares, life, &ConsumerShare::life);
    if (share == shares.end()) share = shares.insert(share, {.life = life, .keys = {}});
    share->keys.push_back(p.key);
  }
  return shares;
}

}  // namespace

// The consumers that lose a volume; shared with the coroutines that wait for them.
struct LeaseRelease::Leaving {
  Leaving(const asio::any_io_executor& executor, std::vector<ConsumerShare> of)
      : shares(std::move(of)),
        results(shares.size(), absl::DeadlineExceededError("not ended yet")),
        left(shares.size()),
        changed(executor) {}
  std::vector<ConsumerShare> shares;
  std::vector<absl::Status> results;
  size_t left;
  Condition changed;
};

std::vector<VolumeRef> LeaseRelease::SingleWriterVolumes(Origin origin) const {
  std::vector<VolumeRef> names;
  for (const auto& [key, actor] : table_.all()) {
    const VolumeRecord& record = actor->machine().record();
    const bool its = std::ranges::count(record.publications, origin, &PublicationRecord::origin) > 0;
    if (actor->present() && its && OneNodeWrites(record, origin)) {
      names.push_back({.plugin_id = record.plugin_id, .volume_id = record.volume_id});
    }
  }
  std::ranges::sort(names);
  return names;
}

Awaitable<absl::StatusOr<UnpublishResult>> LeaseRelease::ForceRelease(VolumeRef volume, Origin origin,
                                                                      TimePoint deadline) {
  const std::string context = fmt::format("release volume {}", Printable(volume.volume_id, 128));
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  // By value: what is awaited changes the record, and their ends release them too.
  std::vector<PublicationRecord> publications;
  if (const auto actor = table_.Find(volume.plugin_id, volume.volume_id)) {
    publications = actor->machine().record().publications;
  }
  std::erase_if(publications, [origin](const PublicationRecord& p) { return p.origin != origin; });
  // Side by side, so that one that does not end takes no time from the others.
  const auto leaving = std::make_shared<Leaving>(context_.executor, SharesOf(publications));
  for (size_t i = 0; i < leaving->shares.size(); ++i) {
    context_.scope.Spawn(context, TakeFrom(leaving, i, volume, deadline));
  }
  auto all_done = [leaving] { return leaving->left == 0; };
  // Each ends by the deadline, with its result.
  [[maybe_unused]] const bool all =
      co_await leaving->changed.WaitUntil(std::move(all_done), deadline + kAfterDeadline);
  for (const absl::Status& result : leaving->results) BERTH_CO_RETURN_IF_ERROR(Annotate(result, context));
  BERTH_CO_RETURN_IF_ERROR(Annotate(CheckReleased(volume), context));
  co_return UnpublishResult{.was_published = !publications.empty()};
}

Awaitable<void> LeaseRelease::TakeFrom(std::shared_ptr<Leaving> leaving, size_t index, VolumeRef volume,
                                       TimePoint deadline) {
  const ConsumerShare& share = leaving->shares[index];
  const absl::Cleanup done = [leaving] {
    --leaving->left;
    leaving->changed.NotifyAll();
  };
  absl::Status& result = leaving->results[index];
  const absl::Status ended = co_await context_.consumer_end.End(share.life, deadline);
  if (!ended.ok()) {
    // It may still write: its volume is not taken from under it.
    result = Annotate(ended, fmt::format("end {}", Describe(share.keys.front())));
    co_return;
  }
  absl::Status first_error;
  for (const PublicationKey& key : share.keys) {
    UnpublishRequest request{.plugin_id = volume.plugin_id,
                             .volume_id = volume.volume_id,
                             .consumer = key.consumer,
                             .name = key.name};
    const auto undone = co_await unpublish_(std::move(request), deadline);
    if (first_error.ok()) first_error = undone.status();
  }
  result = first_error;
}

absl::Status LeaseRelease::CheckReleased(const VolumeRef& volume) const {
  if (const auto actor = table_.Find(volume.plugin_id, volume.volume_id);
      actor != nullptr && actor->present()) {
    for (const PublicationRecord& p : actor->machine().record().publications) {
      return absl::FailedPreconditionError(fmt::format("it is published for {} still", Describe(p.key)));
    }
    return absl::FailedPreconditionError(actor->machine().plan().InUseByKernel()
                                             ? actor->machine().record().last_error
                                             : "it is not unstaged yet");
  }
  // Ask the kernel, whatever the records say.
  const std::string directory = fmt::format("{}/{}", context_.paths->tree(),
                                            VolumePaths::VolumeKey(volume.plugin_id, volume.volume_id));
  BERTH_ASSIGN_OR_RETURN(const auto mounts, MountsBeneath(directory, 64));
  if (mounts.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("{} is mounted still", Printable(mounts.front().target)));
}

}  // namespace berth
