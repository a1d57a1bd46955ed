// What the kernel says to a plugin's OK to NodePublishVolume.
//
// Loop thread only. It ends by its deadline: only a helper looks into the file system.
#pragma once

#include <absl/status/status.h>

#include "base/clock.h"
#include "base/task_scope.h"
#include "mounter/mounter_context.h"
#include "mounter/volume_record.h"

namespace berth {

// OK where the kernel shows the publication as it should be: the right kind, read-only if that was asked for,
// and the file system that was staged. INTERNAL: what it shows instead. Any other code: it could not be
// asked.
[[nodiscard]] Awaitable<absl::Status> VerifyPublished(MounterContext& context, VolumeRecord record,
                                                      PublicationRecord publication, TimePoint deadline);

}  // namespace berth
