#include "rpc/volume_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "base/status.h"
#include "request/request_check.h"
#include "rpc/convert.h"
#include "rpc/convert_volume.h"

namespace berth {
namespace {

using NodeRpc = ::csi::v1::NodeServiceCapability::RPC;

// The operator's settings for a runtime win over a request's for the same name.
void UseRuntimeOf(const std::vector<RuntimeAbility>& runtimes, v1::PublishVolumeRequest& request) {
  const auto configured = std::ranges::find(runtimes, request.runtime().name(), &RuntimeAbility::name);
  if (configured != runtimes.end()) *request.mutable_runtime() = *configured;
}

// For people.
std::string CallerOf(const CallInfo& call) {
  if (call.origin == Origin::kScheduler) return "the scheduler";
  if (!call.peer) return "a program of this node";  // that has gone meanwhile
  return fmt::format("uid {}", call.peer->uid);
}

}  // namespace

ApiAnswer<v1::PublishVolumeResponse> VolumeApi::PublishVolume(v1::PublishVolumeRequest request,
                                                              CallInfo call) {
  UseRuntimeOf(runtimes_, request);
  BERTH_CO_ASSIGN_OR_RETURN(PublishRequest checked, CheckPublish(request));
  checked.origin = call.origin;
  BERTH_CO_ASSIGN_OR_RETURN(checked.plugin_id, lookup_.PluginOf(checked.plugin_id, checked.volume_id));
  BERTH_CO_RETURN_IF_ERROR(access_.MayPublish(checked.plugin_id, checked.volume_id));
  BERTH_CO_ASSIGN_OR_RETURN(const NodeDrainer::Admission admitted, drainer_.Admit(checked));
  const ControllerAccess::VolumeUseLock hold = access_.LockForPublish(checked.plugin_id, checked.volume_id);
  const std::string plugin_id = checked.plugin_id;
  const std::string volume_id = checked.volume_id;
  BERTH_CO_ASSIGN_OR_RETURN(const std::string target,
                            co_await mounter_.Publish(std::move(checked), call.deadline));
  v1::PublishVolumeResponse answer;
  answer.set_target_path(target);
  if (const auto volume = mounter_.Find(plugin_id, volume_id)) {
    *answer.mutable_volume() = ToProto(*volume, call.may_change);
  }
  if (const auto mount = mounter_.MountOf(plugin_id, volume_id, request.consumer(), request.name())) {
    *answer.mutable_mount() = ToProto(*mount, call.may_change);
  }
  co_return answer;
}

ApiAnswer<v1::UnpublishVolumeResponse> VolumeApi::UnpublishVolume(v1::UnpublishVolumeRequest request,
                                                                  CallInfo call) {
  BERTH_CO_ASSIGN_OR_RETURN(UnpublishRequest checked, CheckUnpublish(request));
  BERTH_CO_ASSIGN_OR_RETURN(checked.plugin_id, lookup_.PluginOf(checked.plugin_id, checked.volume_id));
  if (checked.force) checked.requested_by = CallerOf(call);
  const std::string plugin_id = checked.plugin_id;
  declared_.OnUnpublish(checked);
  BERTH_CO_ASSIGN_OR_RETURN(const UnpublishResult result,
                            co_await mounter_.Unpublish(std::move(checked), call.deadline));
  v1::UnpublishVolumeResponse answer;
  answer.set_was_published(result.was_published);
  answer.set_still_in_use(result.still_in_use);
  answer.set_used_by(Printable(result.used_by));
  answer.set_aborted(result.aborted);
  answer.set_detached(result.detached);
  answer.set_without_plugin(result.without_plugin);
  answer.set_uses_left(access_.UsesLeft(plugin_id, request.volume_id()) +
                       AttachedForFiles(plugin_id, request.volume_id()));
  co_return answer;
}

uint32_t VolumeApi::AttachedForFiles(const std::string& plugin_id, const std::string& volume_id) const {
  const std::set<std::string> plugins = access_.PluginsOf(plugin_id, volume_id);
  uint32_t uses = 0;
  for (const auto& [volume, files] : lookup_.Declared()) {
    if (!plugins.contains(volume.first) || volume.second != volume_id) continue;
    const auto here = mounter_.Find(volume.first, volume_id);
    for (const DeclaredView& file : files) {
      const bool counted =
          here && std::ranges::any_of(here->publications, [&](const PublicationView& use) {
            return use.consumer == file.request.consumer() && use.name == file.request.name();
          });
      if (!counted && file.attached) ++uses;
    }
  }
  return uses;
}

ApiAnswer<v1::EndConsumerResponse> VolumeApi::EndConsumer(v1::EndConsumerRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckConsumer(request.consumer()));
  BERTH_CO_ASSIGN_OR_RETURN(
      const size_t released,
      co_await mounter_.ConsumerEnded(request.consumer(), "said by " + CallerOf(call), call.deadline));
  v1::EndConsumerResponse answer;
  answer.set_released(static_cast<int32_t>(released));
  co_return answer;
}

bool VolumeApi::MayBePublished(const v1::PublishVolumeRequest& request) const {
  const auto plugin_id = lookup_.PluginOf(request.plugin_id(), request.volume_id());
  if (!plugin_id.ok()) return false;
  const auto volume = mounter_.Find(*plugin_id, request.volume_id());
  return volume && std::ranges::any_of(volume->publications, [&](const PublicationView& use) {
           return use.consumer == request.consumer() && use.name == request.name();
         });
}

ApiAnswer<v1::ExpandResult> VolumeApi::ExpandHere(v1::ExpandOperation request, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(const std::string plugin_id,
                            lookup_.PluginOf(request.plugin_id(), request.volume_id()));
  const auto plugin = control_.plugins().find(plugin_id);
  if (plugin != control_.plugins().end() && plugin->second.facts &&
      !plugin->second.facts->NodeCan(NodeRpc::EXPAND_VOLUME)) {
    co_return absl::FailedPreconditionError(fmt::format(
        "plugin {} cannot expand volumes on a node (no EXPAND_VOLUME)", PrintableName(plugin_id)));
  }
  // Noted first: from here on it is done sooner or later, whatever becomes of this call.
  BERTH_CO_RETURN_IF_ERROR(
      co_await mounter_.SetPendingExpansion(plugin_id, request.volume_id(), request.required_bytes()));
  ::csi::v1::CapacityRange range;
  range.set_required_bytes(request.required_bytes());
  range.set_limit_bytes(request.limit_bytes());
  const std::map<std::string, std::string> secrets(request.secrets().begin(), request.secrets().end());
  const auto capacity =
      co_await mounter_.NodeExpand(plugin_id, request.volume_id(), range, secrets, deadline);
  v1::ExpandResult answer;
  if (absl::IsNotFound(capacity.status())) {
    answer.set_noted(true);
    co_return answer;
  }
  if (!capacity.ok()) co_return capacity.status();
  answer.set_capacity_bytes(*capacity);
  co_return answer;
}

ApiAnswer<v1::ConfirmResult> VolumeApi::ConfirmHere(v1::ConfirmOperation request, TimePoint deadline) {
  std::vector<PublicationRef> wanted;
  std::multimap<PublicationRef, int> named;  // where in the request
  for (int i = 0; i < request.publications_size(); ++i) {
    const v1::PublicationName& name = request.publications(i);
    const auto plugin_id = lookup_.PluginOf(name.plugin_id(), name.volume_id());
    wanted.push_back({.plugin_id = plugin_id.ok() ? *plugin_id : name.plugin_id(),
                      .volume_id = name.volume_id(),
                      .consumer = fmt::format("{}/{}", name.namespace_(), name.consumer()),
                      .name = name.name()});
    named.emplace(wanted.back(), i);
  }
  BERTH_CO_ASSIGN_OR_RETURN(const std::vector<PublicationRef> not_confirmed,
                            co_await mounter_.Confirm(std::move(wanted), deadline));
  v1::ConfirmResult answer;
  for (const PublicationRef& use : not_confirmed) {
    const auto found = named.find(use);
    if (found == named.end()) continue;
    *answer.add_not_confirmed() = request.publications(found->second);
    named.erase(found);
  }
  co_return answer;
}

}  // namespace berth
