// Ephemeral inline volumes, through the real program, with real mounts.

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "plugins/hostpath/filesystem.h"
#include "plugins/hostpath/testing/plugin_test.h"

namespace berth::hostpath {
namespace {

class EphemeralTest : public PluginTest {
 protected:
  void SetUp() override { plugin_.Start(); }

  using Context = std::map<std::string, std::string>;
  grpc::Status PublishInline(const std::string& id, const std::string& target, const Context& context = {},
                             const VolumeCapability& capability = Mounted(), bool read_only = false) {
    ::csi::v1::NodePublishVolumeRequest request;
    request.set_volume_id(id);
    request.set_target_path(target);
    request.set_readonly(read_only);
    *request.mutable_volume_capability() = capability;
    auto& given = *request.mutable_volume_context();
    given["csi.storage.k8s.io/ephemeral"] = "true";
    given["csi.storage.k8s.io/pod.name"] = "web-0";
    for (const auto& [key, value] : context) given[key] = value;
    ::csi::v1::NodePublishVolumeResponse response;
    return plugin_.Call(plugin_.node(), &::csi::v1::Node::Stub::NodePublishVolume, request, &response);
  }
  [[nodiscard]] bool NothingIsLeft() const {
    return std::filesystem::is_empty(workplace_.StateDir() + "/volumes") &&
           std::filesystem::is_empty(workplace_.StateDir() + "/trash");
  }
};

TEST_F(EphemeralTest, LivesAsLongAsItsPublication) {
  const std::string target = workplace_.Target("one");
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_CALL_OK(PublishInline("csi-1", target));
  EXPECT_EQ(MountsBeneath(workplace_.path()).size(), 1);
  WriteText(target + "/hello", "mine");
  ::csi::v1::NodeGetVolumeStatsResponse stats;
  EXPECT_CALL_OK(Stats("csi-1", target, &stats));
  EXPECT_CALL_OK(PublishInline("csi-1", target));
  EXPECT_EQ(ReadText(target + "/hello"), "mine");

  EXPECT_CALL_OK(Unpublish("csi-1", target));
  EXPECT_EQ(access(target.c_str(), F_OK), -1);
  EXPECT_TRUE(NothingIsLeft());
  EXPECT_CODE(Unpublish("csi-1", target), NOT_FOUND);
  // The same id is another volume the next time.
  EXPECT_CALL_OK(PublishInline("csi-1", target));
  EXPECT_EQ(access((target + "/hello").c_str(), F_OK), -1);
  EXPECT_CALL_OK(Unpublish("csi-1", target));
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(EphemeralTest, AnImageHasTheSizeOfItsContext) {
  if (MissingLoopDevices()) GTEST_SKIP() << "no loop devices";
  const std::string target = workplace_.Target("one");
  EXPECT_CALL_OK(PublishInline("csi-1", target, {{"kind", "image"}, {"size", "64MiB"}}));
  ::csi::v1::NodeGetVolumeStatsResponse stats;
  EXPECT_CALL_OK(Stats("csi-1", target, &stats));
  ASSERT_GE(stats.usage_size(), 1);
  EXPECT_GT(stats.usage(0).total(), 32 * kMiB);
  EXPECT_LE(stats.usage(0).total(), 64 * kMiB);
  EXPECT_CODE(PublishInline("csi-1", target, {{"kind", "image"}, {"size", "67108865"}}), ALREADY_EXISTS);
  EXPECT_CALL_OK(Unpublish("csi-1", target));
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(EphemeralTest, ALostMountIsMadeAgainAndKeepsWhatItHeld) {
  const std::string target = workplace_.Target("one");
  EXPECT_CALL_OK(PublishInline("csi-1", target));
  WriteText(target + "/hello", "mine");
  ASSERT_EQ(umount2(target.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_CALL_OK(PublishInline("csi-1", target));
  EXPECT_EQ(ReadText(target + "/hello"), "mine");
  EXPECT_CALL_OK(Unpublish("csi-1", target));
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(EphemeralTest, OutlivesThePlugin) {
  const std::string target = workplace_.Target("one");
  EXPECT_CALL_OK(PublishInline("csi-1", target));
  WriteText(target + "/hello", "mine");
  EXPECT_EQ(plugin_.Terminate(), 0);
  plugin_.Start();
  EXPECT_CALL_OK(PublishInline("csi-1", target));
  EXPECT_EQ(ReadText(target + "/hello"), "mine");
  EXPECT_CALL_OK(Unpublish("csi-1", target));
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(EphemeralTest, WhatItCannotBeIsRefusedBeforeAnythingIsMade) {
  const std::string target = workplace_.Target("one");
  EXPECT_CODE(PublishInline("csi-1", target, {{"size", "plenty"}}), INVALID_ARGUMENT);
  EXPECT_CODE(PublishInline("csi-1", target, {{"colour", "red"}}), INVALID_ARGUMENT);
  EXPECT_CODE(PublishInline("csi-1", target, {}, Raw()), INVALID_ARGUMENT);
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(EphemeralTest, HasOneTargetAndAnotherPathDeletesNothing) {
  const std::string target = workplace_.Target("one");
  EXPECT_CALL_OK(PublishInline("csi-1", target));
  WriteText(target + "/hello", "mine");
  EXPECT_CODE(PublishInline("csi-1", workplace_.Target("two")), FAILED_PRECONDITION);
  EXPECT_CALL_OK(Unpublish("csi-1", workplace_.Target("two")));
  EXPECT_EQ(ReadText(target + "/hello"), "mine");
  EXPECT_CALL_OK(Unpublish("csi-1", target));
}

TEST_F(EphemeralTest, AVolumeOfCreateVolumeIsNeverTakenForOne) {
  const std::string id = MustCreate(CreateRequest("pvc-1", Mounted()));
  EXPECT_CODE(PublishInline(id, workplace_.Target("one")), ALREADY_EXISTS);
  EXPECT_CALL_OK(Unpublish(id, workplace_.Target("one")));
  EXPECT_FALSE(NothingIsLeft());
  EXPECT_CALL_OK(Delete(id));
}

}  // namespace
}  // namespace berth::hostpath
