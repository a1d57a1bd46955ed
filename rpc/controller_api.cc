#include "rpc/controller_api.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"
#include "base/status.h"
#include "controller/plugin_choice.h"
#include "csi/errors.h"
#include "request/request_check.h"
#include "rpc/convert.h"

namespace berth {
namespace {

using ControllerRpc = ::csi::v1::ControllerServiceCapability::RPC;
using NodeRpc = ::csi::v1::NodeServiceCapability::RPC;
using Controller = ControllerAccess::Controller;

template <class Map>
std::map<std::string, std::string> ToStdMap(const Map& map) {
  return {map.begin(), map.end()};
}

// Where this node is, as the plugins of the driver that serve Node here say.
std::map<std::string, std::string> TopologyHere(const PluginMap& plugins, const std::string& driver) {
  for (const auto& [id, plugin] : plugins) {
    if (plugin.facts && plugin.facts->name == driver && !plugin.facts->topology.empty()) {
      return plugin.facts->topology;
    }
  }
  return {};
}

// The plugins of `ids` with volumes that are published here.
std::vector<std::string> ServingNode(const PluginMap& plugins, std::vector<std::string> ids) {
  std::erase_if(ids, [&plugins](const std::string& id) {
    const auto plugin = plugins.find(id);
    return plugin == plugins.end() || !plugin->second.facts || !plugin->second.facts->has_node_service;
  });
  return ids;
}

}  // namespace

ApiAnswer<v1::CreateVolumeResponse> ControllerApi::CreateVolume(v1::CreateVolumeRequest request,
                                                                CallInfo call) {
  BERTH_CO_ASSIGN_OR_RETURN(::csi::v1::CreateVolumeRequest create, CheckCreate(request));
  CallKey key{.driver = access_.DriverOf(request.plugin_id()),
              .kind = CallKey::Kind::kVolumeName,
              .id = request.name()};
  BERTH_CO_ASSIGN_OR_RETURN(const VolumeCallQueue::Turn turn,
                            co_await access_.WaitTurn({std::move(key)}, call.deadline));
  BERTH_CO_ASSIGN_OR_RETURN(
      const Controller controller,
      co_await access_.Find(request.plugin_id(), ControllerWork::kNewVolume, call.deadline));
  const PluginFacts& facts = controller.facts;
  if (!facts.ControllerCan(ControllerRpc::CREATE_DELETE_VOLUME)) {
    co_return Lacks(controller.plugin_id, "CREATE_DELETE_VOLUME", "create volumes");
  }
  if (create.volume_content_source().has_snapshot() &&
      !facts.ControllerCan(ControllerRpc::CREATE_DELETE_SNAPSHOT)) {
    co_return Lacks(controller.plugin_id, "CREATE_DELETE_SNAPSHOT", "fill a volume from a snapshot");
  }
  if (create.volume_content_source().has_volume() && !facts.ControllerCan(ControllerRpc::CLONE_VOLUME)) {
    co_return Lacks(controller.plugin_id, "CLONE_VOLUME", "fill a volume from another one");
  }
  BERTH_CO_RETURN_IF_ERROR(access_.CheckNotShuttingDown());
  for (auto& capability : *create.mutable_volume_capabilities()) FitAccessMode(facts, &capability);
  if (facts.HasService(::csi::v1::PluginCapability::Service::VOLUME_ACCESSIBILITY_CONSTRAINTS)) {
    // Who creates a volume on a node wants to use it there.
    const auto topology = TopologyHere(control_.plugins(), facts.name);
    if (!topology.empty()) {
      ::csi::v1::TopologyRequirement& requirement = *create.mutable_accessibility_requirements();
      requirement.add_requisite()->mutable_segments()->insert(topology.begin(), topology.end());
      requirement.add_preferred()->mutable_segments()->insert(topology.begin(), topology.end());
    }
  }

  const auto answer = co_await controller.client->CreateVolume(create, call.deadline);
  if (!answer.ok()) {
    co_return CallError(answer.status(), controller.plugin_id, CsiRpc::kCreateVolume);
  }
  co_return CheckedAnswer(controller.plugin_id, create, *answer);
}

ApiAnswer<v1::DeleteVolumeResponse> ControllerApi::DeleteVolume(v1::DeleteVolumeRequest request,
                                                                CallInfo call) {
  BERTH_CO_ASSIGN_OR_RETURN(const ::csi::v1::DeleteVolumeRequest deletion, CheckDelete(request));
  BERTH_CO_ASSIGN_OR_RETURN(
      const VolumeCallQueue::Turn turn,
      co_await access_.WaitTurn(request.plugin_id(), request.volume_id(), call.deadline));
  BERTH_CO_RETURN_IF_ERROR(
      co_await access_.CheckUnrecorded(request.plugin_id(), request.volume_id(), "", call.deadline));
  BERTH_CO_ASSIGN_OR_RETURN(
      const Controller controller,
      co_await access_.Find(request.plugin_id(), ControllerWork::kKnownVolume, call.deadline));
  if (!controller.facts.ControllerCan(ControllerRpc::CREATE_DELETE_VOLUME)) {
    co_return Lacks(controller.plugin_id, "CREATE_DELETE_VOLUME", "delete volumes");
  }
  BERTH_CO_RETURN_IF_ERROR(access_.MayDelete(controller.plugin_id, request.volume_id()));
  const ControllerAccess::VolumeUseLock hold =
      access_.LockForDelete(controller.plugin_id, request.volume_id());
  const auto answer = co_await controller.client->DeleteVolume(deletion, call.deadline);
  if (!answer.ok()) {
    co_return CallError(answer.status(), controller.plugin_id, CsiRpc::kDeleteVolume);
  }
  BERTH_CO_RETURN_IF_ERROR(
      co_await access_.CancelPendingExpansion(controller.plugin_id, request.volume_id()));
  co_return v1::DeleteVolumeResponse();
}

ApiAnswer<v1::ExpandVolumeResponse> ControllerApi::ExpandVolume(v1::ExpandVolumeRequest request,
                                                                CallInfo call) {
  BERTH_CO_ASSIGN_OR_RETURN(::csi::v1::ControllerExpandVolumeRequest expand, CheckExpand(request));
  BERTH_CO_ASSIGN_OR_RETURN(
      const VolumeCallQueue::Turn turn,
      co_await access_.WaitTurn(request.plugin_id(), request.volume_id(), call.deadline));
  const auto controller =
      co_await access_.Find(request.plugin_id(), ControllerWork::kKnownVolume, call.deadline);
  const bool by_controller = controller.ok() && controller->facts.ControllerCan(ControllerRpc::EXPAND_VOLUME);
  // A controller that may be there, but not now, must not be passed over: the storage would not have grown.
  if (absl::IsUnavailable(controller.status()) || absl::IsNotFound(controller.status()) ||
      absl::IsDeadlineExceeded(controller.status())) {
    co_return controller.status();
  }
  if (!by_controller) {
    co_return co_await ExpandByNodeAlone(std::move(request), std::move(expand), call.deadline);
  }
  if (const auto held = access_.FindHeld(request.plugin_id(), request.volume_id())) {
    *expand.mutable_volume_capability() = ToCsi(held->use);
    FitAccessMode(controller->facts, expand.mutable_volume_capability());
  }
  BERTH_CO_RETURN_IF_ERROR(access_.CheckNotShuttingDown());
  BERTH_CO_RETURN_IF_ERROR(access_.MayExpand(*controller, request.volume_id()));
  const std::optional<ControllerAccess::VolumeUseLock> hold =
      access_.LockForExpand(*controller, request.volume_id());
  const auto grown = co_await controller->client->ControllerExpandVolume(expand, call.deadline);
  if (!grown.ok()) {
    co_return CallError(grown.status(), controller->plugin_id, CsiRpc::kControllerExpandVolume);
  }
  const absl::StatusOr<int64_t> checked = CheckedAnswer(controller->plugin_id, expand, *grown);
  if (!checked.ok() && !grown->node_expansion_required()) co_return checked.status();
  // Whatever is wrong with the answer, the storage may have grown.
  const int64_t capacity = checked.ok() ? *checked : expand.capacity_range().required_bytes();
  v1::ExpandVolumeResponse answer;
  answer.set_capacity_bytes(capacity);
  if (!grown->node_expansion_required()) co_return answer;

  // Looked up again: it may have been published or released meanwhile.
  const std::optional<VolumeView> now = access_.FindHeld(request.plugin_id(), request.volume_id());
  if (!checked.ok() && capacity <= 0) co_return checked.status();
  BERTH_CO_ASSIGN_OR_RETURN(const bool all_noted, co_await NoteExpansion(controller->plugin_id, now,
                                                                         request.volume_id(), capacity));
  if (!checked.ok()) co_return checked.status();
  if (!now) {
    answer.set_node_expansion_pending(true);
    answer.set_node_expansion_noted(all_noted);
    co_return answer;
  }
  co_return co_await ExpandOnNode(*now, std::move(expand), std::move(answer), call.deadline);
}

ApiAnswer<v1::ExpandVolumeResponse> ControllerApi::ExpandByNodeAlone(
    v1::ExpandVolumeRequest request, ::csi::v1::ControllerExpandVolumeRequest expand, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(const std::string plugin_id,
                            lookup_.PluginOf(request.plugin_id(), request.volume_id()));
  const auto plugin = control_.plugins().find(plugin_id);
  if (plugin == control_.plugins().end() || !plugin->second.facts ||
      !plugin->second.facts->NodeCan(NodeRpc::EXPAND_VOLUME)) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {} cannot expand volumes (no EXPAND_VOLUME of controller or node)", plugin_id));
  }
  const std::optional<VolumeView> held = access_.FindHeld(request.plugin_id(), request.volume_id());
  if (!held) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {} expands volumes only where they are published, and {} is not in use here",
                    plugin_id, PrintableName(request.volume_id())));
  }
  co_return co_await ExpandOnNode(*held, std::move(expand), v1::ExpandVolumeResponse(), deadline);
}

ApiAnswer<bool> ControllerApi::NoteExpansion(std::string plugin_id, std::optional<VolumeView> held,
                                             std::string volume_id, int64_t capacity) {
  const std::vector<std::string> ids =
      held ? std::vector<std::string>{held->plugin_id}
           : ServingNode(control_.plugins(), SameDriver(control_.plugins(), plugin_id));
  bool all_noted = !ids.empty();
  for (const std::string& id : ids) {
    const absl::Status noted = co_await mounter_.SetPendingExpansion(id, volume_id, capacity);
    if (!held && absl::IsResourceExhausted(noted)) {
      all_noted = false;
    } else if (!noted.ok()) {
      co_return Annotate(noted, fmt::format("the storage has grown to {} bytes, but the node's part could "
                                            "not be noted; repeat the request",
                                            capacity));
    }
  }
  co_return all_noted;
}

ApiAnswer<v1::ExpandVolumeResponse> ControllerApi::ExpandOnNode(
    VolumeView held, ::csi::v1::ControllerExpandVolumeRequest request, v1::ExpandVolumeResponse so_far,
    TimePoint deadline) {
  const bool storage_grew = so_far.capacity_bytes() > 0;
  const std::map<std::string, std::string> secrets = ToStdMap(request.secrets());
  ::csi::v1::CapacityRange range = request.capacity_range();
  if (storage_grew) {
    // To all that the storage has by now.
    range.set_required_bytes(so_far.capacity_bytes());
    range.clear_limit_bytes();
  }
  auto capacity = co_await mounter_.NodeExpand(held.plugin_id, held.volume_id, range, secrets, deadline);
  if (!capacity.ok() && storage_grew) {
    // Only the journal knows whether it is still pending: it may have been done during this call.
    const auto now = mounter_.Find(held.plugin_id, held.volume_id);
    const bool owed = !now || now->pending_expansion_bytes > 0;
    if (!owed || absl::IsNotFound(capacity.status())) {
      so_far.set_node_expanded(!owed);
      so_far.set_node_expansion_pending(owed);
      so_far.set_node_expansion_noted(owed);
      co_return so_far;
    }
  }
  if (!capacity.ok()) {
    if (!storage_grew) co_return capacity.status();
    co_return Annotate(capacity.status(),
                       fmt::format("the storage has grown to {} bytes, but the node's part failed "
                                   "and is pending; it is tried again, and repeating the request does",
                                   so_far.capacity_bytes()));
  }
  // CSI lets the node leave the capacity out.
  if (*capacity > 0) so_far.set_capacity_bytes(*capacity);
  so_far.set_node_expanded(true);
  co_return so_far;
}

ApiAnswer<v1::ListStorageVolumesResponse> ControllerApi::ListStorageVolumes(
    v1::ListStorageVolumesRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckStorageList(request));
  v1::ControllerCall list;
  list.set_plugin_id(request.plugin_id());
  list.mutable_list()->set_starting_token(request.page_token());
  const ControllerCalls::Result listed = co_await controller_calls_.Call(std::move(list), call.deadline);
  BERTH_CO_RETURN_IF_ERROR(listed.status);
  const std::vector<std::string> ids = SameDriver(control_.plugins(), request.plugin_id());
  v1::ListStorageVolumesResponse answer;
  for (const auto& entry : listed.answer.list().entries()) {
    const ::csi::v1::Volume& listed_volume = entry.volume();
    v1::StorageVolume& volume = *answer.add_volumes();
    volume.set_volume_id(listed_volume.volume_id());
    volume.set_capacity_bytes(listed_volume.capacity_bytes());
    if (call.may_change) *volume.mutable_volume_context() = listed_volume.volume_context();
    *volume.mutable_published_node_ids() = entry.status().published_node_ids();
    if (entry.status().has_volume_condition()) {
      volume.mutable_condition()->set_abnormal(entry.status().volume_condition().abnormal());
      volume.mutable_condition()->set_message(entry.status().volume_condition().message());
    }
    volume.set_used_here(std::ranges::any_of(
        ids, [&](const std::string& id) { return mounter_.Find(id, volume.volume_id()).has_value(); }));
  }
  answer.set_next_page_token(listed.answer.list().next_token());
  co_return answer;
}

}  // namespace berth
