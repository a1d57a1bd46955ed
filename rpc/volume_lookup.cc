#include "rpc/volume_lookup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/printable.h"
#include "controller/plugin_choice.h"

namespace berth {

VolumeLookup::DeclaredByVolume VolumeLookup::Declared() const {
  DeclaredByVolume volumes;
  for (DeclaredView& file : declared_.List()) {
    const std::string& plugin = file.request.plugin_id();
    const std::string& volume = file.request.volume_id();
    if (plugin.empty() || volume.empty()) continue;  // a broken file
    const auto resolved = NodePlugin(plugin);
    VolumeName name(resolved.ok() ? *resolved : plugin, volume);
    volumes[std::move(name)].push_back(std::move(file));
  }
  return volumes;
}

absl::StatusOr<std::string> VolumeLookup::PluginOf(const std::string& name,
                                                   const std::string& volume_id) const {
  if (control_.plugins().contains(name)) return name;
  const std::vector<std::string> ids = mounter_.PluginsOf(volume_id, name);
  if (ids.empty()) return NodePlugin(name);
  if (ids.size() == 1) return ids.front();
  return absl::InvalidArgumentError(
      fmt::format("plugin_id: volume {} is here through {}, all of the driver {}: name one",
                  PrintableName(volume_id), fmt::join(ids, ", "), PrintableName(name)));
}

absl::StatusOr<std::string> VolumeLookup::NodePlugin(const std::string& name) const {
  auto resolved = ResolveNodePlugin(control_.plugins(), name);
  if (absl::IsNotFound(resolved.status()) && !mounter_.HeldThrough(name).empty()) return name;
  return resolved;
}

}  // namespace berth
