// Opens a block device by its number alone. What lies in /dev is others' affair: a node can be missing there,
// or be another device's.
//
// No shared library, so that berth-mount-helper can have it. Any thread; what it opens may not answer.
#pragma once

#include <sys/types.h>

#include "base/unique_fd.h"

namespace berth {

// Opens it to read (O_NONBLOCK); `flags` are added. Not valid: errno says why. ENODEV or
// ENXIO: the kernel has no such device. EPERM: without the right to make a node, /dev was all there is, and
// it is not there.
[[nodiscard]] UniqueFd OpenBlockDevice(dev_t device, int flags = 0);

}  // namespace berth
