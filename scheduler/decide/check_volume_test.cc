#include "scheduler/decide/check_volume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"

namespace berth::scheduler {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::VolumeSpec Spec() {
  v1::VolumeSpec spec;
  spec.set_namespace_("prod");
  spec.set_id("db");
  spec.set_driver("nfs.example");
  return spec;
}

TEST(CheckVolumeTest, EveryMistakeIsInOneAnswerByField) {
  EXPECT_TRUE(CheckVolumeSpec(Spec()).ok());
  v1::VolumeSpec spec;
  spec.set_namespace_("a/b");
  spec.set_id(std::string(129, 'x'));
  spec.set_external_id(std::string(4097, 'x'));
  spec.add_access_modes(v1::SINGLE_NODE_WRITER);
  spec.add_access_modes(v1::SINGLE_NODE_WRITER);
  spec.add_access_modes(static_cast<v1::AccessMode>(99));
  spec.set_access_type(v1::BLOCK);
  spec.set_fs_type("ext4");
  spec.add_mount_flags("");
  (*spec.mutable_volume_context())["k"] = std::string(70'000, 'x');
  EXPECT_THAT(
      MessageOf(CheckVolumeSpec(spec)),
      AllOf(HasSubstr("volume.namespace: a/b must have no slash"),
            HasSubstr("volume.id: has 129 bytes, at most 128 are taken"),
            HasSubstr("volume.driver: must not be empty"), HasSubstr("volume.external_id: has 4097 bytes"),
            HasSubstr("volume.access_modes: SINGLE_NODE_WRITER is there twice"),
            HasSubstr("volume.access_modes: 99 is not an access mode of CSI"),
            HasSubstr("volume.fs_type: only with a file system"),
            HasSubstr("volume.mount_flags: one of them is empty"),
            HasSubstr("volume.volume_context: has 70001 bytes")));
  for (const char* const name : {"", "a\nb", "a\x7f"}) EXPECT_NE(MistakeInName(name), "") << name;
  EXPECT_EQ(MistakeInName("größe 1%"), "");
}

TEST(CheckVolumeTest, WhatIsNotSaidIsFilledIn) {
  const v1::VolumeSpec spec = Completed(Spec());
  EXPECT_EQ(spec.external_id(), "db");
  EXPECT_THAT(spec.access_modes(), ::testing::ElementsAre(v1::SINGLE_NODE_MULTI_WRITER));
}

TEST(CheckVolumeTest, ADifferenceIsNamedByFieldsAlone) {
  v1::VolumeSpec other = Spec();
  EXPECT_EQ(DifferingFields(Spec(), other), "");
  other.set_driver("s3");
  other.add_mount_flags("password=x");
  (*other.mutable_volume_context())["k"] = "v";
  EXPECT_EQ(DifferingFields(Spec(), other), "driver, mount_flags, volume_context");
}

}  // namespace
}  // namespace berth::scheduler
