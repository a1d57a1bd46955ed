// Which volume, and which plugin, a request means: names may be ids, drivers or labels.
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

  // Puts the ids of a volume into a request that names it by its label. Changes nothing if a volume with that
  // id is here, or declared, and if no volume has the label. INVALID_ARGUMENT: several have it.
  template <class Request>
  [[nodiscard]] absl::Status ResolveLabel(Request& request) const {
    const auto volume = VolumeOf(request.plugin_id(), request.volume_id());
    if (!volume.ok()) return volume.status();
    request.set_plugin_id(volume->plugin_id);
    request.set_volume_id(volume->volume_id);
    return absl::OkStatus();
  }

  // What files declare, by the id of the plugin under which it is, or would be, held, and volume id.
  using DeclaredByVolume = std::map<std::pair<std::string, std::string>, std::vector<DeclaredView>>;
  [[nodiscard]] DeclaredByVolume Declared() const;

 private:
  [[nodiscard]] absl::StatusOr<VolumeRef> VolumeOf(const std::string& plugin, const std::string& name) const;

  PluginControl& control_;
  Mounter& mounter_;
  DeclaredDirectory& declared_;
};

}  // namespace berth
