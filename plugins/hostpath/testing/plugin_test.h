// For tests: berth-hostpath under test, with the calls that a CO makes in short form.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "plugins/hostpath/loop_device.h"
#include "plugins/hostpath/testing/plugin_process.h"
#include "plugins/hostpath/volume_kind.h"

namespace berth::hostpath {

using ::csi::v1::VolumeCapability;
using AccessModeEnum = VolumeCapability::AccessMode;

inline VolumeCapability Mounted(AccessModeEnum::Mode mode = AccessModeEnum::SINGLE_NODE_WRITER,
                                const std::string& fs_type = "") {
  VolumeCapability capability;
  capability.mutable_mount()->set_fs_type(fs_type);
  capability.mutable_access_mode()->set_mode(mode);
  return capability;
}

inline VolumeCapability Raw(AccessModeEnum::Mode mode = AccessModeEnum::SINGLE_NODE_WRITER) {
  VolumeCapability capability;
  capability.mutable_block();
  capability.mutable_access_mode()->set_mode(mode);
  return capability;
}

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  ASSERT_TRUE(file) << path;
}

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class PluginTest : public ::testing::Test {
 protected:
  PluginTest() : plugin_(workplace_) {}

  static void SetUpTestSuite() {
    static const bool entered = [] {
      EnterPrivateMountNamespace();
      return true;
    }();
    ASSERT_TRUE(entered);
  }

  // Says so aloud where a test cannot be run for want of loop devices.
  static bool MissingLoopDevices() {
    if (LoopDevicesWork()) return false;
    GTEST_LOG_(WARNING) << "NO LOOP DEVICES HERE: image and block volumes are not tested";
    return true;
  }

  ::csi::v1::CreateVolumeRequest CreateRequest(const std::string& name, const VolumeCapability& capability,
                                               int64_t bytes = 0, const std::string& kind = "") {
    ::csi::v1::CreateVolumeRequest request;
    request.set_name(name);
    *request.add_volume_capabilities() = capability;
    if (bytes != 0) request.mutable_capacity_range()->set_required_bytes(bytes);
    if (!kind.empty()) (*request.mutable_parameters())["kind"] = kind;
    return request;
  }
  grpc::Status Create(const ::csi::v1::CreateVolumeRequest& request, ::csi::v1::Volume* volume = nullptr) {
    ::csi::v1::CreateVolumeResponse response;
    grpc::Status status =
        plugin_.Call(plugin_.controller(), &::csi::v1::Controller::Stub::CreateVolume, request, &response);
    if (volume != nullptr) *volume = response.volume();
    return status;
  }
  std::string MustCreate(const ::csi::v1::CreateVolumeRequest& request) {
    ::csi::v1::Volume volume;
    const grpc::Status status = Create(request, &volume);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return volume.volume_id();
  }
  grpc::Status Delete(const std::string& id) {
    ::csi::v1::DeleteVolumeRequest request;
    request.set_volume_id(id);
    ::csi::v1::DeleteVolumeResponse response;
    return plugin_.Call(plugin_.controller(), &::csi::v1::Controller::Stub::DeleteVolume, request, &response);
  }
  grpc::Status Stage(const std::string& id, const std::string& path, const VolumeCapability& capability) {
    ::csi::v1::NodeStageVolumeRequest request;
    request.set_volume_id(id);
    request.set_staging_target_path(path);
    *request.mutable_volume_capability() = capability;
    ::csi::v1::NodeStageVolumeResponse response;
    return plugin_.Call(plugin_.node(), &::csi::v1::Node::Stub::NodeStageVolume, request, &response);
  }
  grpc::Status Unstage(const std::string& id, const std::string& path) {
    ::csi::v1::NodeUnstageVolumeRequest request;
    request.set_volume_id(id);
    request.set_staging_target_path(path);
    ::csi::v1::NodeUnstageVolumeResponse response;
    return plugin_.Call(plugin_.node(), &::csi::v1::Node::Stub::NodeUnstageVolume, request, &response);
  }
  grpc::Status Publish(const std::string& id, const std::string& staging, const std::string& target,
                       const VolumeCapability& capability, bool read_only = false) {
    ::csi::v1::NodePublishVolumeRequest request;
    request.set_volume_id(id);
    request.set_staging_target_path(staging);
    request.set_target_path(target);
    request.set_readonly(read_only);
    *request.mutable_volume_capability() = capability;
    ::csi::v1::NodePublishVolumeResponse response;
    return plugin_.Call(plugin_.node(), &::csi::v1::Node::Stub::NodePublishVolume, request, &response);
  }
  grpc::Status Unpublish(const std::string& id, const std::string& target) {
    ::csi::v1::NodeUnpublishVolumeRequest request;
    request.set_volume_id(id);
    request.set_target_path(target);
    ::csi::v1::NodeUnpublishVolumeResponse response;
    return plugin_.Call(plugin_.node(), &::csi::v1::Node::Stub::NodeUnpublishVolume, request, &response);
  }
  grpc::Status Stats(const std::string& id, const std::string& path,
                     ::csi::v1::NodeGetVolumeStatsResponse* response) {
    ::csi::v1::NodeGetVolumeStatsRequest request;
    request.set_volume_id(id);
    request.set_volume_path(path);
    return plugin_.Call(plugin_.node(), &::csi::v1::Node::Stub::NodeGetVolumeStats, request, response);
  }
  grpc::Status Health(const std::string& id, const std::string& path, ::csi::v1::VolumeHealth* health) {
    ::csi::v1::NodeGetVolumeHealthRequest request;
    request.set_volume_id(id);
    request.set_volume_publish_path(path);
    ::csi::v1::NodeGetVolumeHealthResponse response;
    grpc::Status status =
        plugin_.Call(plugin_.node(), &::csi::v1::Node::Stub::NodeGetVolumeHealth, request, &response);
    *health = response.volume_health();
    return status;
  }
  grpc::Status Expand(const std::string& id, int64_t bytes,
                      ::csi::v1::ControllerExpandVolumeResponse* response) {
    ::csi::v1::ControllerExpandVolumeRequest request;
    request.set_volume_id(id);
    request.mutable_capacity_range()->set_required_bytes(bytes);
    return plugin_.Call(plugin_.controller(), &::csi::v1::Controller::Stub::ControllerExpandVolume, request,
                        response);
  }
  grpc::Status NodeExpand(const std::string& id, const std::string& path, int64_t bytes,
                          ::csi::v1::NodeExpandVolumeResponse* response) {
    ::csi::v1::NodeExpandVolumeRequest request;
    request.set_volume_id(id);
    request.set_volume_path(path);
    if (bytes != 0) request.mutable_capacity_range()->set_required_bytes(bytes);
    return plugin_.Call(plugin_.node(), &::csi::v1::Node::Stub::NodeExpandVolume, request, response);
  }
  grpc::Status Snap(const std::string& volume, const std::string& name, ::csi::v1::Snapshot* snapshot) {
    ::csi::v1::CreateSnapshotRequest request;
    request.set_source_volume_id(volume);
    request.set_name(name);
    ::csi::v1::CreateSnapshotResponse response;
    grpc::Status status =
        plugin_.Call(plugin_.controller(), &::csi::v1::Controller::Stub::CreateSnapshot, request, &response);
    *snapshot = response.snapshot();
    return status;
  }
  grpc::Status DropSnapshot(const std::string& id) {
    ::csi::v1::DeleteSnapshotRequest request;
    request.set_snapshot_id(id);
    ::csi::v1::DeleteSnapshotResponse response;
    return plugin_.Call(plugin_.controller(), &::csi::v1::Controller::Stub::DeleteSnapshot, request,
                        &response);
  }

  Workplace workplace_;
  PluginProcess plugin_;
};

#define EXPECT_CALL_OK(call)                                                              \
  do {                                                                                    \
    const grpc::Status status_ = (call);                                                  \
    EXPECT_TRUE(status_.ok()) << status_.error_code() << ": " << status_.error_message(); \
  } while (false)
#define EXPECT_CODE(call, code)                                                         \
  do {                                                                                  \
    const grpc::Status status_ = (call);                                                \
    EXPECT_EQ(status_.error_code(), grpc::StatusCode::code) << status_.error_message(); \
  } while (false)

}  // namespace berth::hostpath
