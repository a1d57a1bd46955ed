// What all volumes of one Mounter share. Owned by the Mounter, which outlives every user; loop thread only.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/event_log.h"
#include "base/process.h"
#include "base/status.h"
#include "base/task_scope.h"
#include "consumers/consumer_end.h"
#include "consumers/consumer_watch.h"
#include "journal/journal.h"
#include "mounter/identity_sync.h"
#include "mounter/mounter.h"
#include "mounter/pending_expansions.h"
#include "mounter/plugin_call_limit.h"
#include "mounter/volume_paths.h"
#include "mounter/volume_release.h"
#include "mounts/mount_helper.h"
#include "mounts/mount_watch.h"

namespace berth {

struct MounterContext {
  MounterContext(const asio::any_io_executor& loop, MounterOptions opts, PluginDirectory& directory,
                 EventLog& log, std::unique_ptr<Journal> opened_journal, VolumePaths opened_paths)
      : executor(loop),
        options(std::move(opts)),
        plugins(directory),
        events(log),
        paths(std::move(opened_paths)),
        journal(std::move(opened_journal)),
        identity_sync(*journal, [this](const auto& keys) { return paths->SyncIdentities(keys); }),
        scope(loop, "mounter"),
        helper(options.helper_path, scope, options.state_dir + "/paths.lock"),
        consumers(loop),
        consumer_end(consumers, options.consumer_end),
        census(loop, scope, helper,
               [this](const std::set<dev_t>& devices) { return recorded_mounts(devices); }),
        release(census, helper, paths->tree()),
        gates(loop, options.calls_per_plugin),
        token_gate(loop, kTokenAsks),
        work_ended(loop) {}

  asio::any_io_executor executor;
  MounterOptions options;
  PluginDirectory& plugins;
  EventLog& events;
  // Reset at shutdown: it keeps the tree's mount busy. The journal's writer uses it, and ends before it.
  std::optional<VolumePaths> paths;
  std::unique_ptr<Journal> journal;
  IdentitySync identity_sync;
  PendingExpansions pending_expansions;
  TaskScope scope;
  MountHelper helper;
  ConsumerWatch consumers;
  ConsumerEnd consumer_end;
  // From Recover on; none where the kernel does not let us watch.
  std::unique_ptr<MountWatch> watch;
  Census census;
  VolumeRelease release;
  PluginCallLimit gates;
  // How many publications wait for tokens at a time: all of them want some when a scheduler comes back.
  static constexpr size_t kTokenAsks = 64;
  PluginCallLimit token_gate;
  // Before, no volume moves of itself: there are no plugins yet, and what the kernel shows is not known.
  bool recovered = false;
  // Why nothing goes forward any more (Mounter::BeginShutdown); empty: it may.
  std::string leaving;
  // Everything ends: reverse steps, too.
  bool stopping = false;
  Condition work_ended;  // some volume's

  // The other volumes here that are this one (VolumeRecord::IsSame), but for those that the kernel has
  // released. Until the next co_await.
  std::function<std::vector<const VolumeRecord*>(const VolumeRecord&)> same_volumes;
  // The row of this volume is about to be deleted: the others that are the same object remember its name.
  std::function<void(const VolumeRecord&)> leaves;
  // How many volumes are held through a plugin.
  std::function<size_t(const std::string& plugin_id)> volumes_through;
  Census::RecordedMounts recorded_mounts;
  // A consumer has ended, for which `origin` had published.
  std::function<void(const std::string& consumer, const std::string& cause, Origin origin)> consumer_ended;
  // A consumer begins or ceases to use the volume of this journal key.
  std::function<void(const std::string& consumer, const std::string& key, bool used)> uses;

  // UNAVAILABLE once nothing goes forward any more.
  [[nodiscard]] absl::Status CheckNotShuttingDown() const {
    return leaving.empty() ? absl::OkStatus() : absl::UnavailableError(leaving);
  }

  // The rows to write when the row of `record` is deleted: an expansion that is pending stays pending.
  [[nodiscard]] JournalRows KeepPending(const VolumeRecord& record) {
    const int64_t bytes =
        std::max(pending_expansions.Of(record.plugin_id, record.volume_id), record.pending_expansion_bytes);
    if (bytes == 0) return {};
    auto rows = pending_expansions.Set(record.plugin_id, record.volume_id, bytes);
    if (rows.ok()) return *std::move(rows);
    events.Append({.type = "volume.forgotten",
                   .plugin_id = record.plugin_id,
                   .volume_id = record.volume_id,
                   .message = fmt::format("that it is to be expanded to {} bytes: {}", bytes,
                                          MessageOf(rows.status()))});
    return {};
  }

  // Begins or ends to watch a mount of the volume with the journal key `key`. 0: no mount.
  void Track(uint64_t mount_id, const std::string& key) const {
    if (mount_id != 0 && watch != nullptr) watch->Track(mount_id, key);
  }
  void Untrack(uint64_t mount_id) const {
    if (mount_id != 0 && watch != nullptr) watch->Untrack(mount_id);
  }

  void Boundary(std::string_view point) const {
    if (options.at_boundary) options.at_boundary(point);
  }
};

}  // namespace berth
