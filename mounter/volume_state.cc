#include "mounter/volume_state.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "mounts/kernel_object.h"
#include "mounts/tree_access.h"

namespace berth {

VolumeState::VolumeState(MounterContext& ctx, VolumeMachine initial)
    : context(ctx),
      machine(std::move(initial)),
      key(VolumePaths::VolumeKey(machine.record().plugin_id, machine.record().volume_id)),
      reporter(context, machine, key),
      row{.context = context, .machine = machine, .key = key},
      queue(context.executor, context.options.queue_per_volume),
      changed(context.executor),
      tokens(context, machine, reporter, secrets, key),
      status(machine, reporter, queue, trying) {}

Awaitable<absl::Status> VolumeRow::Commit() {
  context.Boundary("outcome: writing");
  const absl::Status status = co_await context.journal->Put(key, EncodeRecord(machine.record()));
  stale = !status.ok();
  context.Boundary("outcome: written");
  co_return status;
}

void VolumeRow::SaveSoon() const {
  if (machine.present()) context.journal->PutSoon(key, EncodeRecord(machine.record()));
}

void VolumeRow::WriteIdentity() const {
  const absl::Status written = context.paths->WriteIdentity(machine.record());
  if (!written.ok()) SPDLOG_WARN("{}", MessageOf(written));
}

void VolumeRow::SyncIdentitySoon() const { context.identity_sync.Add(key); }

void VolumeState::NoteObjects(const std::string& path, uint64_t mount_id, Noted noted) {
  const auto facts = LookAt(path);
  // A foreign mount over it is not the volume.
  if (facts.ok() && mount_id != 0 && facts->mount_id != mount_id) return;
  auto objects = ObjectsAt(path, context.paths->tree());
  if (objects.ok()) {
    const auto another_disk = [this](const KernelObject& object) {
      return std::ranges::any_of(machine.record().objects, [&object](const KernelObject& known) {
        return known.disk_sequence != 0 && known.device == object.device && known.disk == object.disk &&
               known.disk_sequence != object.disk_sequence;
      });
    };
    if (noted == Noted::kBefore) std::erase_if(*objects, another_disk);
    machine.AddObjects(*objects);
    return;
  }
  SPDLOG_WARN("{}: what is mounted there is not known: {}", path, MessageOf(objects.status()));
  // Nothing is noted of it: then it counts as in use until a reboot, rather than as released.
  if (machine.record().objects.empty()) machine.AddObjects({KernelObject{}});
}

}  // namespace berth
