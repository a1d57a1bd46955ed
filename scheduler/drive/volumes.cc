#include "scheduler/drive/volumes.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <string_view>
#include <vector>

#include "base/status.h"
#include "scheduler/decide/check_volume.h"
#include "scheduler/drive/drivers.h"
#include "scheduler/drive/node_call.h"
#include "scheduler/records/codec.h"
#include "scheduler/records/keys.h"

namespace berth::scheduler {
namespace {

constexpr int kMostInAPage = 1000;

std::string Shown(const std::string& name_space, const std::string& id) {
  return Printable(fmt::format("{}/{}", name_space, id), 256);
}

csi::v1::ValidateVolumeCapabilitiesRequest ValidationOf(const v1::VolumeSpec& spec, bool single_node_modes) {
  csi::v1::ValidateVolumeCapabilitiesRequest request;
  request.set_volume_id(spec.external_id());
  *request.mutable_volume_context() = spec.volume_context();
  for (const int mode : spec.access_modes()) {
    csi::v1::VolumeCapability& capability = *request.add_volume_capabilities();
    const bool is_single_node = mode == v1::SINGLE_NODE_SINGLE_WRITER || mode == v1::SINGLE_NODE_MULTI_WRITER;
    // CSI's own numbers. A plugin without these two modes knows SINGLE_NODE_WRITER in their place.
    capability.mutable_access_mode()->set_mode(static_cast<csi::v1::VolumeCapability_AccessMode_Mode>(
        is_single_node && !single_node_modes ? +v1::SINGLE_NODE_WRITER : mode));
    if (spec.access_type() == v1::BLOCK) {
      capability.mutable_block();
      continue;
    }
    capability.mutable_mount()->set_fs_type(spec.fs_type());
    *capability.mutable_mount()->mutable_mount_flags() = spec.mount_flags();
    capability.mutable_mount()->set_volume_mount_group(spec.volume_mount_group());
  }
  return request;
}

}  // namespace

Awaitable<absl::Status> Volumes::Load() {
  std::vector<KeyRange> ranges{KeyRange::Prefix(std::string(kVolumesPrefix)),
                               KeyRange::Prefix(std::string(kHeadsPrefix))};
  BERTH_CO_ASSIGN_OR_RETURN(const Snapshot snapshot, co_await store_.Read(std::move(ranges)));
  co_return Take(snapshot);
}

absl::Status Volumes::Take(const Snapshot& snapshot) {
  // A head stands under its volume's key, but for the first letter.
  std::map<std::string_view, const StoredRecord*> heads;
  for (const StoredRecord& stored : snapshot.records) {
    const std::string_view key = stored.key;
    if (key.starts_with(kHeadsPrefix)) heads[key.substr(kHeadsPrefix.size())] = &stored;
  }
  for (const StoredRecord& stored : snapshot.records) {
    const std::string_view key = stored.key;
    if (!key.starts_with(kVolumesPrefix)) continue;
    Volume volume{.record_modified = stored.modified};
    BERTH_ASSIGN_OR_RETURN(volume.record, Decode<pb::VolumeRecord>(key, stored.value));
    const auto head = heads.find(key.substr(kVolumesPrefix.size()));
    if (head == heads.end())
      return absl::DataLossError(fmt::format("the volume {} has no head", Printable(key, 256)));
    BERTH_ASSIGN_OR_RETURN(volume.head, Decode<pb::HeadRecord>(head->second->key, head->second->value));
    volume.head_modified = head->second->modified;
    const v1::VolumeSpec& spec = volume.record.spec();
    const Name name(spec.namespace_(), spec.id());
    externals_[{spec.driver(), spec.external_id()}] = name;
    volumes_[name] = std::move(volume);
  }
  return absl::OkStatus();
}

Awaitable<absl::Status> Volumes::Reload(Name name) {
  std::vector<KeyRange> ranges{KeyRange::Key(VolumeKey(name.first, name.second)),
                               KeyRange::Key(HeadKey(name.first, name.second))};
  BERTH_CO_ASSIGN_OR_RETURN(const Snapshot snapshot, co_await store_.Read(std::move(ranges)));
  Forget(name);
  co_return Take(snapshot);
}

void Volumes::Forget(const Name& name) {
  const auto found = volumes_.extract(name);
  if (found.empty()) return;
  const v1::VolumeSpec& spec = found.mapped().record.spec();
  externals_.erase({spec.driver(), spec.external_id()});
}

absl::Status Volumes::CheckNew(const v1::VolumeSpec& spec, bool* same) const {
  const auto known = volumes_.find({spec.namespace_(), spec.id()});
  if (known != volumes_.end()) {
    const std::string fields = DifferingFields(spec, known->second.record.spec());
    *same = fields.empty();
    if (*same) return absl::OkStatus();
    return absl::AlreadyExistsError(
        fmt::format("volume {} is registered with another {}", Shown(spec.namespace_(), spec.id()), fields));
  }
  const auto external = externals_.find({spec.driver(), spec.external_id()});
  if (external != externals_.end()) {
    return absl::AlreadyExistsError(
        fmt::format("volume {} of the driver {} is registered as {}", Printable(spec.external_id(), 256),
                    Printable(spec.driver(), 128), Shown(external->second.first, external->second.second)));
  }
  if (volumes_.size() >= kMostRegistered)
    return absl::ResourceExhaustedError(fmt::format("{} volumes are registered already", volumes_.size()));
  return absl::OkStatus();
}

Awaitable<absl::StatusOr<bool>> Volumes::Validate(v1::VolumeSpec spec, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(const DriverFacts driver, FindDriver(spec.driver(), links_.List()));
  // Only a controller can confirm a volume.
  if (!driver.controller.has_value()) co_return driver.needs_attach;
  const PluginPlace& place = *driver.controller;
  v1::Operation operation;
  operation.mutable_controller()->set_plugin_id(place.plugin_id);
  *operation.mutable_controller()->mutable_validate() = ValidationOf(spec, place.single_node_modes);
  const auto result = co_await CallNode(links_, place.node, std::move(operation), deadline);
  const std::string what = fmt::format("volume {} of the driver {}", Printable(spec.external_id(), 256),
                                       Printable(spec.driver(), 128));
  if (absl::IsNotFound(result.status()) || absl::IsInvalidArgument(result.status()))
    co_return absl::FailedPreconditionError(fmt::format("{}: {}", what, MessageOf(result.status())));
  // UNAVAILABLE is said of the scheduler alone.
  if (absl::IsUnavailable(result.status()))
    co_return absl::AbortedError(fmt::format("{}: try again: {}", what, MessageOf(result.status())));
  if (!result.ok()) co_return Annotate(result.status(), fmt::format("validate {}", what));
  const auto& answer = result->controller().validate();
  if (!answer.has_confirmed()) {
    co_return absl::FailedPreconditionError(
        fmt::format("{} cannot be used so, says its plugin on node {}: {}", what, Printable(place.node, 192),
                    answer.message().empty() ? "without a reason" : Printable(answer.message(), 512)));
  }
  co_return driver.needs_attach;
}

Awaitable<absl::StatusOr<v1::RegisterVolumeResponse>> Volumes::Register(v1::VolumeSpec spec,
                                                                        TimePoint deadline) {
  BERTH_CO_RETURN_IF_ERROR(CheckVolumeSpec(spec));
  spec = Completed(std::move(spec));
  const Name name(spec.namespace_(), spec.id());
  v1::RegisterVolumeResponse response;
  bool same = false;
  BERTH_CO_RETURN_IF_ERROR(CheckNew(spec, &same));
  if (!same) {
    BERTH_CO_ASSIGN_OR_RETURN(const bool needs_attach, co_await Validate(spec, deadline));
    // Another call may have registered it meanwhile.
    BERTH_CO_RETURN_IF_ERROR(CheckNew(spec, &same));
    if (!same) {
      Volume volume;
      *volume.record.mutable_spec() = spec;
      volume.record.set_needs_attach(needs_attach);
      volume.head.set_number(1);
      pb::ExternalRecord external;
      external.set_namespace_(name.first);
      external.set_id(name.second);
      const std::string key = VolumeKey(name.first, name.second);
      const std::string head_key = HeadKey(name.first, name.second);
      const std::string external_key = ExternalKey(spec.driver(), spec.external_id());
      Transaction transaction{
          .compares = {term_.Holds(), {.key = key}, {.key = head_key}, {.key = external_key}},
          .puts = {{key, Encode(volume.record)},
                   {head_key, Encode(volume.head)},
                   {external_key, Encode(external)}},
          .deletes = {}};
      const auto committed = co_await store_.Commit(std::move(transaction));
      if (!committed.ok()) {
        BERTH_CO_RETURN_IF_ERROR(co_await Reload(name));
        co_return Annotate(committed.status(), "register the volume");
      }
      volume.record_modified = volume.head_modified = *committed;
      externals_[{spec.driver(), spec.external_id()}] = name;
      volumes_[name] = std::move(volume);
      SPDLOG_INFO("volume {} is registered: {} of the driver {}", Shown(name.first, name.second),
                  Printable(spec.external_id(), 256), Printable(spec.driver(), 128));
    }
  }
  *response.mutable_volume() = ToProto(volumes_.at(name));
  co_return response;
}

Awaitable<absl::StatusOr<v1::DeregisterVolumeResponse>> Volumes::Deregister(std::string name_space,
                                                                            std::string id) {
  const Name name(std::move(name_space), std::move(id));
  v1::DeregisterVolumeResponse response;
  const auto found = volumes_.find(name);
  if (found == volumes_.end()) co_return response;
  const Volume& volume = found->second;
  const v1::VolumeSpec& spec = volume.record.spec();
  const std::string key = VolumeKey(name.first, name.second);
  const std::string head_key = HeadKey(name.first, name.second);
  Transaction transaction{.compares = {term_.Holds(),
                                       {.key = key, .modified = volume.record_modified},
                                       {.key = head_key, .modified = volume.head_modified}},
                          .puts = {},
                          .deletes = {key, head_key, ExternalKey(spec.driver(), spec.external_id())}};
  const auto committed = co_await store_.Commit(std::move(transaction));
  if (!committed.ok()) {
    BERTH_CO_RETURN_IF_ERROR(co_await Reload(name));
    co_return Annotate(committed.status(), "deregister the volume");
  }
  Forget(name);
  SPDLOG_INFO("volume {} is registered no more", Shown(name.first, name.second));
  response.set_was_registered(true);
  co_return response;
}

v1::ClusterVolume Volumes::ToProto(const Volume& volume) {
  v1::ClusterVolume proto;
  *proto.mutable_spec() = volume.record.spec();
  proto.set_needs_attach(volume.record.needs_attach());
  return proto;
}

absl::StatusOr<v1::ListClusterVolumesResponse> Volumes::List(
    const v1::ListClusterVolumesRequest& request) const {
  if (request.page_size() < 0 || request.page_size() > kMostInAPage)
    return absl::InvalidArgumentError(
        fmt::format("page_size: {} must be 0 to {}", request.page_size(), kMostInAPage));
  const int limit = request.page_size() == 0 ? kMostInAPage : request.page_size();
  const std::string& token = request.page_token();
  const size_t slash = token.find('/');
  if (!token.empty() && slash == std::string::npos)
    return absl::InvalidArgumentError("page_token: was not given by this scheduler");
  v1::ListClusterVolumesResponse response;
  auto volume = token.empty() ? volumes_.begin()
                              : volumes_.upper_bound({token.substr(0, slash), token.substr(slash + 1)});
  for (; volume != volumes_.end(); ++volume) {
    const v1::VolumeSpec& spec = volume->second.record.spec();
    if (!request.namespace_().empty() && spec.namespace_() != request.namespace_()) continue;
    if (!request.driver().empty() && spec.driver() != request.driver()) continue;
    if (response.volumes_size() >= limit) {
      const v1::VolumeSpec& last = response.volumes(response.volumes_size() - 1).spec();
      response.set_next_page_token(last.namespace_() + "/" + last.id());
      break;
    }
    *response.add_volumes() = ToProto(volume->second);
  }
  return response;
}

absl::StatusOr<v1::GetClusterVolumeResponse> Volumes::Get(const v1::GetClusterVolumeRequest& request) const {
  const auto volume = volumes_.find({request.namespace_(), request.id()});
  if (volume == volumes_.end())
    return absl::NotFoundError(
        fmt::format("no volume {} is registered", Shown(request.namespace_(), request.id())));
  v1::GetClusterVolumeResponse response;
  *response.mutable_volume() = ToProto(volume->second);
  return response;
}

}  // namespace berth::scheduler
