#include "controller/controller_access.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/printable.h"
#include "base/status.h"

namespace berth {
namespace {

// VolumeExpansion.OFFLINE without ONLINE; who names neither is asked, and may refuse.
bool ExpandsOnlyOffline(const PluginFacts& facts) {
  using Expansion = ::csi::v1::PluginCapability::VolumeExpansion;
  return facts.volume_expansion.contains(Expansion::OFFLINE) &&
         !facts.volume_expansion.contains(Expansion::ONLINE);
}

}  // namespace

Awaitable<absl::StatusOr<ControllerAccess::Controller>> ControllerAccess::Find(std::string name,
                                                                               ControllerWork work,
                                                                               TimePoint deadline) {
  while (true) {
    BERTH_CO_ASSIGN_OR_RETURN(const std::string id, ChooseController(controllers_.plugins(), name, work));
    const PluginSnapshot& plugin = controllers_.plugins().at(id);
    if (!plugin.paused) {
      Controller controller{.plugin_id = id, .client = controllers_.ClientOf(id), .facts = *plugin.facts};
      if (controller.client) co_return controller;
      co_return absl::UnavailableError(fmt::format("plugin {} cannot be reached just now: try again", id));
    }
    if (Clock::now() >= deadline) {
      co_return absl::DeadlineExceededError(
          fmt::format("plugin {} is being replaced and takes no calls yet{}{}", id,
                      plugin.reason.empty() ? "" : ": ", PrintableName(plugin.reason)));
    }
    co_await controllers_.WaitChange(deadline);
  }
}

absl::StatusOr<ControllerAccess::Controller> ControllerAccess::FindNow(const std::string& name) const {
  BERTH_ASSIGN_OR_RETURN(const std::string id, ChooseController(controllers_.plugins(), name));
  const PluginSnapshot& plugin = controllers_.plugins().at(id);
  Controller controller{.plugin_id = id, .client = controllers_.ClientOf(id), .facts = *plugin.facts};
  if (plugin.paused || controller.client == nullptr) {
    return absl::UnavailableError(fmt::format("plugin {} cannot be reached just now", id));
  }
  return controller;
}

std::string ControllerAccess::DriverOf(const std::string& name) const {
  const auto plugin = controllers_.plugins().find(name);
  const bool known = plugin != controllers_.plugins().end() && plugin->second.facts.has_value();
  return known ? plugin->second.facts->name : name;
}

Awaitable<absl::StatusOr<VolumeCallQueue::Turn>> ControllerAccess::WaitTurn(std::vector<CallKey> keys,
                                                                            TimePoint deadline) {
  return turns_.Wait(std::move(keys), deadline);
}

Awaitable<absl::StatusOr<VolumeCallQueue::Turn>> ControllerAccess::WaitTurn(std::vector<CallKey> keys,
                                                                            VolumeCallQueue::Until until,
                                                                            const void* owner) {
  return turns_.Wait(std::move(keys), std::move(until), owner);
}

Awaitable<absl::StatusOr<VolumeCallQueue::Turn>> ControllerAccess::WaitTurn(std::string name,
                                                                            std::string volume_id,
                                                                            TimePoint deadline) {
  CallKey key{.driver = DriverOf(name), .kind = CallKey::Kind::kVolume, .id = std::move(volume_id)};
  return turns_.Wait({std::move(key)}, deadline);
}

std::set<std::string> ControllerAccess::PluginsOf(const std::string& name,
                                                  const std::string& volume_id) const {
  std::string driver = DriverOf(name);
  // A plugin that does not run: of the driver that its row has.
  if (const auto held = driver == name ? mounter_.Find(name, volume_id) : std::nullopt;
      held && !held->driver_name.empty()) {
    driver = held->driver_name;
  }
  const std::vector<std::string> running = SameDriver(controllers_.plugins(), driver);
  const std::vector<std::string> recorded = mounter_.PluginsOf(volume_id, driver);
  std::set<std::string> ids(running.begin(), running.end());
  ids.insert(name);
  ids.insert(recorded.begin(), recorded.end());
  return ids;
}

std::optional<VolumeView> ControllerAccess::FindHeld(const std::string& name,
                                                     const std::string& volume_id) const {
  for (const std::string& id : PluginsOf(name, volume_id)) {
    if (auto volume = mounter_.Find(id, volume_id)) return volume;
  }
  return std::nullopt;
}

uint32_t ControllerAccess::UsesLeft(const std::string& name, const std::string& volume_id) const {
  size_t uses = 0;
  std::set<std::string> ids = PluginsOf(name, volume_id);
  if (const auto plugin = controllers_.plugins().find(name);
      plugin != controllers_.plugins().end() && !plugin->second.facts) {
    for (const auto& [id, other] : controllers_.plugins()) ids.insert(id);
  }
  for (const std::string& id : ids) {
    if (const auto volume = mounter_.Find(id, volume_id)) {
      uses += std::max<size_t>(volume->publications.size(), 1);
    }
  }
  if (uses == 0 && Among(publishing_, name, volume_id)) uses = 1;
  return static_cast<uint32_t>(uses);
}

bool ControllerAccess::Among(const Holds& holds, const std::string& name,
                             const std::string& volume_id) const {
  const auto plugin = controllers_.plugins().find(name);
  const bool unknown = plugin != controllers_.plugins().end() && !plugin->second.facts;
  const std::string driver = DriverOf(name);
  const std::vector<std::string> ids = SameDriver(controllers_.plugins(), name);
  return std::ranges::any_of(holds, [&](const auto& hold) {
    const auto& [whose, id] = hold.first;
    return id == volume_id && (unknown || whose == driver || std::ranges::find(ids, whose) != ids.end());
  });
}

absl::Status ControllerAccess::Unused(const std::string& name, const std::string& volume_id) const {
  if (const auto held = FindHeld(name, volume_id)) {
    std::set<std::string> consumers;
    for (const PublicationView& view : held->publications) consumers.insert(PrintableName(view.consumer));
    if (consumers.empty() && held->still_in_use) {
      return absl::FailedPreconditionError(
          fmt::format("volume {} is not released on this node (plugin {}): {}", PrintableName(volume_id),
                      held->plugin_id, held->last_error));
    }
    if (held->without_plugin) {
      return absl::FailedPreconditionError(fmt::format(
          "volume {} was released on this node without its plugin {}, which has still to undo its part",
          PrintableName(volume_id), held->plugin_id));
    }
    return absl::FailedPreconditionError(fmt::format(
        "volume {} is in use on this node through plugin {}{}: unpublish it first", PrintableName(volume_id),
        held->plugin_id, consumers.empty() ? "" : fmt::format(" by {}", fmt::join(consumers, ", "))));
  }
  if (Among(publishing_, name, volume_id)) {
    return absl::FailedPreconditionError(
        fmt::format("volume {} is being published on this node", PrintableName(volume_id)));
  }
  std::set<std::string> names = PluginsOf(name, volume_id);
  names.insert(DriverOf(name));
  for (const std::string& each : names) {
    if (const auto same = mounter_.ShownBy(volume_id, each)) {
      return absl::FailedPreconditionError(fmt::format(
          "the kernel has shown volume {} to be the same as volume {}, which is in use on this node "
          "through plugin {}: unpublish that first",
          PrintableName(volume_id), PrintableName(same->volume_id), same->plugin_id));
    }
  }
  return absl::OkStatus();
}

absl::Status ControllerAccess::UsersKnown(const std::string& volume_id) const {
  for (const auto& [id, plugin] : controllers_.plugins()) {
    if (plugin.facts) continue;
    const auto held = mounter_.Find(id, volume_id);
    if ((held && held->driver_name.empty()) || publishing_.contains({id, volume_id})) {
      return absl::UnavailableError(fmt::format(
          "a volume {} is in use on this node through plugin {}, which has not reported its driver yet",
          PrintableName(volume_id), id));
    }
  }
  return absl::OkStatus();
}

bool ControllerAccess::IsThisNode(const std::string& name, const std::string& node_id) const {
  if (node_id.empty()) return true;
  const std::vector<std::string> ids = SameDriver(controllers_.plugins(), name);
  return std::ranges::any_of(ids, [&](const std::string& id) {
    const auto plugin = controllers_.plugins().find(id);
    return plugin != controllers_.plugins().end() && plugin->second.facts &&
           plugin->second.facts->node_id == node_id;
  });
}

absl::Status ControllerAccess::MayPublish(const std::string& name, const std::string& volume_id) const {
  const std::pair<const Holds&, std::string_view> works[] = {
      {deleting_, "deleted"}, {detaching_, "detached from this node"}, {expanding_, "expanded offline"}};
  for (const auto& [holds, what] : works) {
    if (!Among(holds, name, volume_id)) continue;
    return absl::AbortedError(fmt::format("volume {} is being {}", PrintableName(volume_id), what));
  }
  return absl::OkStatus();
}

ControllerAccess::VolumeUseLock ControllerAccess::LockForPublish(const std::string& name,
                                                                 const std::string& volume_id) {
  return {publishing_, KeyOf(name, volume_id)};
}

absl::Status ControllerAccess::MayDelete(const std::string& name, const std::string& volume_id) const {
  BERTH_RETURN_IF_ERROR(UsersKnown(volume_id));
  return Unused(name, volume_id);
}

ControllerAccess::VolumeUseLock ControllerAccess::LockForDelete(const std::string& name,
                                                                const std::string& volume_id) {
  return {deleting_, KeyOf(name, volume_id)};
}

absl::Status ControllerAccess::MayDetach(const std::string& name, const std::string& volume_id,
                                         const std::string& node_id) const {
  // A plugin with an unknown driver has not said either what the storage calls this node.
  BERTH_RETURN_IF_ERROR(UsersKnown(volume_id));
  return IsThisNode(name, node_id) ? Unused(name, volume_id) : absl::OkStatus();
}

std::optional<ControllerAccess::VolumeUseLock> ControllerAccess::LockForDetach(const std::string& name,
                                                                               const std::string& volume_id,
                                                                               const std::string& node_id) {
  if (!IsThisNode(name, node_id)) return std::nullopt;
  return VolumeUseLock(detaching_, KeyOf(name, volume_id));
}

absl::Status ControllerAccess::MayExpand(const Controller& controller, const std::string& volume_id) const {
  if (!ExpandsOnlyOffline(controller.facts)) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(UsersKnown(volume_id));
  return Annotate(Unused(controller.plugin_id, volume_id),
                  fmt::format("plugin {} expands only volumes that are not in use (VolumeExpansion OFFLINE)",
                              controller.plugin_id));
}

std::optional<ControllerAccess::VolumeUseLock> ControllerAccess::LockForExpand(const Controller& controller,
                                                                               const std::string& volume_id) {
  if (!ExpandsOnlyOffline(controller.facts)) return std::nullopt;
  return VolumeUseLock(expanding_, KeyOf(controller.plugin_id, volume_id));
}

Awaitable<absl::Status> ControllerAccess::CheckUnrecorded(std::string name, std::string volume_id,
                                                          std::string node_id, TimePoint deadline) {
  std::vector<std::string> ids = SameDriver(controllers_.plugins(), name);
  bool all_known = true;
  for (const auto& [id, plugin] : controllers_.plugins()) {
    if (plugin.facts) continue;
    // It may be of this driver.
    all_known = false;
    if (id != name) ids.push_back(id);
  }
  if (all_known && !IsThisNode(name, node_id)) co_return absl::OkStatus();
  for (const std::string& id : ids) {
    const absl::Status released = co_await mounter_.CheckUnrecorded(id, volume_id, deadline);
    if (!released.ok()) co_return Annotate(released, fmt::format("volume {}", PrintableName(volume_id)));
  }
  co_return absl::OkStatus();
}

Awaitable<absl::Status> ControllerAccess::CancelPendingExpansion(std::string name, std::string volume_id) {
  for (const std::string& id : SameDriver(controllers_.plugins(), name)) {
    const absl::Status struck = co_await mounter_.CancelPendingExpansion(id, volume_id);
    if (!struck.ok()) co_return Annotate(struck, "it is deleted; repeat the request for what is noted of it");
  }
  co_return absl::OkStatus();
}

absl::Status Lacks(std::string_view plugin_id, std::string_view capability, std::string_view what) {
  return absl::FailedPreconditionError(
      fmt::format("plugin {} cannot {} (no {})", plugin_id, what, capability));
}

absl::Status CallError(const absl::Status& status, std::string_view plugin_id, CsiRpc rpc) {
  return Annotate(status, fmt::format("plugin {}: {}", plugin_id, RpcName(rpc)));
}

void FitAccessMode(const PluginFacts& facts, ::csi::v1::VolumeCapability* capability) {
  using AccessMode = ::csi::v1::VolumeCapability::AccessMode;
  if (facts.ControllerCan(::csi::v1::ControllerServiceCapability::RPC::SINGLE_NODE_MULTI_WRITER)) return;
  const auto mode = capability->access_mode().mode();
  if (mode == AccessMode::SINGLE_NODE_MULTI_WRITER || mode == AccessMode::SINGLE_NODE_SINGLE_WRITER) {
    capability->mutable_access_mode()->set_mode(AccessMode::SINGLE_NODE_WRITER);
  }
}

}  // namespace berth
