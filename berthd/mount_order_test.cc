#include "berthd/mount_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/testing/temp_dir.h"

namespace berth {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

TEST(MountOrderTest, EveryMountUnitOfTheTreeComesBeforeTheService) {
  const std::vector<DropIn> drop_ins = MountDropIns("/srv/my-state/volumes", "berthd.service");
  EXPECT_THAT(drop_ins, ElementsAre(Field(&DropIn::path, "srv-my\\x2dstate-volumes.mount.d/10-berth.conf"),
                                    Field(&DropIn::path, "srv-my\\x2dstate-volumes-.mount.d/10-berth.conf")));
  for (const DropIn& drop_in : drop_ins) {
    EXPECT_THAT(drop_in.content, HasSubstr("\n[Unit]\nBefore=berthd.service\n"));
  }
}

TEST(MountOrderTest, WhatIsThereAlreadyIsNotWrittenAgain) {
  const TempDir temp;
  const std::vector<DropIn> drop_ins = MountDropIns("/srv/volumes", "berthd.service");
  EXPECT_TRUE(*WriteDropIns(temp.path(), drop_ins));
  for (const DropIn& drop_in : drop_ins) {
    EXPECT_EQ(*ReadFile(temp.path() + "/" + drop_in.path, 4096), drop_in.content);
  }
  EXPECT_FALSE(*WriteDropIns(temp.path(), drop_ins));
  EXPECT_TRUE(*WriteDropIns(temp.path(), MountDropIns("/srv/volumes", "other.service")));
}

}  // namespace
}  // namespace berth
