// A scheduler's call of a controller, checked before anything is sent.
//
// No message here repeats a value that may be secret (secrets, contexts, parameters, mount flags). Pure; any
// thread.
#pragma once

#include <absl/status/status.h>

#include <string_view>

#include "berth/v1/scheduler.pb.h"
#include "csi/plugin_facts.h"
#include "request/request_parts.h"

namespace berth {

// INVALID_ARGUMENT with every mistake in it, each led by its field ("attach.node_id: must not be empty").
// Lengths are RequestLimits'. An empty node_id of a detach means every node, and must be asked for by name.
[[nodiscard]] absl::Status CheckControllerCall(const v1::ControllerCall& call);
// Of a call that is part of a larger request.
void CheckControllerCall(const v1::ControllerCall& call, Mistakes& mistakes);

// FAILED_PRECONDITION naming the capability that the call, which was checked, needs and the plugin lacks.
[[nodiscard]] absl::Status CheckCapabilities(const v1::ControllerCall& call, std::string_view plugin_id,
                                             const PluginFacts& facts);

}  // namespace berth
