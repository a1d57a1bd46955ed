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

absl::StatusOr<VolumeRef> VolumeLookup::VolumeOf(const std::string& plugin, const std::string& name) const {
  const auto id = PluginOf(plugin, name);
  const bool here = id.ok() && (mounter_.Find(*id, name) || Declared().contains({*id, name}));
  std::vector<VolumeRef> labelled;
  if (!here && !name.empty()) labelled = mounter_.Labelled(name, plugin);
  if (labelled.empty()) return VolumeRef{.plugin_id = plugin, .volume_id = name};
  if (labelled.size() == 1) return labelled.front();
  return absl::InvalidArgumentError(
      fmt::format("volume_id: {} volumes here have the label {}: give the id of one of them, {} for example",
                  labelled.size(), PrintableName(name), PrintableName(labelled.front().volume_id)));
}

absl::StatusOr<std::string> VolumeLookup::NodePlugin(const std::string& name) const {
  auto resolved = ResolveNodePlugin(control_.plugins(), name);
  if (absl::IsNotFound(resolved.status()) && !mounter_.HeldThrough(name).empty()) return name;
  return resolved;
}

}  // namespace berth
