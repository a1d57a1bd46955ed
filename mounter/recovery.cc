#include "mounter/recovery.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include "base/status.h"
#include "mounter/mount_table.h"

namespace berth {
namespace {

constexpr size_t kMountLimit = 1'000'000;

bool IsThere(const VolumeRecord& record, const PathFacts& facts) {
  if (record.use.access_type == AccessType::kBlock) return facts.exists && S_ISBLK(facts.mode);
  return facts.mount_root;
}

}  // namespace

absl::StatusOr<std::map<std::string, VolumeMachine>> ReadRows(const std::map<std::string, std::string>& rows,
                                                              const std::string& boot_id) {
  std::map<std::string, VolumeMachine> machines;
  for (const auto& [key, bytes] : rows) {
    auto record = DecodeRecord(bytes);
    if (!record.ok()) return Annotate(record.status(), fmt::format("journal: row {}", Printable(key, 64)));
    const bool rebooted = record->boot_id != boot_id;
    machines.emplace(key, VolumeMachine::Recovered(*std::move(record), rebooted));
  }
  return machines;
}

std::vector<std::pair<PublicationKey, std::string>> FindLost(const VolumeRecord& record,
                                                             const VolumePaths& paths,
                                                             const std::string& boot_id) {
  std::vector<std::pair<PublicationKey, std::string>> lost;
  for (const PublicationRecord& publication : record.publications) {
    if (publication.state != PublicationState::kPublished) continue;
    const auto facts = paths.LookAtTarget(record, publication);
    if (!facts.ok()) {
      lost.emplace_back(publication.key, facts.status().ToString());
    } else if (!IsThere(record, *facts)) {
      lost.emplace_back(
          publication.key,
          fmt::format("not {} any more: {}; publish it again, or unpublish it",
                      record.use.access_type == AccessType::kBlock ? "there" : "mounted",
                      record.boot_id == boot_id ? "somebody else unmounted it" : "the node was restarted"));
    }
  }
  return lost;
}

void ReportStrangers(const VolumePaths& paths, const std::map<std::string, VolumeMachine>& rows,
                     EventLog& events) {
  const auto names = paths.List();
  if (!names.ok()) {
    SPDLOG_WARN("{}", names.status().ToString());
    return;
  }
  for (const std::string& name : *names) {
    if (rows.contains(name)) continue;
    events.Append({.type = "volume.stranger",
                   .plugin_id = "",
                   .volume_id = "",
                   .consumer = "",
                   .message = fmt::format("{}/{}: not in the journal, left alone ({})", paths.tree(),
                                          Printable(name, 128), paths.DescribeDirectory(name))});
  }
  // One parse of the whole table: a mount of a volume that nobody knows is worth a word, too.
  const auto mounts = MountsBeneath(paths.tree(), kMountLimit);
  if (!mounts.ok()) {
    SPDLOG_WARN("{}", mounts.status().ToString());
    return;
  }
  for (const Mount& mount : *mounts) {
    if (mount.target.size() <= paths.tree().size()) continue;
    const std::string beneath = mount.target.substr(paths.tree().size() + 1);
    if (rows.contains(beneath.substr(0, beneath.find('/')))) continue;
    events.Append(
        {.type = "volume.stranger",
         .plugin_id = "",
         .volume_id = "",
         .consumer = "",
         .message = fmt::format("{}: mounted, and not in the journal; left alone", Printable(mount.target))});
  }
}

}  // namespace berth
