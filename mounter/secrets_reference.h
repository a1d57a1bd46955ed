// Secrets of a volume, read where its request said that they lie, whenever a step needs them: they are never
// written down.
//
// Awaited on the loop; the file, which may lie on a dead file system, is read by a helper process. What is
// read stays in memory as long as the step that it is for. No message holds a part of the text.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <map>
#include <string>

#include "base/task_scope.h"
#include "mounter/volume_types.h"
#include "mounts/mount_helper.h"

namespace berth {

inline constexpr size_t kSecretsFileLimit = 64 << 10;

// Reads what `reference` names: a file, or a credential in `credentials_dir` (empty: $CREDENTIALS_DIRECTORY).
// It must be a regular file of root's, of at most kSecretsFileLimit, that no other user may read or write,
// and hold what csi/secrets_text.h takes. Of kNone: no secrets. FAILED_PRECONDITION: what is wrong with it,
// in the message (it may be right later: a step that waits for it is tried again); DEADLINE_EXCEEDED, naming
// the process that hangs in it; RESOURCE_EXHAUSTED, as MountHelper has it. `helper` outlives the call.
[[nodiscard]] Awaitable<absl::StatusOr<std::map<std::string, std::string>>> ReadSecretsReference(
    SecretsReference reference, std::string credentials_dir, MountHelper& helper, TimePoint deadline);

}  // namespace berth
