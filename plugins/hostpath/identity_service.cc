#include "plugins/hostpath/identity_service.h"

namespace berth::hostpath {

using ::csi::v1::PluginCapability;

grpc::Status IdentityService::GetPluginInfo(grpc::ServerContext*, const ::csi::v1::GetPluginInfoRequest*,
                                            ::csi::v1::GetPluginInfoResponse* response) {
  return Answer(context_, CallKind::kReads, "GetPluginInfo", "", [&] {
    response->set_name(context_.options.driver_name);
    response->set_vendor_version(BERTH_VERSION);
    (*response->mutable_manifest())["project"] = "berth";
    return absl::OkStatus();
  });
}

grpc::Status IdentityService::GetPluginCapabilities(grpc::ServerContext*,
                                                    const ::csi::v1::GetPluginCapabilitiesRequest*,
                                                    ::csi::v1::GetPluginCapabilitiesResponse* response) {
  return Answer(context_, CallKind::kReads, "GetPluginCapabilities", "", [&] {
    for (const auto type : {PluginCapability::Service::CONTROLLER_SERVICE,
                            PluginCapability::Service::VOLUME_ACCESSIBILITY_CONSTRAINTS}) {
      response->add_capabilities()->mutable_service()->set_type(type);
    }
    // ONLINE covers expanding what is not in use, too; OFFLINE would say that it must not be in use.
    response->add_capabilities()->mutable_volume_expansion()->set_type(
        PluginCapability::VolumeExpansion::ONLINE);
    return absl::OkStatus();
  });
}

grpc::Status IdentityService::Probe(grpc::ServerContext*, const ::csi::v1::ProbeRequest*,
                                    ::csi::v1::ProbeResponse* response) {
  return Answer(context_, CallKind::kReads, "Probe", "", [&]() -> absl::Status {
    for (const absl::Status& status : {context_.storage.Check(), context_.store.Check()}) {
      if (!status.ok()) return absl::FailedPreconditionError(status.message());
    }
    response->mutable_ready()->set_value(true);
    return absl::OkStatus();
  });
}

}  // namespace berth::hostpath
