#include "csi/errors.h"

namespace berth {
namespace {

using absl::StatusCode;

// What a failure can have left behind depends on what the call was to do.
enum class Kind {
  kRead,     // changes nothing, so nothing is ever uncertain after it
  kForward,  // brings something about
  kReverse,  // undoes something; harmless to repeat
};

Kind KindOf(CsiRpc rpc) {
  switch (rpc) {
    case CsiRpc::kGetPluginInfo:
    case CsiRpc::kGetPluginCapabilities:
    case CsiRpc::kProbe:
    case CsiRpc::kValidateVolumeCapabilities:
    case CsiRpc::kListVolumes:
    case CsiRpc::kGetCapacity:
    case CsiRpc::kControllerGetCapabilities:
    case CsiRpc::kListSnapshots:
    case CsiRpc::kGetSnapshot:
    case CsiRpc::kControllerGetVolume:
    case CsiRpc::kGroupControllerGetCapabilities:
    case CsiRpc::kGetVolumeGroupSnapshot:
    case CsiRpc::kNodeGetVolumeStats:
    case CsiRpc::kNodeGetCapabilities:
    case CsiRpc::kNodeGetInfo:
      return Kind::kRead;
    case CsiRpc::kCreateVolume:
    case CsiRpc::kControllerPublishVolume:
    case CsiRpc::kCreateSnapshot:
    case CsiRpc::kControllerExpandVolume:
    case CsiRpc::kControllerModifyVolume:
    case CsiRpc::kCreateVolumeGroupSnapshot:
    case CsiRpc::kNodeStageVolume:
    case CsiRpc::kNodePublishVolume:
    case CsiRpc::kNodeExpandVolume:
      return Kind::kForward;
    case CsiRpc::kDeleteVolume:
    case CsiRpc::kControllerUnpublishVolume:
    case CsiRpc::kDeleteSnapshot:
    case CsiRpc::kDeleteVolumeGroupSnapshot:
    case CsiRpc::kNodeUnstageVolume:
    case CsiRpc::kNodeUnpublishVolume:
      return Kind::kReverse;
  }
  return Kind::kForward;  // Not reached by a value of the enum.
}

CallOutcome ClassifyRead(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return CallOutcome::kDone;
    // The answer was lost, late or refused for now. Asking again costs nothing.
    case StatusCode::kCancelled:
    case StatusCode::kUnknown:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted:
    case StatusCode::kFailedPrecondition:  // Probe: "not healthy yet"
    case StatusCode::kAborted:
    case StatusCode::kInternal:
    case StatusCode::kUnavailable:
    case StatusCode::kDataLoss:
      return CallOutcome::kRetry;
    // A repeat will be answered in the same way. NOT_FOUND: there is no such volume or snapshot, or
    // (NodeGetVolumeStats) it is not at the path, which is news for the caller.
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kAlreadyExists:
    case StatusCode::kPermissionDenied:
    case StatusCode::kOutOfRange:
    case StatusCode::kUnimplemented:
    case StatusCode::kUnauthenticated:
      return CallOutcome::kFinal;
    case StatusCode::kDoNotUseReservedForFutureExpansionUseDefaultInSwitchInstead_:
      break;
  }
  return CallOutcome::kRetry;  // A code outside the seventeen counts as UNKNOWN.
}

// What forward and reverse calls have in common: the codes that say how the call went, not what the plugin
// thinks of the request. None of them is evidence that nothing happened.
//
// gRPC itself also makes CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, UNKNOWN, INTERNAL and DATA_LOSS, when a
// connection breaks, a frame is garbled or a handler throws: before the call left or long after. Drivers use
// INTERNAL and UNKNOWN most, also for "my own time limit ran out while the mount goes on in the background".
// gRPC uses RESOURCE_EXHAUSTED for an answer that was too large, and such an answer comes after the effect.

// Whether RESOURCE_EXHAUSTED has a meaning of its own by the specification: for a call that creates, the pool
// is full; for ControllerPublishVolume, the node is. The caller gets it at once; it may ask again elsewhere.
// If something was created after all it is found again by its name; if something was attached it must still
// be detached: final says no more.
bool SaysFull(CsiRpc rpc) {
  return rpc == CsiRpc::kCreateVolume || rpc == CsiRpc::kControllerPublishVolume ||
         rpc == CsiRpc::kCreateSnapshot || rpc == CsiRpc::kCreateVolumeGroupSnapshot;
}

CallOutcome ClassifyForward(CsiRpc rpc, StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return CallOutcome::kDone;
    case StatusCode::kCancelled:
    case StatusCode::kUnknown:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kInternal:
    case StatusCode::kUnavailable:
    case StatusCode::kDataLoss:
      return CallOutcome::kUncertain;
    case StatusCode::kResourceExhausted:
      return SaysFull(rpc) ? CallOutcome::kFinal : CallOutcome::kUncertain;
    // An operation on this volume is still pending in the plugin: ours, from before, or another's.
    case StatusCode::kAborted:
      return CallOutcome::kRetry;
    // The specification's refusals: the request or the world must change first. INVALID_ARGUMENT, NOT_FOUND
    // (no such volume, source or node), ALREADY_EXISTS (there, but incompatible), FAILED_PRECONDITION
    // (exceeds the volume's capabilities; attached to another node; in use and so not expandable),
    // OUT_OF_RANGE (capacity).
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kAlreadyExists:
    case StatusCode::kPermissionDenied:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kOutOfRange:
    case StatusCode::kUnimplemented:
    case StatusCode::kUnauthenticated:
      return CallOutcome::kFinal;
    case StatusCode::kDoNotUseReservedForFutureExpansionUseDefaultInSwitchInstead_:
      break;
  }
  return CallOutcome::kUncertain;  // A code outside the seventeen counts as UNKNOWN.
}

CallOutcome ClassifyReverse(CsiRpc rpc, StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return CallOutcome::kDone;
    case StatusCode::kNotFound:
      // Of a detach the specification has it that the volume is not to be taken for detached, and that the
      // call is repeated; the kernel of another machine cannot be asked.
      return rpc == CsiRpc::kControllerUnpublishVolume ? CallOutcome::kRetry : CallOutcome::kAbsent;
    case StatusCode::kCancelled:
    case StatusCode::kUnknown:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted:
    case StatusCode::kInternal:
    case StatusCode::kUnavailable:
    case StatusCode::kDataLoss:
      return CallOutcome::kUncertain;
    case StatusCode::kAborted:
      return CallOutcome::kRetry;
    // FAILED_PRECONDITION is DeleteVolume's "in use", and some drivers' "busy": the users of the volume must
    // end first, and the caller can see to that.
    case StatusCode::kInvalidArgument:
    case StatusCode::kAlreadyExists:
    case StatusCode::kPermissionDenied:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kOutOfRange:
    case StatusCode::kUnimplemented:
    case StatusCode::kUnauthenticated:
      return CallOutcome::kFinal;
    case StatusCode::kDoNotUseReservedForFutureExpansionUseDefaultInSwitchInstead_:
      break;
  }
  return CallOutcome::kUncertain;  // A code outside the seventeen counts as UNKNOWN.
}

}  // namespace

std::string_view RpcName(CsiRpc rpc) {
  switch (rpc) {
    case CsiRpc::kGetPluginInfo:
      return "GetPluginInfo";
    case CsiRpc::kGetPluginCapabilities:
      return "GetPluginCapabilities";
    case CsiRpc::kProbe:
      return "Probe";
    case CsiRpc::kCreateVolume:
      return "CreateVolume";
    case CsiRpc::kDeleteVolume:
      return "DeleteVolume";
    case CsiRpc::kControllerPublishVolume:
      return "ControllerPublishVolume";
    case CsiRpc::kControllerUnpublishVolume:
      return "ControllerUnpublishVolume";
    case CsiRpc::kValidateVolumeCapabilities:
      return "ValidateVolumeCapabilities";
    case CsiRpc::kListVolumes:
      return "ListVolumes";
    case CsiRpc::kGetCapacity:
      return "GetCapacity";
    case CsiRpc::kControllerGetCapabilities:
      return "ControllerGetCapabilities";
    case CsiRpc::kCreateSnapshot:
      return "CreateSnapshot";
    case CsiRpc::kDeleteSnapshot:
      return "DeleteSnapshot";
    case CsiRpc::kListSnapshots:
      return "ListSnapshots";
    case CsiRpc::kGetSnapshot:
      return "GetSnapshot";
    case CsiRpc::kControllerExpandVolume:
      return "ControllerExpandVolume";
    case CsiRpc::kControllerGetVolume:
      return "ControllerGetVolume";
    case CsiRpc::kControllerModifyVolume:
      return "ControllerModifyVolume";
    case CsiRpc::kGroupControllerGetCapabilities:
      return "GroupControllerGetCapabilities";
    case CsiRpc::kCreateVolumeGroupSnapshot:
      return "CreateVolumeGroupSnapshot";
    case CsiRpc::kDeleteVolumeGroupSnapshot:
      return "DeleteVolumeGroupSnapshot";
    case CsiRpc::kGetVolumeGroupSnapshot:
      return "GetVolumeGroupSnapshot";
    case CsiRpc::kNodeStageVolume:
      return "NodeStageVolume";
    case CsiRpc::kNodeUnstageVolume:
      return "NodeUnstageVolume";
    case CsiRpc::kNodePublishVolume:
      return "NodePublishVolume";
    case CsiRpc::kNodeUnpublishVolume:
      return "NodeUnpublishVolume";
    case CsiRpc::kNodeGetVolumeStats:
      return "NodeGetVolumeStats";
    case CsiRpc::kNodeExpandVolume:
      return "NodeExpandVolume";
    case CsiRpc::kNodeGetCapabilities:
      return "NodeGetCapabilities";
    case CsiRpc::kNodeGetInfo:
      return "NodeGetInfo";
  }
  return "an unknown RPC";  // Not reached by a value of the enum.
}

bool ChangesSomething(CsiRpc rpc) { return KindOf(rpc) != Kind::kRead; }

CallOutcome Classify(CsiRpc rpc, absl::StatusCode code) {
  switch (KindOf(rpc)) {
    case Kind::kRead:
      return ClassifyRead(code);
    case Kind::kForward:
      return ClassifyForward(rpc, code);
    case Kind::kReverse:
      return ClassifyReverse(rpc, code);
  }
  return CallOutcome::kUncertain;  // Not reached by a value of the enum.
}

}  // namespace berth
