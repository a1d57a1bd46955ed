// The looking half of the Controller service: what volumes there are and what they can be.
#include <fmt/format.h>

#include <algorithm>

#include "base/number_text.h"
#include "plugins/hostpath/controller_service.h"
#include "plugins/hostpath/validate.h"

namespace berth::hostpath {

using ::csi::v1::ControllerServiceCapability;

namespace {

constexpr std::string_view kTokenPrefix = "after-";

}  // namespace

std::string MakePageToken(int64_t sequence) { return fmt::format("{}{}", kTokenPrefix, sequence); }

absl::StatusOr<int64_t> ParsePageToken(std::string_view token, int64_t last) {
  if (token.empty()) return 0;
  int64_t sequence = 0;
  if (token.starts_with(kTokenPrefix) && ParseNumber(token.substr(kTokenPrefix.size()), &sequence) &&
      sequence > 0 && sequence <= last) {
    return sequence;
  }
  return absl::AbortedError("starting_token: it was not given out by this plugin; begin again without one");
}

void ControllerService::Describe(const VolumeRecord& volume, ::csi::v1::Volume* out) const {
  out->set_volume_id(volume.id);
  out->set_capacity_bytes(volume.capacity);
  for (const auto& [key, value] : VolumeContext(volume)) (*out->mutable_volume_context())[key] = value;
  if (!volume.source_snapshot.empty()) {
    out->mutable_content_source()->mutable_snapshot()->set_snapshot_id(volume.source_snapshot);
  } else if (!volume.source_volume.empty()) {
    out->mutable_content_source()->mutable_volume()->set_volume_id(volume.source_volume);
  }
  auto* segments = out->add_accessible_topology()->mutable_segments();
  for (const auto& [key, value] : context_.options.topology) (*segments)[key] = value;
}

template <class Status>
absl::Status ControllerService::DescribeStatus(const VolumeRecord& volume, Status* out) const {
  if (context_.options.attach) {
    std::vector<Attachment> attachments;
    BERTH_ASSIGN_OR_RETURN(attachments, context_.store.AttachmentsOf(volume.id));
    for (const Attachment& attachment : attachments) out->add_published_node_ids(attachment.node_id);
  }
  const absl::Status content =
      context_.storage.CheckContent(Area::kVolumes, volume.id, volume.kind, volume.capacity);
  out->mutable_volume_condition()->set_abnormal(!content.ok());
  out->mutable_volume_condition()->set_message(content.ok() ? "its content is there"
                                                            : std::string(content.message()));
  return absl::OkStatus();
}

grpc::Status ControllerService::ValidateVolumeCapabilities(
    grpc::ServerContext*, const ::csi::v1::ValidateVolumeCapabilitiesRequest* request,
    ::csi::v1::ValidateVolumeCapabilitiesResponse* response) {
  return Answer(context_, CallKind::kReads, "ValidateVolumeCapabilities", request->volume_id(),
                [&] { return ValidateCapabilities(*request, response); });
}

absl::Status ControllerService::ValidateCapabilities(
    const ::csi::v1::ValidateVolumeCapabilitiesRequest& request,
    ::csi::v1::ValidateVolumeCapabilitiesResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.volume_id()));
  // Something that does not fit is an answer here, not an error.
  const auto deny = [&](const absl::Status& reason) {
    response->set_message(std::string(reason.message()));
    return absl::OkStatus();
  };
  for (const auto& capability : request.volume_capabilities()) {
    if (const absl::Status fits = SupportsCapability(volume.kind, volume.fs_type, capability); !fits.ok()) {
      return deny(fits);
    }
    const auto flags = ParseMountFlags(capability.mount().mount_flags());
    if (!flags.ok()) return deny(flags.status());
  }
  if (const absl::Status same = CheckVolumeContext(volume, request.volume_context()); !same.ok())
    return deny(same);
  if (!request.parameters().empty()) {
    const absl::StatusOr<Parameters> parameters = ParseParameters(request.parameters());
    if (!parameters.ok()) return deny(parameters.status());
    const bool other_kind = parameters->kind.has_value() && *parameters->kind != volume.kind;
    const bool other_fs = !parameters->fs_type.empty() && parameters->fs_type != volume.fs_type;
    if (other_kind || other_fs || (parameters->preallocate && !volume.preallocate) ||
        (parameters->direct_io && !volume.direct_io)) {
      return deny(absl::InvalidArgumentError("parameters: the volume was created with others"));
    }
  }
  if (!request.mutable_parameters().empty()) {
    return deny(absl::InvalidArgumentError("mutable_parameters: this plugin has none"));
  }
  auto* confirmed = response->mutable_confirmed();
  *confirmed->mutable_volume_capabilities() = request.volume_capabilities();
  *confirmed->mutable_volume_context() = request.volume_context();
  *confirmed->mutable_parameters() = request.parameters();
  return absl::OkStatus();
}

grpc::Status ControllerService::ListVolumes(grpc::ServerContext*,
                                            const ::csi::v1::ListVolumesRequest* request,
                                            ::csi::v1::ListVolumesResponse* response) {
  return Answer(context_, CallKind::kReads, "ListVolumes", "", [&] { return List(*request, response); });
}

absl::Status ControllerService::List(const ::csi::v1::ListVolumesRequest& request,
                                     ::csi::v1::ListVolumesResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  int64_t last = 0;
  BERTH_ASSIGN_OR_RETURN(last, context_.store.LastVolumeSequence());
  int64_t after = 0;
  BERTH_ASSIGN_OR_RETURN(after, ParsePageToken(request.starting_token(), last));
  // One more than asked for shows whether there is a next page.
  const int64_t limit = request.max_entries() == 0 ? 0 : int64_t{request.max_entries()} + 1;
  std::vector<VolumeRecord> volumes;
  BERTH_ASSIGN_OR_RETURN(volumes, context_.store.ListVolumes(after, limit));
  if (limit != 0 && static_cast<int64_t>(volumes.size()) == limit) {
    volumes.pop_back();
    response->set_next_token(MakePageToken(volumes.back().sequence));
  }
  for (const VolumeRecord& volume : volumes) {
    auto* entry = response->add_entries();
    Describe(volume, entry->mutable_volume());
    BERTH_RETURN_IF_ERROR(DescribeStatus(volume, entry->mutable_status()));
  }
  return absl::OkStatus();
}

grpc::Status ControllerService::ControllerGetVolume(grpc::ServerContext*,
                                                    const ::csi::v1::ControllerGetVolumeRequest* request,
                                                    ::csi::v1::ControllerGetVolumeResponse* response) {
  return Answer(context_, CallKind::kReads, "ControllerGetVolume", request->volume_id(),
                [&]() -> absl::Status {
                  BERTH_RETURN_IF_ERROR(CheckRequest(*request));
                  VolumeRecord volume;
                  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request->volume_id()));
                  Describe(volume, response->mutable_volume());
                  return DescribeStatus(volume, response->mutable_status());
                });
}

grpc::Status ControllerService::GetCapacity(grpc::ServerContext*,
                                            const ::csi::v1::GetCapacityRequest* request,
                                            ::csi::v1::GetCapacityResponse* response) {
  return Answer(context_, CallKind::kReads, "GetCapacity", "", [&] { return Capacity(*request, response); });
}

absl::Status ControllerService::Capacity(const ::csi::v1::GetCapacityRequest& request,
                                         ::csi::v1::GetCapacityResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  Parameters parameters;
  BERTH_ASSIGN_OR_RETURN(parameters, ParseParameters(request.parameters()));
  ::google::protobuf::RepeatedPtrField<::csi::v1::Topology> where;
  if (request.has_accessible_topology()) *where.Add() = request.accessible_topology();
  // What cannot be made here, or not there, has no capacity.
  const absl::StatusOr<VolumePlan> plan =
      PlanVolume(request.volume_capabilities(), parameters, context_.machine, std::nullopt);
  if (!TopologyMatches(context_.options.topology, where) || !plan.ok()) return absl::OkStatus();
  int64_t available = 0;
  BERTH_ASSIGN_OR_RETURN(available, AvailableBytes());
  const int64_t largest = available / kSizeGranule * kSizeGranule;
  response->set_available_capacity(available);
  response->mutable_maximum_volume_size()->set_value(largest);
  response->mutable_minimum_volume_size()->set_value(MinimumSize(plan->kind, plan->fs_type));
  return absl::OkStatus();
}

grpc::Status ControllerService::ControllerGetCapabilities(
    grpc::ServerContext*, const ::csi::v1::ControllerGetCapabilitiesRequest*,
    ::csi::v1::ControllerGetCapabilitiesResponse* response) {
  using Rpc = ControllerServiceCapability::RPC;
  return Answer(context_, CallKind::kReads, "ControllerGetCapabilities", "", [&] {
    // GET_SNAPSHOT is left out, though the RPC is served: it is alpha and new in CSI 1.12, and callers built
    // for earlier versions take a capability they do not know for an error.
    for (const auto type :
         {Rpc::CREATE_DELETE_VOLUME, Rpc::LIST_VOLUMES, Rpc::GET_CAPACITY, Rpc::CREATE_DELETE_SNAPSHOT,
          Rpc::LIST_SNAPSHOTS, Rpc::CLONE_VOLUME, Rpc::EXPAND_VOLUME, Rpc::VOLUME_CONDITION, Rpc::GET_VOLUME,
          Rpc::SINGLE_NODE_MULTI_WRITER}) {
      response->add_capabilities()->mutable_rpc()->set_type(type);
    }
    if (context_.options.attach) {
      for (const auto type :
           {Rpc::PUBLISH_UNPUBLISH_VOLUME, Rpc::PUBLISH_READONLY, Rpc::LIST_VOLUMES_PUBLISHED_NODES}) {
        response->add_capabilities()->mutable_rpc()->set_type(type);
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace berth::hostpath
