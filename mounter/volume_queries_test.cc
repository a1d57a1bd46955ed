#include <sys/mount.h>

#include <string>
#include <utility>
#include <vector>

#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_types.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class VolumeQueriesTest : public MounterTestBase {};

TEST_F(VolumeQueriesTest, ListsVolumesInOrderByFilterAndCountsAll) {
  PublishRequest declared = Request("v10");
  declared.origin = Origin::kDeclared;
  PublishRequest labelled = Request("v2");
  labelled.label = "data-2";
  PublishRequest others = Request("v1");
  others.consumer = "db";
  for (const PublishRequest& request : {labelled, declared, Request("v1"), others}) {
    ASSERT_TRUE(Publish(request).ok());
  }
  const auto ids = [this](const VolumeFilter& filter) {
    std::vector<std::string> listed;
    for (const VolumeView& view : mounter_->List(filter)) listed.push_back(view.volume_id);
    return listed;
  };
  EXPECT_THAT(ids({}), ElementsAre("v1", "v10", "v2"));
  EXPECT_THAT(ids({.limit = 2}), ElementsAre("v1", "v10"));
  EXPECT_THAT(ids({.after = {"hp", "v1"}}), ElementsAre("v10", "v2"));
  EXPECT_THAT(ids({.after = {"hp", "v1"}, .limit = 1}), ElementsAre("v10"));
  EXPECT_THAT(ids({.after = {"hq", ""}}), IsEmpty());
  EXPECT_THAT(ids({.consumer = "web"}), ElementsAre("v1", "v10", "v2"));
  EXPECT_THAT(ids({.consumer = "db"}), ElementsAre("v1"));
  EXPECT_THAT(ids({.consumer = "unknown"}), IsEmpty());
  EXPECT_THAT(ids({.label_prefix = "data"}), ElementsAre("v2"));
  EXPECT_THAT(ids({.declared = true}), ElementsAre("v10"));
  EXPECT_THAT(ids({.plugin_id = "hp", .declared = true, .after = {"hp", "v10"}}), IsEmpty());
  EXPECT_THAT(ids({.plugin_id = "other"}), IsEmpty());

  const VolumeCounts counts = mounter_->Count();
  EXPECT_EQ(counts.publications, 4);
  EXPECT_EQ(counts.declared, 1);
  EXPECT_EQ(counts.mounted, 4);
  EXPECT_THAT(counts.volumes, ElementsAre(std::pair("hp", 3)));
}

TEST_F(VolumeQueriesTest, MountsOfAConsumerHaveWhatItsRuntimeNeeds) {
  PublishRequest data = Request("v1");
  data.name = "data";
  PublishRequest logs = Request("v1");
  logs.name = "logs";
  logs.readonly = true;
  const auto target = Publish(data);
  ASSERT_TRUE(target.ok() && Publish(logs).ok() && Publish(Request("v2", "db")).ok());
  PublishRequest raw = Request("v3");
  raw.use.access_type = AccessType::kBlock;
  ASSERT_TRUE(Publish(raw).ok());

  const std::vector<ConsumerMount> mounts = mounter_->MountsOf("web");
  ASSERT_EQ(mounts.size(), 3U);
  EXPECT_EQ(mounts[0].name, "data");
  EXPECT_EQ(mounts[0].source_path, *target);
  EXPECT_FALSE(mounts[0].readonly);
  EXPECT_FALSE(mounts[0].fs_type.empty()) << "as the kernel shows it";
  EXPECT_EQ(mounts[0].propagation, "rprivate");
  EXPECT_EQ(mounts[1].name, "logs");
  EXPECT_TRUE(mounts[1].readonly);
  EXPECT_EQ(mounts[2].access_type, AccessType::kBlock);
  EXPECT_EQ(mounts[2].device_major, 7U);
  EXPECT_EQ(mounts[2].device_minor, 200U);

  const auto one = mounter_->MountOf("hp", "v1", "web", "logs");
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->source_path, mounts[1].source_path);
  EXPECT_TRUE(one->readonly);
  EXPECT_FALSE(mounter_->MountOf("hp", "v1", "web", "other").has_value());
  EXPECT_FALSE(mounter_->MountOf("hp", "v4", "web", "logs").has_value());

  const std::vector<VolumeView> volumes = mounter_->List({.consumer = "web"});
  ASSERT_EQ(volumes.size(), 2U) << "a volume that is used twice counts once";
  EXPECT_EQ(volumes[0].volume_id, "v1");
  EXPECT_EQ(volumes[1].volume_id, "v3");
  EXPECT_THAT(mounter_->MountsOf("unknown"), IsEmpty());
  EXPECT_THAT(mounter_->List({.consumer = "unknown"}), IsEmpty());
}

TEST_F(VolumeQueriesTest, AMountThatIsGoneIsNotListedForItsConsumer) {
  const auto target = Publish(Request());
  ASSERT_EQ(mounter_->MountsOf("web").size(), 1U);
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_THAT(mounter_->MountsOf("web"), IsEmpty());
  EXPECT_FALSE(mounter_->MountOf("hp", "v1", "web", "").has_value());
  EXPECT_EQ(mounter_->List({.consumer = "web"}).size(), 1U);
}

}  // namespace
}  // namespace berth
