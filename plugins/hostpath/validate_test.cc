#include "plugins/hostpath/validate.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace berth::hostpath {
namespace {

using ::csi::v1::VolumeCapability;

VolumeCapability Good() {
  VolumeCapability capability;
  capability.mutable_mount();
  capability.mutable_access_mode()->set_mode(VolumeCapability::AccessMode::SINGLE_NODE_WRITER);
  return capability;
}

// `request` is good; after `spoil` it is answered with `code`.
template <class Request>
void ExpectSpoilt(Request request, const std::function<void(Request&)>& spoil,
                  absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  EXPECT_TRUE(CheckRequest(request).ok()) << CheckRequest(request);
  spoil(request);
  EXPECT_EQ(CheckRequest(request).code(), code) << request.ShortDebugString();
}

const std::string kTooLong(129, 'x');

TEST(CheckCreateVolumeTest, NamesWhatIsMissingOrWrong) {
  using Request = ::csi::v1::CreateVolumeRequest;
  Request good;
  good.set_name("pvc with any ünïcode\tand whitespace");
  *good.add_volume_capabilities() = Good();
  const std::function<void(Request&)> spoilers[] = {
      [](Request& r) { r.clear_name(); },
      [](Request& r) { r.set_name(kTooLong); },
      [](Request& r) { r.set_name("bell\a"); },
      [](Request& r) { r.set_name("c1\u0085"); },
      [](Request& r) { r.set_name("del\x7f"); },
      [](Request& r) { r.clear_volume_capabilities(); },
      [](Request& r) { r.mutable_volume_capabilities(0)->clear_mount(); },
      [](Request& r) { r.mutable_volume_capabilities(0)->clear_access_mode(); },
      [](Request& r) {
        r.mutable_volume_capabilities(0)->mutable_access_mode()->set_mode(
            static_cast<VolumeCapability::AccessMode::Mode>(99));
      },
      [](Request& r) { r.mutable_volume_capabilities(0)->mutable_mount()->set_fs_type(kTooLong); },
      [](Request& r) {
        r.mutable_volume_capabilities(0)->mutable_mount()->add_mount_flags(std::string(4097, 'f'));
      },
      [](Request& r) { r.mutable_capacity_range(); },
      [](Request& r) { r.mutable_capacity_range()->set_required_bytes(-1); },
      [](Request& r) {
        r.mutable_capacity_range()->set_required_bytes(2);
        r.mutable_capacity_range()->set_limit_bytes(1);
      },
      [](Request& r) { (*r.mutable_parameters())["key"] = std::string(4096, 'v'); },
      [](Request& r) { (*r.mutable_secrets())["key"] = std::string(4096, 'v'); },
      [](Request& r) { (*r.mutable_mutable_parameters())["key"] = "value"; },
      [](Request& r) { r.mutable_volume_content_source(); },
      [](Request& r) { r.mutable_volume_content_source()->mutable_snapshot(); },
      [](Request& r) { r.mutable_volume_content_source()->mutable_volume(); },
      [](Request& r) { r.mutable_accessibility_requirements(); },
  };
  for (const auto& spoil : spoilers) ExpectSpoilt(good, spoil);
}

TEST(CheckNodePublishTest, WantsEveryPathAndTheCapabilityFirst) {
  using Request = ::csi::v1::NodePublishVolumeRequest;
  Request good;
  good.set_volume_id("id");
  good.set_staging_target_path("/staging");
  good.set_target_path("/target/" + std::string(1000, 'x'));
  *good.mutable_volume_capability() = Good();
  const std::function<void(Request&)> spoilers[] = {
      [](Request& r) { r.clear_volume_id(); },
      [](Request& r) { r.set_volume_id(kTooLong); },
      [](Request& r) { r.clear_target_path(); },
      [](Request& r) { r.set_target_path("relative"); },
      [](Request& r) { r.set_target_path("//"); },
      [](Request& r) { r.set_target_path(std::string("/nul\0", 5)); },
      [](Request& r) { r.set_target_path("/" + std::string(4096, 'x')); },
      [](Request& r) { r.set_target_path("/staging/"); },
      [](Request& r) { r.clear_volume_capability(); },
      [](Request& r) { r.set_staging_target_path("relative"); },
      [](Request& r) {
        r.clear_staging_target_path();
        r.clear_volume_capability();
      },
  };
  for (const auto& spoil : spoilers) ExpectSpoilt(good, spoil);
  ExpectSpoilt<Request>(
      good, [](Request& r) { r.clear_staging_target_path(); }, absl::StatusCode::kFailedPrecondition);
}

TEST(CheckNodeStageTest, WantsIdPathAndCapability) {
  using Request = ::csi::v1::NodeStageVolumeRequest;
  Request good;
  good.set_volume_id("id");
  good.set_staging_target_path("/staging");
  *good.mutable_volume_capability() = Good();
  const std::function<void(Request&)> spoilers[] = {
      [](Request& r) { r.clear_volume_id(); },
      [](Request& r) { r.clear_staging_target_path(); },
      [](Request& r) { r.set_staging_target_path("relative"); },
      [](Request& r) { r.clear_volume_capability(); },
      [](Request& r) { (*r.mutable_publish_context())["key"] = std::string(4096, 'v'); },
  };
  for (const auto& spoil : spoilers) ExpectSpoilt(good, spoil);
}

TEST(CheckControllerExpandTest, WantsIdAndRange) {
  using Request = ::csi::v1::ControllerExpandVolumeRequest;
  Request good;
  good.set_volume_id("id");
  good.mutable_capacity_range()->set_limit_bytes(1);
  ExpectSpoilt<Request>(good, [](Request& r) { r.clear_volume_id(); });
  ExpectSpoilt<Request>(good, [](Request& r) { r.clear_capacity_range(); });
  ExpectSpoilt<Request>(good, [](Request& r) { r.mutable_capacity_range()->Clear(); });
  ExpectSpoilt<Request>(good, [](Request& r) { r.mutable_volume_capability(); });
}

TEST(CheckNodeStatsTest, TakesAnyPathButNone) {
  using Request = ::csi::v1::NodeGetVolumeStatsRequest;
  Request good;
  good.set_volume_id("id");
  good.set_volume_path("relative, so refused");
  ExpectSpoilt<Request>(good, [](Request& r) { r.clear_volume_id(); });
  ExpectSpoilt<Request>(good, [](Request& r) { r.clear_volume_path(); });
}

TEST(CheckControllerPublishTest, ANodeIdMayBeLongerThanOtherStrings) {
  using Request = ::csi::v1::ControllerPublishVolumeRequest;
  Request good;
  good.set_volume_id("id");
  good.set_node_id(std::string(256, 'n'));
  *good.mutable_volume_capability() = Good();
  ExpectSpoilt<Request>(good, [](Request& r) { r.set_node_id(std::string(257, 'n')); });
  ExpectSpoilt<Request>(good, [](Request& r) { r.clear_node_id(); });
  ExpectSpoilt<Request>(good, [](Request& r) { r.clear_volume_capability(); });
}

TEST(CheckListTest, RefusesANegativeNumberOfEntries) {
  ::csi::v1::ListVolumesRequest volumes;
  volumes.set_max_entries(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRequest(volumes)));
  ::csi::v1::ListSnapshotsRequest snapshots;
  snapshots.set_max_entries(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRequest(snapshots)));
}

TEST(CheckSnapshotTest, WantsNameAndIds) {
  using Request = ::csi::v1::CreateSnapshotRequest;
  Request good;
  good.set_name("snap");
  good.set_source_volume_id("id");
  ExpectSpoilt<Request>(good, [](Request& r) { r.clear_name(); });
  ExpectSpoilt<Request>(good, [](Request& r) { r.clear_source_volume_id(); });
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRequest(::csi::v1::DeleteSnapshotRequest())));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRequest(::csi::v1::GetSnapshotRequest())));
}

TEST(CheckSecretsTest, NoMessageShowsASecretOrAMountFlag) {
  ::csi::v1::CreateVolumeRequest request;
  request.set_name("pvc");
  *request.add_volume_capabilities() = Good();
  (*request.mutable_secrets())["key"] = "hunter2" + std::string(4096, 'v');
  EXPECT_EQ(CheckRequest(request).ToString().find("hunter2"), std::string::npos);
  request.clear_secrets();
  request.mutable_volume_capabilities(0)->mutable_mount()->add_mount_flags("hunter2" +
                                                                           std::string(4096, 'f'));
  EXPECT_EQ(CheckRequest(request).ToString().find("hunter2"), std::string::npos);
}

}  // namespace
}  // namespace berth::hostpath
