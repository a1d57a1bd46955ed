// What a volume's identity file holds: enough to rebuild its row, should the journal be lost. A volume has
// one such file, for all of its publications.
//
// Pure; any thread. No context, no mount flags and no secret is in it: they may contain what only root should
// know, for longer than the volume is here. Whether the volume is attached is known, and as which node.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

#include "mounter/volume_record.h"

namespace berth {

// The file's content, as JSON.
[[nodiscard]] absl::StatusOr<std::string> IdentityText(const VolumeRecord& record);

// A record with what the file says; the rest is as in a new record. `boot_id` is the boot in which the file
// was written. DATA_LOSS: it cannot be read. `path` is for the message.
[[nodiscard]] absl::StatusOr<VolumeRecord> ParseIdentity(const std::string& text, const std::string& path);

}  // namespace berth
