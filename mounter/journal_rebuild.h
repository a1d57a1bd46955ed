// The journal's rows made anew, when they are lost or cannot be read: from the identity files in the tree of
// volumes, and from what the kernel shows there.
//
// What is mounted counts as published. What is not was wanted once, and perhaps not any more: it counts as
// lost, and waits for somebody's word. What only a journal knows (contexts, mount flags) stays unknown:
// VolumeRecord::rebuilt. An expansion that was owed, and what remains of volumes that have left
// (remainders.h), are lost with the journal.
//
// Reads the local disk and the mount table; at start, on the loop thread, before the journal's first write.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "base/event_log.h"
#include "mounter/journal.h"
#include "mounter/volume_paths.h"
#include "mounter/volume_record.h"

namespace berth {

// The volume whose directory is `name`. NOT_FOUND: there is none. DATA_LOSS: its identity file is missing,
// cannot be read, or is another volume's.
[[nodiscard]] absl::StatusOr<VolumeRecord> RebuildRow(const VolumePaths& paths, const std::string& name,
                                                      const std::string& boot_id);

struct RebuiltRows {
  std::vector<VolumeRecord> records;
  std::vector<std::string> strangers;  // why a directory gave no record, a sentence each
};
// Every volume in the tree.
[[nodiscard]] absl::StatusOr<RebuiltRows> RebuildRows(const VolumePaths& paths, const std::string& boot_id);

// Called once, when journal and tree are open: fills a journal that was begun anew, and replaces rows that
// cannot be read, which are kept apart. Returns the rows that hold, by key.
[[nodiscard]] absl::StatusOr<std::map<std::string, std::string>> RestoreRows(Journal& journal,
                                                                             const VolumePaths& paths,
                                                                             const std::string& boot_id);

// An event "node.journal_rebuilt" for each thing that had to be done.
void TellRestored(Journal& journal, EventLog& events);

}  // namespace berth
