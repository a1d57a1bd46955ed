// What a CSI plugin says of itself: the sum of Identity.GetPluginInfo, GetPluginCapabilities,
// Controller.ControllerGetCapabilities, GroupController.GroupControllerGetCapabilities,
// Node.NodeGetCapabilities and Node.NodeGetInfo.
//
// A plain value. fingerprint/ reads it from the plugin, everybody else reads it from here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "csi/csi.pb.h"

namespace berth {

struct PluginFacts {
  // GetPluginInfo. `name` is the CSI driver's name; Berth's own name of a plugin is its id.
  std::string name;
  std::string vendor_version;
  std::map<std::string, std::string> manifest;

  // GetPluginCapabilities and the services' capabilities. Sets of the enums' numbers, so that a value newer
  // than our proto is kept and shown, not lost.
  std::set<int> plugin_services;          // ::csi::v1::PluginCapability::Service::Type
  std::set<int> volume_expansion;         // ::csi::v1::PluginCapability::VolumeExpansion::Type
  std::set<int> controller_capabilities;  // ::csi::v1::ControllerServiceCapability::RPC::Type
  std::set<int> group_capabilities;       // ::csi::v1::GroupControllerServiceCapability::RPC::Type
  std::set<int> node_capabilities;        // ::csi::v1::NodeServiceCapability::RPC::Type

  // NodeGetInfo, where the plugin serves Node.
  bool has_node_service = false;
  std::string node_id;
  std::optional<int64_t> max_volumes_per_node;  // unset: no limit that the plugin knows of
  std::map<std::string, std::string> topology;

  [[nodiscard]] bool HasService(::csi::v1::PluginCapability::Service::Type type) const {
    return plugin_services.contains(type);
  }
  [[nodiscard]] bool ControllerCan(::csi::v1::ControllerServiceCapability::RPC::Type type) const {
    return controller_capabilities.contains(type);
  }
  [[nodiscard]] bool GroupControllerCan(::csi::v1::GroupControllerServiceCapability::RPC::Type type) const {
    return group_capabilities.contains(type);
  }
  [[nodiscard]] bool NodeCan(::csi::v1::NodeServiceCapability::RPC::Type type) const {
    return node_capabilities.contains(type);
  }
  [[nodiscard]] bool HasController() const {
    return HasService(::csi::v1::PluginCapability::Service::CONTROLLER_SERVICE);
  }
  // Attach is needed when the plugin has a controller AND that controller publishes; a controller alone
  // does not mean it.
  [[nodiscard]] bool NeedsAttach() const {
    return HasController() &&
           ControllerCan(::csi::v1::ControllerServiceCapability::RPC::PUBLISH_UNPUBLISH_VOLUME);
  }
  [[nodiscard]] bool Stages() const {
    return NodeCan(::csi::v1::NodeServiceCapability::RPC::STAGE_UNSTAGE_VOLUME);
  }

  bool operator==(const PluginFacts&) const = default;
};

}  // namespace berth
