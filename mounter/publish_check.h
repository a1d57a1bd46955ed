// What is checked of a request before anything is done: its own form, what the plugin can do, and what the
// volume is in use for already.
//
// Pure; any thread. Messages are for the person who made the request and say what would be right.
#pragma once

#include <absl/status/status.h>

#include "csi/plugin_facts.h"
#include "mounter/mounter.h"
#include "mounter/volume_record.h"

namespace berth {

// The request by itself: ids, sizes, text, and how its parts fit together. INVALID_ARGUMENT.
[[nodiscard]] absl::Status CheckForm(const PublishRequest& request);
[[nodiscard]] absl::Status CheckForm(const UnpublishRequest& request);

// Against the plugin: whether it must be attached first. FAILED_PRECONDITION.
[[nodiscard]] absl::Status CheckAttached(const PublishRequest& request, const PluginFacts& facts);

// Against the publications there are. ALREADY_EXISTS: this one exists and differs. FAILED_PRECONDITION: the
// volume is held in a way that excludes this use; the message says by whom.
[[nodiscard]] absl::Status CheckCompatible(const PublishRequest& request, const VolumeRecord& record);

// A CSI access mode as a plugin with these facts is told it: the two finer single-node modes are known only
// to plugins with SINGLE_NODE_MULTI_WRITER; others are told SINGLE_NODE_WRITER.
[[nodiscard]] ::csi::v1::VolumeCapability::AccessMode::Mode ModeFor(
    ::csi::v1::VolumeCapability::AccessMode::Mode mode, const PluginFacts& facts);

}  // namespace berth
