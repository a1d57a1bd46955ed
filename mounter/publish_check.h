// What is checked of a request before anything is done: what its consumer's runtime can use, what the plugin
// can do, and what the volume is in use for already. And afterwards, what could not be known before: the file
// system that the plugin chose. The request itself was checked before it came here (request/request_check.h).
//
// Pure, except that it asks whether SELinux is on; any thread. Messages are for the person who made the
// request and say what would be right; none shows a context's value, a secret or a mount flag.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <string_view>

#include "csi/plugin_facts.h"
#include "mounter/volume_record.h"
#include "mounter/volume_types.h"

namespace berth {

// FAILED_PRECONDITION: the consumer's runtime cannot use what the request asks for.
[[nodiscard]] absl::Status CheckRuntime(const PublishRequest& request);

// Whether the file system that the plugin chose can only be compared once it is mounted: the runtime has a
// list and the request names no type.
[[nodiscard]] bool LeavesFileSystemOpen(const PublishRequest& request);
// That one, of type `fs_type` as the kernel shows it, against the runtime's list. A type without a subtype
// stands for all of them ("fuse"), and "nfs" for "nfs4". FAILED_PRECONDITION.
[[nodiscard]] absl::Status CheckFileSystem(const PublishRequest& request, std::string_view fs_type);

// Against the plugin and this node, for a publication that is not begun yet. FAILED_PRECONDITION: it must be
// attached first; the plugin does not know the mount group; SELinux is not on; the volume is held under
// another node id. RESOURCE_EXHAUSTED: the plugin holds as many volumes here as it takes. `record` is null
// where the volume is not held; `held_through` counts the volumes that are, through the plugin: looked at
// only where the plugin has a limit and `record` is null.
[[nodiscard]] absl::Status CheckPlugin(const PublishRequest& request, const PluginFacts& facts,
                                       const VolumeRecord* record, size_t held_through);

// Whether it must be attached first and is not: CheckPlugin's first question. FAILED_PRECONDITION.
[[nodiscard]] absl::Status CheckAttached(const PublishRequest& request, const PluginFacts& facts);

// Against the existing publications. ALREADY_EXISTS: this one exists and differs. FAILED_PRECONDITION: the
// volume is in use in a way that excludes this one; the message names the user.
[[nodiscard]] absl::Status CheckCompatible(const PublishRequest& request, const VolumeRecord& record);

// Whether the request asks to be the volume's only writer, so that it must not begin while an earlier use may
// still write: SINGLE_NODE_SINGLE_WRITER always; SINGLE_NODE_WRITER, and MULTI_NODE_SINGLE_WRITER for
// writing, if that use was, or may have been, another consumer's.
[[nodiscard]] bool WantsSoleWriter(const PublishRequest& request, const VolumeRecord& record);
// Against another volume that is the same one: through another plugin of its driver, or as the kernel shows
// it (VolumeRecord::IsSame). FAILED_PRECONDITION: one of the two is for one user, or one writer, alone.
[[nodiscard]] absl::Status CheckSame(const PublishRequest& request, const VolumeRecord& other);
// FAILED_PRECONDITION for such a request; `used` says who has the volume.
[[nodiscard]] absl::Status StillWritable(const PublishRequest& request, std::string_view used);

// A CSI access mode as a plugin with these facts gets it: only plugins with SINGLE_NODE_MULTI_WRITER know the
// two finer single-node modes; others get SINGLE_NODE_WRITER.
[[nodiscard]] ::csi::v1::VolumeCapability::AccessMode::Mode ModeFor(
    ::csi::v1::VolumeCapability::AccessMode::Mode mode, const PluginFacts& facts);

}  // namespace berth
