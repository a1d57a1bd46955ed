// Rebuilds the journal's rows when they are lost or cannot be read: from the identity files, and from what
// the kernel shows in the tree of volumes.
//
// A volume that is mounted counts as published. One that is not mounted was wanted once, and perhaps is not
// any more: it counts as lost, and is blocked until a caller confirms it. What only a journal knows
// (contexts, mount flags) stays unknown: VolumeRecord::rebuilt. Whether a volume is attached, and whether its
// file system may still be in use, is known. An expansion that is pending for a volume that is not here
// (pending_expansions.h) is lost with the journal.
//
// Reads the local disk and the mount table; at start, on the loop thread, before the journal's first write.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "base/event_log.h"
#include "journal/journal.h"
#include "mounter/volume_paths.h"
#include "mounter/volume_record.h"

namespace berth {

// The volume of this key. NOT_FOUND: it has no identity file. DATA_LOSS: that cannot be read, or is another
// volume's.
[[nodiscard]] absl::StatusOr<VolumeRecord> RebuildRow(const VolumePaths& paths, const std::string& name,
                                                      const std::string& boot_id);

struct RebuiltRows {
  std::vector<VolumeRecord> records;
  std::vector<std::string> unreadable;  // why a directory or an identity file gave no record, a sentence each
};
// Every volume that has an identity file.
[[nodiscard]] absl::StatusOr<RebuiltRows> RebuildRows(const VolumePaths& paths, const std::string& boot_id);

// Called once, when journal and tree are open: fills a new journal, and replaces rows that cannot be read,
// which are kept apart. Returns the valid rows, by key.
[[nodiscard]] absl::StatusOr<std::map<std::string, std::string>> RestoreRows(Journal& journal,
                                                                             const VolumePaths& paths,
                                                                             const std::string& boot_id);

// An event "node.journal_rebuilt" for each thing that had to be done.
void ReportRestored(Journal& journal, EventLog& events);

}  // namespace berth
