// The kinds of a scheduler's controller call, once: the RPC of each, the client's method, the request, and
// its place in the answer.
//
// Pure; any thread.
#pragma once

#include <utility>

#include "berth/v1/scheduler.pb.h"
#include "csi/client.h"
#include "csi/errors.h"

namespace berth {

// What `visit` returns for the request of `call`, called as visit(CsiRpc, method, request, field). Nothing is
// visited, and a default value returned, where none is set, or one that this node does not know.
template <class Visit>
auto VisitControllerCall(const v1::ControllerCall& call, Visit&& visit) {
  using Call = v1::ControllerCall;
  using Answer = v1::ControllerAnswer;
  using Client = CsiClient;
  using enum CsiRpc;
  switch (call.request_case()) {
    case Call::kAttach:
      return visit(kControllerPublishVolume, &Client::ControllerPublishVolume, call.attach(),
                   &Answer::mutable_attach);
    case Call::kDetach:
      return visit(kControllerUnpublishVolume, &Client::ControllerUnpublishVolume, call.detach(),
                   &Answer::mutable_detach);
    case Call::kValidate:
      return visit(kValidateVolumeCapabilities, &Client::ValidateVolumeCapabilities, call.validate(),
                   &Answer::mutable_validate);
    case Call::kCreate:
      return visit(kCreateVolume, &Client::CreateVolume, call.create(), &Answer::mutable_create);
    case Call::kDelete:
      return visit(kDeleteVolume, &Client::DeleteVolume, call.delete_(), &Answer::mutable_delete_);
    case Call::kList:
      return visit(kListVolumes, &Client::ListVolumes, call.list(), &Answer::mutable_list);
    case Call::kGet:
      return visit(kControllerGetVolume, &Client::ControllerGetVolume, call.get(), &Answer::mutable_get);
    case Call::kGetCapacity:
      return visit(kGetCapacity, &Client::GetCapacity, call.get_capacity(), &Answer::mutable_get_capacity);
    case Call::kExpand:
      return visit(kControllerExpandVolume, &Client::ControllerExpandVolume, call.expand(),
                   &Answer::mutable_expand);
    case Call::kModify:
      return visit(kControllerModifyVolume, &Client::ControllerModifyVolume, call.modify(),
                   &Answer::mutable_modify);
    case Call::kCreateSnapshot:
      return visit(kCreateSnapshot, &Client::CreateSnapshot, call.create_snapshot(),
                   &Answer::mutable_create_snapshot);
    case Call::kDeleteSnapshot:
      return visit(kDeleteSnapshot, &Client::DeleteSnapshot, call.delete_snapshot(),
                   &Answer::mutable_delete_snapshot);
    case Call::kListSnapshots:
      return visit(kListSnapshots, &Client::ListSnapshots, call.list_snapshots(),
                   &Answer::mutable_list_snapshots);
    case Call::kGetSnapshot:
      return visit(kGetSnapshot, &Client::GetSnapshot, call.get_snapshot(), &Answer::mutable_get_snapshot);
    case Call::kCreateGroupSnapshot:
      return visit(kCreateVolumeGroupSnapshot, &Client::CreateVolumeGroupSnapshot,
                   call.create_group_snapshot(), &Answer::mutable_create_group_snapshot);
    case Call::kDeleteGroupSnapshot:
      return visit(kDeleteVolumeGroupSnapshot, &Client::DeleteVolumeGroupSnapshot,
                   call.delete_group_snapshot(), &Answer::mutable_delete_group_snapshot);
    case Call::kGetGroupSnapshot:
      return visit(kGetVolumeGroupSnapshot, &Client::GetVolumeGroupSnapshot, call.get_group_snapshot(),
                   &Answer::mutable_get_group_snapshot);
    case Call::REQUEST_NOT_SET:
      break;
  }
  using Result =
      decltype(visit(kDeleteVolume, &Client::DeleteVolume, call.delete_(), &Answer::mutable_delete_));
  return Result();
}

// Whether the call, if it is one that this node knows, changes something.
inline bool ChangesSomething(const v1::ControllerCall& call) {
  return VisitControllerCall(call, [](CsiRpc rpc, auto, const auto&, auto) { return ChangesSomething(rpc); });
}

}  // namespace berth
