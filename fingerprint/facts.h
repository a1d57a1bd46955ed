// What a plugin's answers amount to: checked, compared with what it was before, and hashed.
//
// Answers come from outside and may hold anything. What Berth could not work with, or what contradicts the
// plugin's own file, refuses the plugin in plain words; what merely breaks a rule of the specification is
// kept and becomes a warning, as real drivers break many. Pure; any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "csi/csi.pb.h"
#include "csi/plugin_facts.h"

namespace berth {

// What a plugin's file says that it serves at its socket: node, controller, or (monolith) both.
struct ExpectedServices {
  bool node = true;
  bool controller = true;
};

// The answers of one reading. Unset: not asked, or answered with UNIMPLEMENTED.
struct PluginAnswers {
  ::csi::v1::GetPluginInfoResponse info;
  std::optional<::csi::v1::GetPluginCapabilitiesResponse> plugin_capabilities;
  std::optional<::csi::v1::ControllerGetCapabilitiesResponse> controller_capabilities;
  std::optional<::csi::v1::GroupControllerGetCapabilitiesResponse> group_capabilities;
  std::optional<::csi::v1::NodeGetCapabilitiesResponse> node_capabilities;
  std::optional<::csi::v1::NodeGetInfoResponse> node_info;
};

struct CheckedFacts {
  PluginFacts facts;
  // Rules that the plugin breaks, for people, in a fixed order.
  std::vector<std::string> warnings;
};

// Whether GetPluginCapabilities' answer promises such a service.
[[nodiscard]] bool Promises(const std::optional<::csi::v1::GetPluginCapabilitiesResponse>& answer,
                            ::csi::v1::PluginCapability::Service::Type service);

// Errors: INVALID_ARGUMENT (an answer that Berth cannot work with), FAILED_PRECONDITION (the plugin does not
// serve what its file says).
[[nodiscard]] absl::StatusOr<CheckedFacts> CheckAnswers(const PluginAnswers& answers,
                                                        ExpectedServices expected);

// Whether a plugin that was `known` may go on as `now`. FAILED_PRECONDITION for another driver's name;
// ABORTED for another node id (or none) while volumes are in use under the old one.
[[nodiscard]] absl::Status CheckSuccessor(const PluginFacts& known, const PluginFacts& now,
                                          bool holds_volumes);

// Whether a plugin that is refused with this may still be asked to release volumes.
[[nodiscard]] bool MayLetGo(const absl::Status& refusal);

// Each difference in words: "node capability EXPAND_VOLUME gained". Empty if they are equal.
[[nodiscard]] std::vector<std::string> DiffFacts(const PluginFacts& before, const PluginFacts& after);

// A hash over what matters for placement: driver name, vendor version, services, capabilities, topology and
// max volumes; not the node id. Equal on equal nodes, under any order of the answers and in any process.
[[nodiscard]] std::string ComputedClass(const PluginFacts& facts);

}  // namespace berth
