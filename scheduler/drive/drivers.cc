#include "scheduler/drive/drivers.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"

namespace berth::scheduler {
namespace {

bool Has(const google::protobuf::RepeatedPtrField<std::string>& capabilities, const char* name) {
  return std::ranges::find(capabilities, name) != capabilities.end();
}

}  // namespace

absl::StatusOr<DriverFacts> FindDriver(const std::string& driver, const std::vector<NodeView>& nodes) {
  DriverFacts facts;
  bool is_known = false;
  for (const NodeView& node : nodes) {
    if (node.facts == nullptr || node.other_machine || !node.facts->synced()) continue;
    for (const auto& [id, plugin] : node.facts->plugins()) {
      const v1::Fingerprint& fingerprint = plugin.fingerprint();
      if (fingerprint.driver_name() != driver) continue;
      is_known = true;
      const auto& controller = fingerprint.controller_capabilities();
      // Node plugins report it, too, if their controllers run elsewhere.
      facts.has_controller |= Has(fingerprint.plugin_capabilities(), "CONTROLLER_SERVICE");
      facts.needs_attach |= fingerprint.needs_attach() || Has(controller, "PUBLISH_UNPUBLISH_VOLUME");
      if (!TakesWork(plugin)) continue;
      const PluginPlace place{.node = node.name,
                              .plugin_id = id,
                              .single_node_modes = Has(controller, "SINGLE_NODE_MULTI_WRITER")};
      if (HasController(plugin) && !facts.controller.has_value()) facts.controller = place;
      if (ProvidesNode(plugin) && !facts.node_plugin.has_value()) facts.node_plugin = place;
    }
  }
  if (!is_known) {
    return absl::FailedPreconditionError(
        fmt::format("no node that is connected runs the driver {}", Printable(driver, 128)));
  }
  if (facts.has_controller && !facts.controller.has_value()) {
    return absl::FailedPreconditionError(
        fmt::format("no controller of the driver {} takes work now", Printable(driver, 128)));
  }
  if (!facts.controller.has_value() && !facts.node_plugin.has_value()) {
    return absl::FailedPreconditionError(
        fmt::format("no plugin of the driver {} takes work now", Printable(driver, 128)));
  }
  return facts;
}

absl::Status PlaceOnNode(pb::ClaimRecord& claim, const MachineNow& now) {
  const std::string name = Printable(claim.node(), 192);
  if (now.record == nullptr)
    return absl::NotFoundError(fmt::format("node: no node {} was ever connected", name));
  if (now.record->two_machines)
    return absl::FailedPreconditionError(fmt::format("two machines run as node {}", name));
  if (!now.synced) return absl::FailedPreconditionError(fmt::format("node {} is not connected", name));
  if (now.facts->node().status().has_drain())
    return absl::FailedPreconditionError(fmt::format("node {} is being drained", name));
  bool is_there = false;
  for (const auto& [id, plugin] : now.facts->plugins()) {
    if (plugin.fingerprint().driver_name() != claim.driver() || !ProvidesNode(plugin)) continue;
    is_there = true;
    if (!TakesWork(plugin)) continue;
    claim.set_instance_id(now.record->instance_id);
    claim.mutable_request()->set_plugin_id(id);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(fmt::format(
      "node {} {} the driver {}", name, is_there ? "has no plugin that takes work now of" : "does not run",
      Printable(claim.driver(), 128)));
}

}  // namespace berth::scheduler
