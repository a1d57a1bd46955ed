// For tests only: a correct controller call of every kind.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "berth/v1/scheduler.pb.h"
#include "csi/plugin_facts.h"

namespace berth {

inline v1::ControllerCall ControllerCallFor(const std::string& plugin_id) {
  v1::ControllerCall call;
  call.set_plugin_id(plugin_id);
  return call;
}

inline ::csi::v1::VolumeCapability SomeCapability() {
  ::csi::v1::VolumeCapability capability;
  capability.mutable_mount()->set_fs_type("ext4");
  capability.mutable_access_mode()->set_mode(::csi::v1::VolumeCapability::AccessMode::SINGLE_NODE_WRITER);
  return capability;
}

// Of a plugin that lacks nothing.
inline PluginFacts AbleToAll() {
  PluginFacts facts{.name = "driver.test"};
  for (int i = 1; i < ::csi::v1::PluginCapability::Service::Type_ARRAYSIZE; ++i)
    facts.plugin_services.insert(i);
  for (int i = 1; i < ::csi::v1::ControllerServiceCapability::RPC::Type_ARRAYSIZE; ++i) {
    facts.controller_capabilities.insert(i);
  }
  facts.group_capabilities = {1};
  return facts;
}

// Each of plugin "p", with the capability that it needs; empty: none.
inline std::vector<std::pair<v1::ControllerCall, std::string>> EveryControllerCall() {
  std::vector<std::pair<v1::ControllerCall, std::string>> calls;
  const auto add = [&calls](const std::string& capability) -> v1::ControllerCall& {
    return calls.emplace_back(ControllerCallFor("p"), capability).first;
  };
  auto& attach = *add("PUBLISH_UNPUBLISH_VOLUME").mutable_attach();
  attach.set_volume_id("v");
  attach.set_node_id("n");
  *attach.mutable_volume_capability() = SomeCapability();
  auto& detach = *add("PUBLISH_UNPUBLISH_VOLUME").mutable_detach();
  detach.set_volume_id("v");
  detach.set_node_id("n");
  auto& validate = *add("").mutable_validate();
  validate.set_volume_id("v");
  *validate.add_volume_capabilities() = SomeCapability();
  auto& create = *add("CREATE_DELETE_VOLUME").mutable_create();
  create.set_name("name");
  create.mutable_capacity_range()->set_required_bytes(1000);
  *create.add_volume_capabilities() = SomeCapability();
  add("CREATE_DELETE_VOLUME").mutable_delete_()->set_volume_id("v");
  add("LIST_VOLUMES").mutable_list();
  add("GET_VOLUME").mutable_get()->set_volume_id("v");
  add("GET_CAPACITY").mutable_get_capacity();
  auto& expand = *add("EXPAND_VOLUME").mutable_expand();
  expand.set_volume_id("v");
  expand.mutable_capacity_range()->set_required_bytes(2000);
  auto& modify = *add("MODIFY_VOLUME").mutable_modify();
  modify.set_volume_id("v");
  (*modify.mutable_mutable_parameters())["iops"] = "5";
  auto& snapshot = *add("CREATE_DELETE_SNAPSHOT").mutable_create_snapshot();
  snapshot.set_source_volume_id("v");
  snapshot.set_name("snap");
  add("CREATE_DELETE_SNAPSHOT").mutable_delete_snapshot()->set_snapshot_id("s");
  add("LIST_SNAPSHOTS").mutable_list_snapshots();
  add("GET_SNAPSHOT").mutable_get_snapshot()->set_snapshot_id("s");
  const std::string groups = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT";
  auto& group = *add(groups).mutable_create_group_snapshot();
  group.set_name("group");
  group.add_source_volume_ids("v");
  group.add_source_volume_ids("w");
  auto& ungroup = *add(groups).mutable_delete_group_snapshot();
  ungroup.set_group_snapshot_id("g");
  ungroup.add_snapshot_ids("s");
  auto& get_group = *add(groups).mutable_get_group_snapshot();
  get_group.set_group_snapshot_id("g");
  get_group.add_snapshot_ids("s");
  return calls;
}

// What an honest plugin might answer.
inline ::csi::v1::Snapshot SomeSnapshot(const std::string& id, const std::string& volume_id) {
  ::csi::v1::Snapshot snapshot;
  snapshot.set_snapshot_id(id);
  snapshot.set_source_volume_id(volume_id);
  snapshot.mutable_creation_time()->set_seconds(1'700'000'000);
  snapshot.set_ready_to_use(true);
  return snapshot;
}

}  // namespace berth
