// CSI's services with the script in between: each RPC of berth-hostpath's, run by the Player. Blocks, on
// gRPC's threads.
#pragma once

#include "csi/csi.grpc.pb.h"
#include "tests/fault_plugin/player.h"

namespace berth::fault {

// NOLINTBEGIN(bugprone-macro-parentheses): `Method` is a name that is declared.
#define BERTH_FAULT_FORWARD(Method)                                                                    \
  grpc::Status Method(grpc::ServerContext* context, const ::csi::v1::Method##Request* request,         \
                      ::csi::v1::Method##Response* response) override {                                \
    return player_.Run(#Method, *request, response, [&](const google::protobuf::Message& sent) {       \
      return inner_.Method(context, &dynamic_cast<const ::csi::v1::Method##Request&>(sent), response); \
    });                                                                                                \
  }
// NOLINTEND(bugprone-macro-parentheses)

class IdentityLayer final : public ::csi::v1::Identity::Service {
 public:
  IdentityLayer(Player& player, ::csi::v1::Identity::Service& inner) : player_(player), inner_(inner) {}
  BERTH_FAULT_FORWARD(GetPluginInfo)
  BERTH_FAULT_FORWARD(GetPluginCapabilities)
  BERTH_FAULT_FORWARD(Probe)

 private:
  Player& player_;
  ::csi::v1::Identity::Service& inner_;
};

class ControllerLayer final : public ::csi::v1::Controller::Service {
 public:
  ControllerLayer(Player& player, ::csi::v1::Controller::Service& inner) : player_(player), inner_(inner) {}
  BERTH_FAULT_FORWARD(CreateVolume)
  BERTH_FAULT_FORWARD(DeleteVolume)
  BERTH_FAULT_FORWARD(ControllerPublishVolume)
  BERTH_FAULT_FORWARD(ControllerUnpublishVolume)
  BERTH_FAULT_FORWARD(ValidateVolumeCapabilities)
  BERTH_FAULT_FORWARD(ListVolumes)
  BERTH_FAULT_FORWARD(GetCapacity)
  BERTH_FAULT_FORWARD(ControllerGetCapabilities)
  BERTH_FAULT_FORWARD(CreateSnapshot)
  BERTH_FAULT_FORWARD(DeleteSnapshot)
  BERTH_FAULT_FORWARD(ListSnapshots)
  BERTH_FAULT_FORWARD(GetSnapshot)
  BERTH_FAULT_FORWARD(ControllerExpandVolume)
  BERTH_FAULT_FORWARD(ControllerGetVolume)
  BERTH_FAULT_FORWARD(ControllerModifyVolume)

 private:
  Player& player_;
  ::csi::v1::Controller::Service& inner_;
};

class NodeLayer final : public ::csi::v1::Node::Service {
 public:
  NodeLayer(Player& player, ::csi::v1::Node::Service& inner) : player_(player), inner_(inner) {}
  BERTH_FAULT_FORWARD(NodeStageVolume)
  BERTH_FAULT_FORWARD(NodeUnstageVolume)
  BERTH_FAULT_FORWARD(NodePublishVolume)
  BERTH_FAULT_FORWARD(NodeUnpublishVolume)
  BERTH_FAULT_FORWARD(NodeGetVolumeStats)
  BERTH_FAULT_FORWARD(NodeExpandVolume)
  BERTH_FAULT_FORWARD(NodeGetCapabilities)
  BERTH_FAULT_FORWARD(NodeGetInfo)
  BERTH_FAULT_FORWARD(NodeGetVolumeHealth)
  BERTH_FAULT_FORWARD(NodeGetStorageHealth)

 private:
  Player& player_;
  ::csi::v1::Node::Service& inner_;
};

#undef BERTH_FAULT_FORWARD

}  // namespace berth::fault
