// What a publication may ask of the root of its volume: owner, group, mode, SELinux label. What may be asked,
// and what became of asking; the system calls are the mount helper's.
//
// Pure but for SelinuxIsOn; any thread.
#pragma once

#include <absl/status/status.h>

#include "csi/errors.h"
#include "mounter/volume_types.h"

namespace berth {

// Whether anything is asked at all.
[[nodiscard]] bool Wanted(const RootPermissions& permissions);

// Whether the kernel enforces, or would enforce, SELinux labels: its file system is mounted where it always
// is. Touches sysfs only.
[[nodiscard]] bool SelinuxIsOn();

// What it means for a publish that they could not be set. A file system that will never do it is final; it is
// FAILED_PRECONDITION then, and says what the file system cannot.
struct PermissionsFailure {
  CallOutcome outcome = CallOutcome::kFinal;
  absl::Status error;
};
[[nodiscard]] PermissionsFailure WhyNotSet(const absl::Status& failed);

}  // namespace berth
