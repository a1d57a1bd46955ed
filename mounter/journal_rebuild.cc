#include "mounter/journal_rebuild.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <utility>

#include "base/status.h"

namespace berth {
namespace {

constexpr char kLost[] = "the journal was lost, and it is not mounted";

// What the kernel shows at its target decides.
void JudgePublication(const VolumePaths& paths, const VolumeRecord& record, PublicationRecord& publication) {
  const auto facts = paths.LookAtTarget(record, publication);
  const bool block = record.use.access_type == AccessType::kBlock;
  const bool there = facts.ok() && facts->exists && (block ? S_ISBLK(facts->mode) : facts->mount_root);
  publication.state = PublicationState::kPublished;
  if (there) {
    publication.mount_id = facts->mount_root ? facts->mount_id : 0;
    return;
  }
  publication.uncertain = true;
  publication.blocked = kLost;
  publication.last_error = publication.blocked;
}

bool StagingIsMounted(const VolumePaths& paths, const VolumeRecord& record) {
  const auto found = paths.FindStagingMount(record);
  return found.ok() && found->mount_id != 0;
}

}  // namespace

absl::StatusOr<VolumeRecord> RebuildRow(const VolumePaths& paths, const std::string& name,
                                        const std::string& boot_id) {
  BERTH_ASSIGN_OR_RETURN(VolumeRecord record, paths.ReadIdentity(name));
  record.rebuilt = true;
  // What lived on then ended with its boot.
  if (!record.boot_id.empty() && record.boot_id != boot_id) {
    record.still_in_use = false;
    record.past_consumers.clear();
  }
  record.boot_id = boot_id;
  if (record.stages) {
    record.stage_state = StageState::kStaged;
    // A plugin may stage without a mount, so that its absence proves nothing.
    record.stage_uncertain = !StagingIsMounted(paths, record);
  }
  for (PublicationRecord& publication : record.publications) JudgePublication(paths, record, publication);
  return record;
}

absl::StatusOr<RebuiltRows> RebuildRows(const VolumePaths& paths, const std::string& boot_id) {
  BERTH_ASSIGN_OR_RETURN(const std::vector<std::string> keys, paths.ListIdentities());
  BERTH_ASSIGN_OR_RETURN(const std::vector<std::string> directories, paths.List());
  RebuiltRows rows;
  for (const std::string& key : keys) {
    auto record = RebuildRow(paths, key, boot_id);
    if (record.ok()) {
      rows.records.push_back(*std::move(record));
    } else {
      rows.unreadable.emplace_back(MessageOf(record.status()));
    }
  }
  for (const std::string& name : directories) {
    if (paths.HasIdentity(name)) continue;
    rows.unreadable.push_back(fmt::format("{}/{}: no identity file", paths.tree(), Printable(name, 128)));
  }
  return rows;
}

absl::StatusOr<std::map<std::string, std::string>> RestoreRows(Journal& journal, const VolumePaths& paths,
                                                               const std::string& boot_id) {
  std::map<std::string, std::string> rows = journal.TakeLoaded();
  std::vector<Journal::Damaged> damaged;
  for (const auto& [key, bytes] : journal.TakeDamaged()) {
    damaged.push_back({.key = key, .record = bytes, .reason = "its bytes are not those that were written"});
  }
  for (const auto& [key, bytes] : rows) {
    const auto record = DecodeRecord(bytes);
    if (record.ok()) continue;
    // Of a newer berthd, say: nothing is damaged, and it is not for this one to judge.
    if (record.status().code() != absl::StatusCode::kDataLoss) {
      return Annotate(record.status(), fmt::format("journal: row {}", Printable(key, 64)));
    }
    damaged.push_back({.key = key, .record = bytes, .reason = std::string(MessageOf(record.status()))});
  }
  if (damaged.empty() && !journal.is_new()) return rows;

  std::map<std::string, std::string> rebuilt;
  for (const Journal::Damaged& row : damaged) {
    rows.erase(row.key);
    const auto record = RebuildRow(paths, row.key, boot_id);
    std::string outcome = "rebuilt from its identity file";
    if (record.ok()) {
      rebuilt[row.key] = EncodeRecord(*record);
    } else {
      outcome = fmt::format("not known any more ({})", MessageOf(record.status()));
    }
    journal.Note(
        fmt::format("the journal's row {} was damaged ({}) and is kept in its table \"damaged\"; its "
                    "volume is {}",
                    Printable(row.key, 64), row.reason, outcome));
  }
  if (journal.is_new()) {
    BERTH_ASSIGN_OR_RETURN(const RebuiltRows found, RebuildRows(paths, boot_id));
    for (const VolumeRecord& record : found.records) {
      const std::string key = VolumePaths::VolumeKey(record.plugin_id, record.volume_id);
      if (!rows.contains(key)) rebuilt[key] = EncodeRecord(record);
    }
    for (const std::string& reason : found.unreadable) SPDLOG_WARN("{}: left alone", reason);
    // A new node has nothing to report.
    if (!rebuilt.empty()) {
      journal.Note(
          fmt::format("the journal was lost: {} volumes were rebuilt from their identity files; what "
                      "is mounted counts as published, the rest is blocked until it is requested again",
                      rebuilt.size()));
    }
  }
  BERTH_RETURN_IF_ERROR(journal.Restore(rebuilt, damaged));
  rows.merge(rebuilt);
  return rows;
}

void ReportRestored(Journal& journal, EventLog& events) {
  for (std::string& note : journal.TakeNotes()) {
    events.Append({.type = "node.journal_rebuilt",
                   .plugin_id = "",
                   .volume_id = "",
                   .consumer = "",
                   .message = std::move(note)});
  }
}

}  // namespace berth
