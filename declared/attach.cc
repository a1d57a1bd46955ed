#include "declared/attach.h"

#include <fmt/format.h>

#include <utility>

#include "base/status.h"
#include "csi/errors.h"
#include "request/request_check.h"

namespace berth {
namespace {

using ControllerRpc = ::csi::v1::ControllerServiceCapability::RPC;

}  // namespace

absl::StatusOr<ControllerAccess::Controller> Attacher::Find(const std::string& plugin_id) const {
  BERTH_ASSIGN_OR_RETURN(ControllerAccess::Controller controller, access_.FindNow(plugin_id));
  if (!controller.facts.ControllerCan(ControllerRpc::PUBLISH_UNPUBLISH_VOLUME)) {
    return Lacks(controller.plugin_id, "PUBLISH_UNPUBLISH_VOLUME", "attach volumes");
  }
  return controller;
}

absl::Status Attacher::Ready(const std::string& plugin_id) const { return Find(plugin_id).status(); }

Awaitable<absl::StatusOr<std::map<std::string, std::string>>> Attacher::Attach(AttachCall call,
                                                                               TimePoint deadline) {
  using Secrets = std::map<std::string, std::string>;
  BERTH_CO_ASSIGN_OR_RETURN(const Secrets secrets,
                            co_await mounter_.ReadSecrets(call.secrets_reference, deadline));
  BERTH_CO_ASSIGN_OR_RETURN(const VolumeCallQueue::Turn turn,
                            co_await access_.WaitTurn(call.plugin_id, call.volume_id, deadline));
  BERTH_CO_ASSIGN_OR_RETURN(const ControllerAccess::Controller controller, Find(call.plugin_id));
  BERTH_CO_RETURN_IF_ERROR(access_.CheckNotShuttingDown());
  ::csi::v1::ControllerPublishVolumeRequest request;
  request.set_volume_id(call.volume_id);
  request.set_node_id(call.node_id);
  *request.mutable_volume_capability() = ToCsi(call.use);
  FitAccessMode(controller.facts, request.mutable_volume_capability());
  request.set_readonly(call.readonly && controller.facts.ControllerCan(ControllerRpc::PUBLISH_READONLY));
  request.mutable_volume_context()->insert(call.volume_context.begin(), call.volume_context.end());
  request.mutable_secrets()->insert(secrets.begin(), secrets.end());
  const auto answer = co_await controller.client->ControllerPublishVolume(std::move(request), deadline);
  if (!answer.ok()) {
    co_return CallError(answer.status(), controller.plugin_id, CsiRpc::kControllerPublishVolume);
  }
  std::map<std::string, std::string> context(answer->publish_context().begin(),
                                             answer->publish_context().end());
  // Past the limits of a request it could not be published with.
  size_t bytes = 0;
  for (const auto& [key, value] : context) bytes += key.size() + value.size();
  if (context.size() > RequestLimits::kMapEntries || bytes > RequestLimits::kMapBytes) {
    co_return absl::InternalError(
        fmt::format("plugin {}: ControllerPublishVolume answered a publish_context of {} entries, {} bytes",
                    controller.plugin_id, context.size(), bytes));
  }
  co_return context;
}

Awaitable<absl::Status> Attacher::Detach(AttachCall call, TimePoint deadline) {
  using Secrets = std::map<std::string, std::string>;
  BERTH_CO_ASSIGN_OR_RETURN(const Secrets secrets,
                            co_await mounter_.ReadSecrets(call.secrets_reference, deadline));
  BERTH_CO_ASSIGN_OR_RETURN(const VolumeCallQueue::Turn turn,
                            co_await access_.WaitTurn(call.plugin_id, call.volume_id, deadline));
  BERTH_CO_RETURN_IF_ERROR(
      co_await access_.CheckUnrecorded(call.plugin_id, call.volume_id, call.node_id, deadline));
  BERTH_CO_ASSIGN_OR_RETURN(const ControllerAccess::Controller controller, Find(call.plugin_id));
  // Another caller may have begun to publish it during this wait.
  BERTH_CO_RETURN_IF_ERROR(access_.MayDetach(controller.plugin_id, call.volume_id, call.node_id));
  const auto hold = access_.LockForDetach(controller.plugin_id, call.volume_id, call.node_id);
  ::csi::v1::ControllerUnpublishVolumeRequest request;
  request.set_volume_id(call.volume_id);
  request.set_node_id(call.node_id);
  request.mutable_secrets()->insert(secrets.begin(), secrets.end());
  const auto answer = co_await controller.client->ControllerUnpublishVolume(std::move(request), deadline);
  // NOT_FOUND too: with another node's id, or another driver's volume, it would be no success at all. It is
  // tried again, and an operator's matter if it stays so.
  if (answer.ok()) co_return absl::OkStatus();
  co_return CallError(answer.status(), controller.plugin_id, CsiRpc::kControllerUnpublishVolume);
}

}  // namespace berth
