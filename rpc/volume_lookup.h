// Which plugin a request about a volume means: it may name the plugin by its id or by its driver.
//
// Owned by NodeApi; loop thread only. It asks what is here now, and keeps nothing.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "declared/declared_directory.h"
#include "mounter/mounter.h"
#include "rpc/node_parts.h"
#include "rpc/plugin_control.h"

namespace berth {

class VolumeLookup {
 public:
  explicit VolumeLookup(const NodeParts& parts)
      : control_(parts.control), mounter_(parts.mounter), declared_(parts.declared) {}

  // The plugin that a request about a volume means. If this node has the volume, its record decides, also
  // while the plugin does not run. Otherwise as for a volume that is not here: NOT_FOUND, or INVALID_ARGUMENT
  // if several plugins have this driver.
  [[nodiscard]] absl::StatusOr<std::string> PluginOf(const std::string& name,
                                                     const std::string& volume_id) const;
  // The plugin with the id or the driver `name`, also one without a file while volumes are in use through it.
  [[nodiscard]] absl::StatusOr<std::string> NodePlugin(const std::string& name) const;

  // What files declare, by the id of the plugin under which it is, or would be, held, and volume id.
  using DeclaredByVolume = std::map<std::pair<std::string, std::string>, std::vector<DeclaredView>>;
  [[nodiscard]] DeclaredByVolume Declared() const;

 private:
  PluginControl& control_;
  Mounter& mounter_;
  DeclaredDirectory& declared_;
};

}  // namespace berth
