#include "csi/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "csi/csi.pb.h"

namespace berth {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(NamesTest, GivesTheNamesThatCsiGives) {
  EXPECT_EQ(PluginServiceName(::csi::v1::PluginCapability::Service::CONTROLLER_SERVICE),
            "CONTROLLER_SERVICE");
  EXPECT_EQ(VolumeExpansionName(::csi::v1::PluginCapability::VolumeExpansion::OFFLINE), "OFFLINE");
  EXPECT_EQ(ControllerCapabilityName(::csi::v1::ControllerServiceCapability::RPC::GET_SNAPSHOT),
            "GET_SNAPSHOT");
  EXPECT_EQ(GroupControllerCapabilityName(1), "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT");
  EXPECT_EQ(NodeCapabilityName(::csi::v1::NodeServiceCapability::RPC::STAGE_UNSTAGE_VOLUME),
            "STAGE_UNSTAGE_VOLUME");
}

TEST(NamesTest, ShowsANumberThatItDoesNotKnow) {
  EXPECT_EQ(NodeCapabilityName(4711), "4711");
  EXPECT_EQ(PluginServiceName(std::numeric_limits<int>::min()), "-2147483648");
}

TEST(NamesTest, SortsByName) {
  EXPECT_THAT(Names({1, 2, 3, 99}, NodeCapabilityName),
              ElementsAre("99", "EXPAND_VOLUME", "GET_VOLUME_STATS", "STAGE_UNSTAGE_VOLUME"));
  EXPECT_THAT(Names({}, NodeCapabilityName), IsEmpty());
}

}  // namespace
}  // namespace berth
