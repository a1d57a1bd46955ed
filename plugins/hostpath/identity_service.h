// CSI's Identity service: who the plugin is, what it serves, whether it is well.
#pragma once

#include "csi/csi.grpc.pb.h"
#include "plugins/hostpath/context.h"

namespace berth::hostpath {

class IdentityService final : public ::csi::v1::Identity::Service {
 public:
  explicit IdentityService(Context& context) : context_(context) {}

  grpc::Status GetPluginInfo(grpc::ServerContext* server, const ::csi::v1::GetPluginInfoRequest* request,
                             ::csi::v1::GetPluginInfoResponse* response) override;
  grpc::Status GetPluginCapabilities(grpc::ServerContext* server,
                                     const ::csi::v1::GetPluginCapabilitiesRequest* request,
                                     ::csi::v1::GetPluginCapabilitiesResponse* response) override;
  // Reads the database and looks at the state directory: microseconds, to be called as often as anyone
  // likes. FAILED_PRECONDITION where either fails. Ready as soon as it answers at all.
  grpc::Status Probe(grpc::ServerContext* server, const ::csi::v1::ProbeRequest* request,
                     ::csi::v1::ProbeResponse* response) override;

 private:
  Context& context_;
};

}  // namespace berth::hostpath
