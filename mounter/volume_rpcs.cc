#include "mounter/volume_rpcs.h"

#include <algorithm>

namespace berth {
namespace {

template <class ProtoMap>
void Fill(const std::map<std::string, std::string>& from, ProtoMap* to) {
  for (const auto& [key, value] : from) (*to)[key] = value;
}

}  // namespace

::csi::v1::VolumeCapability CapabilityOf(const VolumeRecord& record) {
  ::csi::v1::VolumeCapability capability;
  capability.mutable_access_mode()->set_mode(record.sent_mode);
  if (record.use.access_type == AccessType::kBlock) {
    capability.mutable_block();
    return capability;
  }
  auto& mount = *capability.mutable_mount();
  mount.set_fs_type(record.use.fs_type);
  for (const std::string& flag : record.use.mount_flags) mount.add_mount_flags(flag);
  mount.set_volume_mount_group(record.use.volume_mount_group);
  return capability;
}

::csi::v1::NodeStageVolumeRequest StageRequest(const VolumeRecord& record, const VolumePaths& paths,
                                               const std::map<std::string, std::string>& secrets) {
  ::csi::v1::NodeStageVolumeRequest request;
  request.set_volume_id(record.volume_id);
  if (record.publish_context) Fill(*record.publish_context, request.mutable_publish_context());
  request.set_staging_target_path(paths.StagingPath(record));
  *request.mutable_volume_capability() = CapabilityOf(record);
  Fill(secrets, request.mutable_secrets());
  Fill(record.volume_context, request.mutable_volume_context());
  return request;
}

::csi::v1::NodePublishVolumeRequest NodePublishRequest(const VolumeRecord& record,
                                                       const PublicationRecord& publication,
                                                       const VolumePaths& paths,
                                                       const std::map<std::string, std::string>& secrets) {
  ::csi::v1::NodePublishVolumeRequest request;
  request.set_volume_id(record.volume_id);
  if (record.publish_context) Fill(*record.publish_context, request.mutable_publish_context());
  // An ephemeral volume is not staged, whatever the plugin does with others.
  if (record.stages && !publication.ephemeral) request.set_staging_target_path(paths.StagingPath(record));
  request.set_target_path(paths.TargetPath(record, publication));
  *request.mutable_volume_capability() = CapabilityOf(record);
  if (publication.mount_flags) {
    auto& mount = *request.mutable_volume_capability()->mutable_mount();
    *mount.mutable_mount_flags() = {publication.mount_flags->begin(), publication.mount_flags->end()};
  }
  request.set_readonly(publication.readonly);
  Fill(secrets, request.mutable_secrets());
  Fill(record.volume_context, request.mutable_volume_context());
  if (publication.ephemeral) (*request.mutable_volume_context())[std::string(kEphemeralKey)] = "true";
  return request;
}

void AddPodInfo(const PublicationRecord& publication, ::csi::v1::NodePublishVolumeRequest* request) {
  constexpr std::string_view kPrefix = "csi.storage.k8s.io/";
  auto& context = *request->mutable_volume_context();
  const auto set = [&](std::string_view name, const std::string& value) {
    context[std::string(kPrefix).append(name)] = value;
  };
  const std::string& consumer = publication.key.consumer;
  const size_t slash = consumer.find('/');
  if (publication.origin == Origin::kScheduler && slash != std::string::npos) {
    set("pod.namespace", consumer.substr(0, slash));
    set("pod.name", consumer.substr(slash + 1));
  } else {
    set("pod.name", consumer);
  }
  for (const char* name : {"pod.name", "pod.namespace", "pod.uid", "serviceAccount.name"}) {
    const auto label = publication.consumer_labels.find(name);
    if (label != publication.consumer_labels.end()) set(name, label->second);
  }
  set("ephemeral", publication.ephemeral ? "true" : "false");
}

std::vector<std::string> TokensIn(const PluginTokens& tokens) {
  std::vector<std::string> values = tokens.in_maps;
  for (const auto* place : {&tokens.secrets, &tokens.volume_context}) {
    for (const auto& [name, token] : *place) values.push_back(token);
  }
  return values;
}

::csi::v1::NodeUnpublishVolumeRequest NodeUnpublishRequest(const VolumeRecord& record,
                                                           const PublicationRecord& publication,
                                                           const VolumePaths& paths) {
  ::csi::v1::NodeUnpublishVolumeRequest request;
  request.set_volume_id(record.volume_id);
  request.set_target_path(paths.TargetPath(record, publication));
  return request;
}

::csi::v1::NodeUnstageVolumeRequest UnstageRequest(const VolumeRecord& record, const VolumePaths& paths) {
  ::csi::v1::NodeUnstageVolumeRequest request;
  request.set_volume_id(record.volume_id);
  request.set_staging_target_path(paths.StagingPath(record));
  return request;
}

::csi::v1::NodeGetVolumeStatsRequest StatsRequest(const VolumeRecord& record,
                                                  const PublicationRecord& publication,
                                                  const VolumePaths& paths) {
  ::csi::v1::NodeGetVolumeStatsRequest request;
  request.set_volume_id(record.volume_id);
  request.set_volume_path(paths.TargetPath(record, publication));
  if (record.stages) request.set_staging_target_path(paths.StagingPath(record));
  return request;
}

::csi::v1::NodeGetVolumeHealthRequest HealthRequest(const VolumeRecord& record,
                                                    const PublicationRecord& publication,
                                                    const VolumePaths& paths) {
  ::csi::v1::NodeGetVolumeHealthRequest request;
  request.set_volume_id(record.volume_id);
  request.set_volume_publish_path(paths.TargetPath(record, publication));
  if (record.stages) request.set_staging_target_path(paths.StagingPath(record));
  return request;
}

std::optional<std::string> ExpansionPath(const VolumeRecord& record, const VolumePaths& paths) {
  if (ReadsOnly(record.use.access_mode)) return std::nullopt;
  for (const PublicationRecord& p : record.publications) {
    if (p.state == PublicationState::kPublished && p.Writes(record.use)) return paths.TargetPath(record, p);
  }
  if (record.stages && record.stage_state == StageState::kStaged) return paths.StagingPath(record);
  return std::nullopt;
}

::csi::v1::NodeExpandVolumeRequest NodeExpandRequest(const VolumeRecord& record, const VolumePaths& paths,
                                                     const ::csi::v1::CapacityRange& range,
                                                     const std::map<std::string, std::string>& secrets) {
  ::csi::v1::NodeExpandVolumeRequest request;
  request.set_volume_id(record.volume_id);
  request.set_volume_path(ExpansionPath(record, paths).value_or(paths.StagingPath(record)));
  *request.mutable_capacity_range() = range;
  if (record.stages) request.set_staging_target_path(paths.StagingPath(record));
  *request.mutable_volume_capability() = CapabilityOf(record);
  Fill(secrets, request.mutable_secrets());
  return request;
}

std::string PathSeenByPlugin(std::string_view path, std::string_view tree, std::string_view volumes_path) {
  const bool inside = path.starts_with(tree) && (path.size() == tree.size() || path[tree.size()] == '/');
  if (volumes_path.empty() || tree.empty() || !inside) return std::string(path);
  return std::string(volumes_path).append(path.substr(tree.size()));
}

}  // namespace berth
