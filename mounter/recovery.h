// What a new berthd makes of what the last one left: the journal's rows compared with the kernel and with
// the directories in the tree.
//
// Pure but for reading the kernel's view; at start, on the loop thread.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "mounter/volume_machine.h"
#include "mounter/volume_paths.h"

namespace berth {

// The journal's rows as machines, by key. DATA_LOSS names the row that is no record.
[[nodiscard]] absl::StatusOr<std::map<std::string, VolumeMachine>> ReadRows(
    const std::map<std::string, std::string>& rows, const std::string& boot_id);

// The published publications of `record` whose mount or device the kernel does not show, and what is wrong.
[[nodiscard]] std::vector<std::pair<PublicationKey, std::string>> FindLost(const VolumeRecord& record,
                                                                           const VolumePaths& paths,
                                                                           const std::string& boot_id);

// An event for each directory in the tree that no row of the journal accounts for. They are left alone:
// whether their volumes may go is not to be guessed.
void ReportStrangers(const VolumePaths& paths, const std::map<std::string, VolumeMachine>& rows,
                     EventLog& events);

}  // namespace berth
