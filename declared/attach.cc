#include "declared/attach.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/status.h"
#include "csi/errors.h"
#include "csi/plugin_facts.h"
#include "rpc/convert.h"
#include "rpc/plugin_choice.h"
#include "rpc/request_check.h"

namespace berth {
namespace {

using ControllerRpc = ::csi::v1::ControllerServiceCapability::RPC;
using AccessMode = ::csi::v1::VolumeCapability::AccessMode;

// Modes that came late to CSI go only to a controller that knows them.
::csi::v1::VolumeCapability CapabilityFor(const PluginFacts& facts, const VolumeUse& use) {
  ::csi::v1::VolumeCapability capability = ToCsi(use);
  const auto mode = capability.access_mode().mode();
  if (!facts.ControllerCan(ControllerRpc::SINGLE_NODE_MULTI_WRITER) &&
      (mode == AccessMode::SINGLE_NODE_MULTI_WRITER || mode == AccessMode::SINGLE_NODE_SINGLE_WRITER)) {
    capability.mutable_access_mode()->set_mode(AccessMode::SINGLE_NODE_WRITER);
  }
  return capability;
}

}  // namespace

struct Attacher::Controller {
  std::string plugin_id;
  std::shared_ptr<CsiClient> client;
  PluginFacts facts;
};

absl::StatusOr<Attacher::Controller> Attacher::Find(const std::string& plugin_id) const {
  BERTH_ASSIGN_OR_RETURN(const std::string id, ChooseController(plugins_.plugins(), plugin_id));
  const PluginSnapshot& plugin = plugins_.plugins().at(id);
  if (!plugin.facts.has_value()) {
    return absl::UnavailableError(fmt::format("it is not known yet what plugin {} is", id));
  }
  if (!plugin.facts->ControllerCan(ControllerRpc::PUBLISH_UNPUBLISH_VOLUME)) {
    return absl::FailedPreconditionError(
        fmt::format("plugin {} cannot attach volumes (no PUBLISH_UNPUBLISH_VOLUME)", id));
  }
  Controller controller{.plugin_id = id, .client = controllers_.ClientOf(id), .facts = *plugin.facts};
  if (plugin.held || controller.client == nullptr) {
    return absl::UnavailableError(fmt::format("plugin {} cannot be reached just now", id));
  }
  return controller;
}

absl::Status Attacher::Ready(const std::string& plugin_id) const { return Find(plugin_id).status(); }

Awaitable<absl::StatusOr<std::map<std::string, std::string>>> Attacher::Attach(AttachCall call,
                                                                               TimePoint deadline) {
  using Secrets = std::map<std::string, std::string>;
  BERTH_CO_ASSIGN_OR_RETURN(const Secrets secrets,
                            co_await mounter_.ReadSecrets(call.secrets_reference, deadline));
  BERTH_CO_ASSIGN_OR_RETURN(const Controller controller, Find(call.plugin_id));
  ::csi::v1::ControllerPublishVolumeRequest request;
  request.set_volume_id(call.volume_id);
  request.set_node_id(call.node_id);
  *request.mutable_volume_capability() = CapabilityFor(controller.facts, call.use);
  request.set_readonly(call.readonly && controller.facts.ControllerCan(ControllerRpc::PUBLISH_READONLY));
  request.mutable_volume_context()->insert(call.volume_context.begin(), call.volume_context.end());
  request.mutable_secrets()->insert(secrets.begin(), secrets.end());
  const auto answer = co_await controller.client->ControllerPublishVolume(std::move(request), deadline);
  if (!answer.ok()) {
    co_return Annotate(
        HideSecrets(answer.status(), secrets),
        fmt::format("plugin {}: {}", controller.plugin_id, RpcName(CsiRpc::kControllerPublishVolume)));
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
  BERTH_CO_ASSIGN_OR_RETURN(const Controller controller, Find(call.plugin_id));
  ::csi::v1::ControllerUnpublishVolumeRequest request;
  request.set_volume_id(call.volume_id);
  request.set_node_id(call.node_id);
  request.mutable_secrets()->insert(secrets.begin(), secrets.end());
  const auto answer = co_await controller.client->ControllerUnpublishVolume(std::move(request), deadline);
  // NOT_FOUND too: with another node's id, or another driver's volume, it would be no success at all. It is
  // tried again, and an operator's matter if it stays so.
  if (answer.ok()) co_return absl::OkStatus();
  co_return Annotate(
      HideSecrets(answer.status(), secrets),
      fmt::format("plugin {}: {}", controller.plugin_id, RpcName(CsiRpc::kControllerUnpublishVolume)));
}

}  // namespace berth
