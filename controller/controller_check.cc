#include "controller/controller_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "controller/controller_access.h"
#include "controller/controller_call_kinds.h"
#include "request/request_check.h"
#include "request/request_parts.h"

namespace berth {
namespace {

// CSI's limits where berth.v1.Node has none.
constexpr size_t kNodeIdBytes = 256;
constexpr size_t kTopologyText = 128;
constexpr int kTopologies = 1024;
constexpr int kGroupMembers = 1024;

using Call = v1::ControllerCall;

// Finds what is wrong with the request of one call.
class RequestCheck {
 public:
  explicit RequestCheck(Mistakes& mistakes) : mistakes_(mistakes) {}

  using Capability = ::csi::v1::VolumeCapability;

  void Check(const ::csi::v1::ControllerPublishVolumeRequest& request) {
    Id("volume_id", request.volume_id());
    mistakes_.Required("node_id", request.node_id(), kNodeIdBytes);
    if (!request.has_volume_capability()) mistakes_.Add("volume_capability", "must be set");
    if (request.has_volume_capability()) One("volume_capability", request.volume_capability());
    Map("secrets", request.secrets());
    Map("volume_context", request.volume_context());
  }

  void Check(const ::csi::v1::ControllerUnpublishVolumeRequest& request) {
    Id("volume_id", request.volume_id());
    mistakes_.Length("node_id", request.node_id(), kNodeIdBytes);
    Map("secrets", request.secrets());
  }

  void Check(const ::csi::v1::ValidateVolumeCapabilitiesRequest& request) {
    Id("volume_id", request.volume_id());
    Map("volume_context", request.volume_context());
    AtLeastOne(request.volume_capabilities());
    Map("parameters", request.parameters());
    Map("secrets", request.secrets());
    Map("mutable_parameters", request.mutable_parameters());
  }

  void Check(const ::csi::v1::CreateVolumeRequest& request) {
    Name(request.name());
    if (request.has_capacity_range()) Range(request.capacity_range());
    AtLeastOne(request.volume_capabilities());
    Map("parameters", request.parameters());
    Map("secrets", request.secrets());
    Map("mutable_parameters", request.mutable_parameters());
    if (request.has_volume_content_source()) Source(request.volume_content_source());
    if (!request.has_accessibility_requirements()) return;
    const auto& topology = request.accessibility_requirements();
    if (topology.requisite_size() == 0 && topology.preferred_size() == 0) {
      mistakes_.Add("accessibility_requirements", "requisite or preferred must be set");
    }
    Topologies("accessibility_requirements.requisite", topology.requisite());
    Topologies("accessibility_requirements.preferred", topology.preferred());
  }

  void Check(const ::csi::v1::DeleteVolumeRequest& request) {
    Id("volume_id", request.volume_id());
    Map("secrets", request.secrets());
  }

  void Check(const ::csi::v1::ListVolumesRequest& request) {
    Page(request.max_entries(), request.starting_token());
  }

  void Check(const ::csi::v1::ControllerGetVolumeRequest& request) { Id("volume_id", request.volume_id()); }

  void Check(const ::csi::v1::GetCapacityRequest& request) {
    Capabilities(request.volume_capabilities());
    Map("parameters", request.parameters());
    if (request.has_accessible_topology()) OneTopology("accessible_topology", request.accessible_topology());
  }

  void Check(const ::csi::v1::ControllerExpandVolumeRequest& request) {
    Id("volume_id", request.volume_id());
    if (!request.has_capacity_range()) mistakes_.Add("capacity_range", "must be set");
    if (request.has_capacity_range()) Range(request.capacity_range());
    Map("secrets", request.secrets());
    if (request.has_volume_capability()) One("volume_capability", request.volume_capability());
  }

  void Check(const ::csi::v1::ControllerModifyVolumeRequest& request) {
    Id("volume_id", request.volume_id());
    Map("secrets", request.secrets());
    if (request.mutable_parameters().empty()) mistakes_.Add("mutable_parameters", "must not be empty");
    Map("mutable_parameters", request.mutable_parameters());
  }

  void Check(const ::csi::v1::CreateSnapshotRequest& request) {
    Id("source_volume_id", request.source_volume_id());
    Name(request.name());
    Map("secrets", request.secrets());
    Map("parameters", request.parameters());
  }

  void Check(const ::csi::v1::DeleteSnapshotRequest& request) {
    Id("snapshot_id", request.snapshot_id());
    Map("secrets", request.secrets());
  }

  void Check(const ::csi::v1::ListSnapshotsRequest& request) {
    Page(request.max_entries(), request.starting_token());
    mistakes_.Length("source_volume_id", request.source_volume_id(), RequestLimits::kVolumeId);
    mistakes_.Length("snapshot_id", request.snapshot_id(), RequestLimits::kVolumeId);
    Map("secrets", request.secrets());
  }

  void Check(const ::csi::v1::GetSnapshotRequest& request) {
    Id("snapshot_id", request.snapshot_id());
    Map("secrets", request.secrets());
  }

  void Check(const ::csi::v1::CreateVolumeGroupSnapshotRequest& request) {
    Name(request.name());
    Ids("source_volume_ids", request.source_volume_ids());
    Map("secrets", request.secrets());
    Map("parameters", request.parameters());
  }

  void Check(const ::csi::v1::DeleteVolumeGroupSnapshotRequest& request) { Group(request); }
  void Check(const ::csi::v1::GetVolumeGroupSnapshotRequest& request) { Group(request); }

 private:
  template <class GroupRequest>
  void Group(const GroupRequest& request) {
    Id("group_snapshot_id", request.group_snapshot_id());
    Ids("snapshot_ids", request.snapshot_ids());
    Map("secrets", request.secrets());
  }

  void Id(std::string_view field, const std::string& id) {
    mistakes_.Required(field, id, RequestLimits::kVolumeId);
  }

  template <class List>
  void Ids(std::string_view field, const List& ids) {
    if (ids.empty()) mistakes_.Add(field, "at least one is needed");
    if (ids.size() > kGroupMembers) {
      mistakes_.Add(field, fmt::format("{} of them, at most {} are taken", ids.size(), kGroupMembers));
      return;
    }
    std::set<std::string> seen;
    for (const std::string& id : ids) {
      Id(field, id);
      if (!seen.insert(id).second) mistakes_.Add(field, "one of them stands there twice");
    }
  }

  // CSI allows tabs and line ends in a name, and no other control characters.
  void Name(const std::string& name) {
    mistakes_.Required("name", name, RequestLimits::kVolumeName);
    std::string rest = name;
    std::erase_if(rest, [](char c) { return c == '\t' || c == '\n' || c == '\r'; });
    mistakes_.PlainText("name", rest);
  }

  void Map(std::string_view field, const Mistakes::StringMap& map) { mistakes_.Map(field, map); }

  void Page(int32_t max_entries, const std::string& token) {
    if (max_entries < 0) mistakes_.Add("max_entries", "must not be negative");
    mistakes_.Length("starting_token", token, RequestLimits::kVolumeId);
  }

  void Range(const ::csi::v1::CapacityRange& range) {
    const int64_t required = range.required_bytes();
    const int64_t limit = range.limit_bytes();
    if (required < 0 || limit < 0) mistakes_.Add("capacity_range", "must not be negative");
    if (required == 0 && limit == 0) {
      mistakes_.Add("capacity_range", "required_bytes or limit_bytes must be set");
    }
    if (limit > 0 && required > limit) {
      mistakes_.Add("capacity_range", "limit_bytes must not be less than required_bytes");
    }
  }

  void Source(const ::csi::v1::VolumeContentSource& source) {
    if (source.has_snapshot()) {
      Id("volume_content_source.snapshot.snapshot_id", source.snapshot().snapshot_id());
    } else if (source.has_volume()) {
      Id("volume_content_source.volume.volume_id", source.volume().volume_id());
    } else {
      mistakes_.Add("volume_content_source", "snapshot or volume must be set");
    }
  }

  template <class List>
  void AtLeastOne(const List& capabilities) {
    if (capabilities.empty()) mistakes_.Add("volume_capabilities", "at least one is needed");
    Capabilities(capabilities);
  }

  template <class List>
  void Capabilities(const List& capabilities) {
    if (capabilities.size() > RequestLimits::kCapabilities) {
      mistakes_.Add("volume_capabilities", fmt::format("{}, at most {} are taken", capabilities.size(),
                                                       RequestLimits::kCapabilities));
      return;
    }
    for (int i = 0; i < capabilities.size(); ++i) {
      One(fmt::format("volume_capabilities[{}]", i), capabilities.at(i));
    }
  }

  void One(const std::string& field, const Capability& capability) {
    const auto mode = capability.access_mode().mode();
    if (mode == Capability::AccessMode::UNKNOWN) {
      mistakes_.Add(field + ".access_mode", "must be set");
    } else if (!Capability::AccessMode::Mode_IsValid(mode)) {
      mistakes_.Add(field + ".access_mode", fmt::format("{} is no access mode", int{mode}));
    }
    if (capability.access_type_case() == Capability::ACCESS_TYPE_NOT_SET) {
      mistakes_.Add(field, "block or mount must be set");
    }
    const auto& mount = capability.mount();
    mistakes_.FsType(field + ".mount.fs_type", mount.fs_type());
    mistakes_.MountFlags(field + ".mount.mount_flags", mount.mount_flags());
    mistakes_.Length(field + ".mount.volume_mount_group", mount.volume_mount_group(),
                     RequestLimits::kMountGroup);
    mistakes_.PlainText(field + ".mount.volume_mount_group", mount.volume_mount_group());
  }

  template <class List>
  void Topologies(std::string_view field, const List& topologies) {
    if (topologies.size() > kTopologies) {
      mistakes_.Add(field, fmt::format("{}, at most {} are taken", topologies.size(), kTopologies));
      return;
    }
    for (const auto& topology : topologies) OneTopology(field, topology);
  }

  void OneTopology(std::string_view field, const ::csi::v1::Topology& topology) {
    if (topology.segments().empty()) mistakes_.Add(field, "segments must not be empty");
    mistakes_.Map(field, topology.segments());
    const bool fits = std::ranges::all_of(topology.segments(), [](const auto& segment) {
      return segment.first.size() <= kTopologyText && segment.second.size() <= kTopologyText;
    });
    if (!fits) mistakes_.Add(field, fmt::format("a key or value has more than {} bytes", kTopologyText));
  }

  Mistakes& mistakes_;
};

// What a call needs of its plugin, one after the other; the first missing capability is reported.
class Needs {
 public:
  Needs(std::string_view plugin_id, const PluginFacts& facts) : plugin_id_(plugin_id), facts_(facts) {}

  using Rpc = ::csi::v1::ControllerServiceCapability::RPC;
  using GroupRpc = ::csi::v1::GroupControllerServiceCapability::RPC;
  using Service = ::csi::v1::PluginCapability::Service;

  Needs& Controller(Rpc::Type type, std::string_view what) {
    return Need(facts_.ControllerCan(type), Rpc::Type_Name(type), what);
  }
  Needs& Groups(std::string_view what) {
    constexpr auto kType = GroupRpc::CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT;
    return Need(facts_.GroupControllerCan(kType), GroupRpc::Type_Name(kType), what);
  }
  Needs& Topology() {
    return Need(facts_.HasService(Service::VOLUME_ACCESSIBILITY_CONSTRAINTS),
                "VOLUME_ACCESSIBILITY_CONSTRAINTS", "heed a topology");
  }
  [[nodiscard]] absl::Status ToStatus() const { return status_; }

 private:
  Needs& Need(bool there, std::string_view capability, std::string_view what) {
    if (!there) status_.Update(Lacks(plugin_id_, capability, what));
    return *this;
  }

  std::string_view plugin_id_;
  const PluginFacts& facts_;
  absl::Status status_;
};

}  // namespace

void CheckControllerCall(const v1::ControllerCall& call, Mistakes& mistakes) {
  mistakes.Required("plugin_id", call.plugin_id(), RequestLimits::kPluginName);
  if (call.all_nodes() && !call.has_detach()) mistakes.Add("all_nodes", "only with detach");
  if (call.has_detach()) {
    const bool every = call.detach().node_id().empty();
    if (!every && call.all_nodes()) mistakes.Add("all_nodes", "not with a node_id");
    if (every && !call.all_nodes()) {
      mistakes.Add("detach.node_id", "empty would mean every node: set all_nodes if that is meant");
    }
  }
  const auto* field = Call::descriptor()->FindFieldByNumber(call.request_case());
  if (field == nullptr) {
    mistakes.Add("request", "none, or of a kind that this node does not know");
    return;
  }
  const Mistakes::Within within(mistakes, field->name() + ".");
  VisitControllerCall(
      call, [&mistakes](CsiRpc, auto, const auto& request, auto) { RequestCheck(mistakes).Check(request); });
}

absl::Status CheckControllerCall(const v1::ControllerCall& call) {
  Mistakes mistakes;
  CheckControllerCall(call, mistakes);
  return mistakes.ToStatus();
}

absl::Status CheckCapabilities(const v1::ControllerCall& call, std::string_view plugin_id,
                               const PluginFacts& facts) {
  using Rpc = Needs::Rpc;
  Needs needs(plugin_id, facts);
  switch (call.request_case()) {
    case Call::kAttach:
      needs.Controller(Rpc::PUBLISH_UNPUBLISH_VOLUME, "attach volumes");
      if (call.attach().readonly()) needs.Controller(Rpc::PUBLISH_READONLY, "attach volumes read-only");
      break;
    case Call::kDetach:
      needs.Controller(Rpc::PUBLISH_UNPUBLISH_VOLUME, "detach volumes");
      break;
    case Call::kCreate: {
      const ::csi::v1::CreateVolumeRequest& create = call.create();
      const auto& source = create.volume_content_source();
      needs.Controller(Rpc::CREATE_DELETE_VOLUME, "create volumes");
      if (source.has_snapshot())
        needs.Controller(Rpc::CREATE_DELETE_SNAPSHOT, "fill a volume from a snapshot");
      if (source.has_volume()) needs.Controller(Rpc::CLONE_VOLUME, "fill a volume from another one");
      if (!create.mutable_parameters().empty())
        needs.Controller(Rpc::MODIFY_VOLUME, "take mutable_parameters");
      if (create.has_accessibility_requirements()) needs.Topology();
      break;
    }
    case Call::kDelete:
      needs.Controller(Rpc::CREATE_DELETE_VOLUME, "delete volumes");
      break;
    case Call::kList:
      needs.Controller(Rpc::LIST_VOLUMES, "list volumes");
      break;
    case Call::kGet:
      needs.Controller(Rpc::GET_VOLUME, "report one volume");
      break;
    case Call::kGetCapacity:
      needs.Controller(Rpc::GET_CAPACITY, "report its capacity");
      if (call.get_capacity().has_accessible_topology()) needs.Topology();
      break;
    case Call::kExpand:
      needs.Controller(Rpc::EXPAND_VOLUME, "expand volumes");
      break;
    case Call::kModify:
      needs.Controller(Rpc::MODIFY_VOLUME, "modify volumes");
      break;
    case Call::kCreateSnapshot:
      needs.Controller(Rpc::CREATE_DELETE_SNAPSHOT, "take snapshots");
      break;
    case Call::kDeleteSnapshot:
      needs.Controller(Rpc::CREATE_DELETE_SNAPSHOT, "delete snapshots");
      break;
    case Call::kListSnapshots:
      needs.Controller(Rpc::LIST_SNAPSHOTS, "list snapshots");
      break;
    case Call::kGetSnapshot:
      needs.Controller(Rpc::GET_SNAPSHOT, "report one snapshot");
      break;
    case Call::kCreateGroupSnapshot:
    case Call::kDeleteGroupSnapshot:
    case Call::kGetGroupSnapshot:
      needs.Groups("work with group snapshots");
      break;
    case Call::kValidate:
      if (!call.validate().mutable_parameters().empty()) {
        needs.Controller(Rpc::MODIFY_VOLUME, "take mutable_parameters");
      }
      break;
    case Call::REQUEST_NOT_SET:
      break;
  }
  return needs.ToStatus();
}

}  // namespace berth
