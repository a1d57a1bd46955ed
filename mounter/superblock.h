// Whether a file system lives on in the kernel when it is not mounted here any more: with data that its
// server has not got yet, or mounted in another mount namespace. Such a volume is not free, whatever was
// unmounted.
//
// Any loop thread. The kernel tells it of file systems that have a device number of their own and keep their
// books under it: NFS and FUSE. Of others nothing is known.
#pragma once

#include <sys/types.h>

#include "base/task_scope.h"

namespace berth {

// Waits for its end until `deadline`. `device`: PathFacts::device of what was unmounted. False: it has ended,
// is mounted here still, or cannot be known.
[[nodiscard]] Awaitable<bool> LivesUnmounted(dev_t device, TimePoint deadline);

}  // namespace berth
