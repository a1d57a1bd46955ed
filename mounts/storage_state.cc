#include "mounts/storage_state.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>

#include "base/file.h"
#include "base/mountinfo.h"
#include "base/safe_path.h"
#include "base/statmount.h"
#include "base/status.h"

namespace berth {
namespace {

bool HasOption(std::string_view options, std::string_view wanted) {
  while (!options.empty()) {
    const size_t end = std::min(options.find(','), options.size());
    if (options.substr(0, end) == wanted) return true;
    options.remove_prefix(std::min(end + 1, options.size()));
  }
  return false;
}

// Why the disk behind `device` is not the one that was recorded. Empty: it is, or that is not known.
std::string DiskTrouble(dev_t device, const std::vector<KernelObject>& objects) {
  uint64_t recorded = 0;
  for (const KernelObject& object : objects) {
    if (object.device != device || object.disk != device || object.disk_sequence == 0) continue;
    // What earlier uses had may be gone.
    if (!DiskIsGone(object)) return "";
    recorded = object.disk_sequence;
  }
  if (recorded == 0) return "";
  const std::string disk = fmt::format("its disk (block device {}:{})", major(device), minor(device));
  return DiskSequence(device) == 0 ? disk + " was detached"
                                   : disk + " was detached, and that number is another disk's by now";
}

}  // namespace

std::optional<bool> DeviceIsReadonly(dev_t device) {
  const auto text = ReadFile(fmt::format("/sys/dev/block/{}:{}/ro", major(device), minor(device)), 16);
  if (!text.ok() || text->empty()) return std::nullopt;
  return text->front() == '1';
}

StorageState StateFromOptions(std::string_view options, bool read_only) {
  StorageState state;
  if (HasOption(options, "shutdown")) state.dead = "its file system was shut down after an error (shutdown)";
  if (HasOption(options, "emergency_ro")) {
    state.read_only = "its file system made itself read-only after an error (emergency_ro)";
  } else if (read_only || HasOption(options, "ro")) {
    state.read_only = "its file system is read-only";
  }
  return state;
}

std::optional<StorageLook::Shown> StorageLook::Ask(const std::string& path, uint64_t mount_id) {
  const auto told = StatMountState(mount_id);
  if (told.ok() && told->has_value()) {
    return Shown{.fs_type = (*told)->fs_type,
                 .options = (*told)->options,
                 .read_only = (*told)->readonly,
                 .device = (*told)->device};
  }
  if (!told.ok()) return std::nullopt;
  if (!table_.has_value()) {
    table_.emplace();
    const absl::Status read = ReadMountinfo("/proc/self/mountinfo", [this](const MountinfoLine& line) {
      // The last one with a path lies on top.
      table_->insert_or_assign(DecodeMountinfo(line.target),
                               Shown{.fs_type = std::string(line.fs_type),
                                     .options = std::string(line.options),
                                     .read_only = HasOption(line.mount_options, "ro"),
                                     .device = makedev(line.device_major, line.device_minor)});
      return true;
    });
    read.IgnoreError();  // what is not in it is not known
  }
  const auto line = table_->find(path);
  return line == table_->end() ? std::nullopt : std::optional(line->second);
}

StorageState StorageLook::At(const std::string& path, const std::vector<KernelObject>& objects) {
  const auto facts = LookAt(path);
  if (!facts.ok() || !facts->exists) return {};
  if (S_ISBLK(facts->mode)) {
    StorageState state{.there = true,
                       .mount_id = facts->mount_id,
                       .device = facts->special,
                       .dead = DiskTrouble(facts->special, objects)};
    if (DeviceIsReadonly(facts->special).value_or(false)) state.read_only = "its block device is read-only";
    return state;
  }
  if (!facts->mount_root) return {};
  constexpr std::string_view kRefuses = "its file system answers only with errors";
  const auto shown = Ask(path, facts->mount_id);
  StorageState state;
  if (shown.has_value()) {
    state = StateFromOptions(shown->options, shown->read_only);
    state.fs_type = shown->fs_type;
    state.device = shown->device;
    if (state.dead.empty()) state.dead = DiskTrouble(shown->device, objects);
  }
  if (state.dead.empty() && facts->refused != 0) {
    state.dead = std::string(ErrnoStatus(facts->refused, kRefuses).message());
  }
  state.there = true;
  state.mount_id = facts->mount_id;
  return state;
}

absl::Status CheckUsable(const std::string& path, const std::vector<KernelObject>& objects, bool writes) {
  const StorageState state = StorageLook().At(path, objects);
  if (!state.dead.empty()) return absl::FailedPreconditionError(fmt::format("{}: {}", path, state.dead));
  if (!writes || state.read_only.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{}: {}, and it was asked for to be written", path, state.read_only));
}

}  // namespace berth
