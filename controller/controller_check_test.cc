#include "controller/controller_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "controller/testing/controller_requests.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using ControllerRpc = csi::ControllerServiceCapability::RPC;
using Service = csi::PluginCapability::Service;

std::string Mistake(const v1::ControllerCall& call) {
  const absl::Status status = CheckControllerCall(call);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ControllerCheckTest, TakesEveryKindOfCall) {
  for (const auto& [call, capability] : EveryControllerCall()) {
    EXPECT_EQ(CheckControllerCall(call), absl::OkStatus()) << call.ShortDebugString();
  }
}

TEST(ControllerCheckTest, NamesEveryFieldThatIsMissing) {
  const std::pair<std::function<void(v1::ControllerCall&)>, std::vector<std::string>> kinds[] = {
      {[](auto& call) { call.mutable_attach(); },
       {"attach.volume_id", "attach.node_id", "attach.volume_capability"}},
      {[](auto& call) { call.mutable_detach(); }, {"detach.volume_id", "detach.node_id"}},
      {[](auto& call) { call.mutable_validate(); }, {"validate.volume_id", "validate.volume_capabilities"}},
      {[](auto& call) { call.mutable_create(); }, {"create.name", "create.volume_capabilities"}},
      {[](auto& call) { call.mutable_delete_(); }, {"delete.volume_id"}},
      {[](auto& call) { call.mutable_get(); }, {"get.volume_id"}},
      {[](auto& call) { call.mutable_expand(); }, {"expand.volume_id", "expand.capacity_range"}},
      {[](auto& call) { call.mutable_modify(); }, {"modify.volume_id", "modify.mutable_parameters"}},
      {[](auto& call) { call.mutable_create_snapshot(); },
       {"create_snapshot.source_volume_id", "create_snapshot.name"}},
      {[](auto& call) { call.mutable_delete_snapshot(); }, {"delete_snapshot.snapshot_id"}},
      {[](auto& call) { call.mutable_get_snapshot(); }, {"get_snapshot.snapshot_id"}},
      {[](auto& call) { call.mutable_create_group_snapshot(); },
       {"create_group_snapshot.name", "create_group_snapshot.source_volume_ids"}},
      {[](auto& call) { call.mutable_delete_group_snapshot(); },
       {"delete_group_snapshot.group_snapshot_id", "delete_group_snapshot.snapshot_ids"}},
      {[](auto& call) { call.mutable_get_group_snapshot(); },
       {"get_group_snapshot.group_snapshot_id", "get_group_snapshot.snapshot_ids"}},
      {[](auto&) {}, {"request: none"}},
  };
  for (const auto& [make, fields] : kinds) {
    v1::ControllerCall call;
    make(call);
    const std::string mistake = Mistake(call);
    EXPECT_THAT(mistake, HasSubstr("plugin_id: must not be empty"));
    for (const std::string& field : fields) EXPECT_THAT(mistake, HasSubstr(field));
  }
}

TEST(ControllerCheckTest, AnEmptyNodeMeansEveryNodeOnlyWhereThatIsSaid) {
  v1::ControllerCall call = ControllerCallFor("p");
  call.mutable_detach()->set_volume_id("v");
  EXPECT_THAT(Mistake(call), HasSubstr("set all_nodes if that is meant"));
  call.set_all_nodes(true);
  EXPECT_TRUE(CheckControllerCall(call).ok());
  call.mutable_detach()->set_node_id("n");
  EXPECT_THAT(Mistake(call), HasSubstr("all_nodes: not with a node_id"));
  call.mutable_delete_()->set_volume_id("v");
  EXPECT_THAT(Mistake(call), HasSubstr("all_nodes: only with detach"));
}

TEST(ControllerCheckTest, CapabilitiesMustBeWellFormed) {
  v1::ControllerCall call = ControllerCallFor("p");
  csi::CreateVolumeRequest& create = *call.mutable_create();
  create.set_name("n");
  create.add_volume_capabilities()->mutable_block();
  create.add_volume_capabilities()->mutable_access_mode()->set_mode(
      csi::VolumeCapability::AccessMode::SINGLE_NODE_WRITER);
  create.add_volume_capabilities()->mutable_access_mode()->set_mode(
      static_cast<csi::VolumeCapability::AccessMode::Mode>(99));
  create.add_volume_capabilities()->mutable_mount()->add_mount_flags("password=hunter22,user=");
  create.mutable_volume_capabilities(3)->mutable_mount()->add_mount_flags("");
  EXPECT_THAT(Mistake(call),
              AllOf(HasSubstr("create.volume_capabilities[0].access_mode: must be set"),
                    HasSubstr("create.volume_capabilities[1]: block or mount must be set"),
                    HasSubstr("create.volume_capabilities[2].access_mode: 99 is no access mode"),
                    HasSubstr("create.volume_capabilities[3].mount.mount_flags: a flag must not be empty"),
                    Not(HasSubstr("hunter22"))));
}

TEST(ControllerCheckTest, LimitsHold) {
  v1::ControllerCall call = ControllerCallFor("p");
  csi::ControllerExpandVolumeRequest& expand = *call.mutable_expand();
  expand.set_volume_id(std::string(4097, 'v'));
  expand.mutable_capacity_range()->set_required_bytes(10);
  expand.mutable_capacity_range()->set_limit_bytes(9);
  (*expand.mutable_secrets())["k"] = std::string(70'000, 's');
  EXPECT_THAT(Mistake(call),
              AllOf(HasSubstr("expand.volume_id: 4097 bytes long"), HasSubstr("limit_bytes must not be less"),
                    HasSubstr("expand.secrets: 70001 bytes in all")));
  call.mutable_list()->set_max_entries(-1);
  EXPECT_THAT(Mistake(call), HasSubstr("list.max_entries: must not be negative"));
  call.mutable_create_group_snapshot()->set_name("bell\a");
  call.mutable_create_group_snapshot()->add_source_volume_ids("v");
  call.mutable_create_group_snapshot()->add_source_volume_ids("v");
  EXPECT_THAT(Mistake(call), AllOf(HasSubstr("create_group_snapshot.name: must not hold control characters"),
                                   HasSubstr("twice")));
  call.mutable_create()->set_name("a tab\tis allowed");
  call.mutable_create()->mutable_volume_content_source();
  call.mutable_create()->mutable_accessibility_requirements();
  EXPECT_THAT(Mistake(call),
              AllOf(Not(HasSubstr("create.name")),
                    HasSubstr("create.volume_content_source: snapshot or volume must be set"),
                    HasSubstr("create.accessibility_requirements: requisite or preferred must be set")));
}

TEST(ControllerCheckTest, EachCallNeedsItsCapability) {
  for (const auto& [call, capability] : EveryControllerCall()) {
    PluginFacts nothing;
    nothing.group_capabilities.clear();
    const absl::Status refused = CheckCapabilities(call, "p", nothing);
    const std::string what = call.ShortDebugString();
    if (capability.empty()) {
      EXPECT_TRUE(refused.ok()) << what;
      continue;
    }
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << what;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("(no " + capability + ")")) << what;
    EXPECT_TRUE(CheckCapabilities(call, "p", AbleToAll()).ok()) << what;
  }
}

TEST(ControllerCheckTest, WhatIsAskedForBesideNeedsMore) {
  const auto missing = [](const v1::ControllerCall& call, ControllerRpc::Type lost) {
    PluginFacts facts = AbleToAll();
    facts.controller_capabilities.erase(lost);
    return std::string(CheckCapabilities(call, "p", facts).message());
  };
  v1::ControllerCall call = ControllerCallFor("p");
  call.mutable_attach()->set_readonly(true);
  EXPECT_THAT(missing(call, ControllerRpc::PUBLISH_READONLY), HasSubstr("PUBLISH_READONLY"));
  csi::CreateVolumeRequest& create = *call.mutable_create();
  create.mutable_volume_content_source()->mutable_snapshot();
  EXPECT_THAT(missing(call, ControllerRpc::CREATE_DELETE_SNAPSHOT), HasSubstr("CREATE_DELETE_SNAPSHOT"));
  create.mutable_volume_content_source()->mutable_volume();
  EXPECT_THAT(missing(call, ControllerRpc::CLONE_VOLUME), HasSubstr("CLONE_VOLUME"));
  (*create.mutable_mutable_parameters())["iops"] = "5";
  EXPECT_THAT(missing(call, ControllerRpc::MODIFY_VOLUME), HasSubstr("MODIFY_VOLUME"));
  create.mutable_accessibility_requirements();
  PluginFacts nowhere = AbleToAll();
  nowhere.plugin_services.erase(Service::VOLUME_ACCESSIBILITY_CONSTRAINTS);
  EXPECT_THAT(std::string(CheckCapabilities(call, "p", nowhere).message()),
              HasSubstr("VOLUME_ACCESSIBILITY_CONSTRAINTS"));
}

}  // namespace
}  // namespace berth
