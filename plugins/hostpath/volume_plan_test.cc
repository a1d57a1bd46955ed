#include "plugins/hostpath/volume_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace berth::hostpath {
namespace {

using ::csi::v1::CapacityRange;
using ::csi::v1::VolumeCapability;

constexpr Machine kWithLoops{.loop_devices = true, .default_kind = Kind::kImage};
constexpr Machine kWithoutLoops{.loop_devices = false, .default_kind = Kind::kDirectory};

VolumeCapability Mount(const std::string& fs_type = "") {
  VolumeCapability capability;
  capability.mutable_mount()->set_fs_type(fs_type);
  return capability;
}

VolumeCapability Block() {
  VolumeCapability capability;
  capability.mutable_block();
  return capability;
}

Capabilities All(std::initializer_list<VolumeCapability> list) {
  Capabilities capabilities;
  for (const auto& capability : list) *capabilities.Add() = capability;
  return capabilities;
}

Parameters With(std::initializer_list<std::pair<std::string, std::string>> list) {
  StringMap map;
  for (const auto& [key, value] : list) map[key] = value;
  return ParseParameters(map).value();
}

CapacityRange Range(int64_t required, int64_t limit = 0) {
  CapacityRange range;
  range.set_required_bytes(required);
  range.set_limit_bytes(limit);
  return range;
}

TEST(ParametersTest, AnUnknownKeyIsToldTheRightOnes) {
  StringMap map;
  map["knid"] = "image";
  const auto parsed = ParseParameters(map);
  EXPECT_TRUE(absl::IsInvalidArgument(parsed.status()));
  EXPECT_NE(parsed.status().ToString().find("kind ("), std::string::npos);
}

TEST(ParametersTest, BadValuesAreRefused) {
  for (const auto& [key, value] :
       {std::pair{"kind", "tape"}, {"fsType", "ntfs"}, {"preallocate", "yes"}, {"directIO", ""}}) {
    StringMap map;
    map[key] = value;
    EXPECT_TRUE(absl::IsInvalidArgument(ParseParameters(map).status())) << key;
  }
}

TEST(ParametersTest, EqualOnesHaveOneCanonicalForm) {
  EXPECT_EQ(
      With({{"fsType", "xfs"}, {"kind", "image"}}).canonical,
      With({{"kind", "image"}, {"fs_type", "xfs"}, {"csi.storage.k8s.io/pvc/name", "claim"}}).canonical);
  EXPECT_NE(With({{"kind", "image"}}).canonical, With({}).canonical);
}

TEST(PlanVolumeTest, InfersTheKind) {
  const struct {
    Capabilities capabilities;
    Parameters parameters;
    Machine machine;
    Kind kind;
    std::string fs_type;
  } cases[] = {
      {All({Mount()}), With({}), kWithLoops, Kind::kImage, "ext4"},
      {All({Mount()}), With({}), kWithoutLoops, Kind::kDirectory, ""},
      {All({Block()}), With({}), kWithLoops, Kind::kBlock, ""},
      {All({Block(), Mount()}), With({}), kWithLoops, Kind::kBlock, "ext4"},
      {All({Mount("xfs")}), With({}), kWithLoops, Kind::kImage, "xfs"},
      {All({Mount()}), With({{"fsType", "xfs"}}), kWithLoops, Kind::kImage, "xfs"},
      {All({Mount()}), With({{"kind", "directory"}}), kWithLoops, Kind::kDirectory, ""},
      {All({Mount("xfs")}), With({{"kind", "block"}}), kWithLoops, Kind::kBlock, "xfs"},
      {All({}), With({}), kWithLoops, Kind::kImage, "ext4"},
  };
  for (const auto& one : cases) {
    const auto plan = PlanVolume(one.capabilities, one.parameters, one.machine, std::nullopt);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->kind, one.kind);
    EXPECT_EQ(plan->fs_type, one.fs_type);
  }
}

TEST(PlanVolumeTest, RefusesContradictions) {
  const struct {
    Capabilities capabilities;
    Parameters parameters;
    Machine machine;
  } cases[] = {
      {All({Block()}), With({}), kWithoutLoops},
      {All({Mount("ext4")}), With({}), kWithoutLoops},
      {All({Mount()}), With({{"kind", "image"}}), kWithoutLoops},
      {All({Block()}), With({{"kind", "image"}}), kWithLoops},
      {All({Block()}), With({{"kind", "directory"}}), kWithLoops},
      {All({Mount("ext4")}), With({{"kind", "directory"}}), kWithLoops},
      {All({Mount("ext4")}), With({{"fsType", "xfs"}}), kWithLoops},
      {All({Mount("ext4"), Mount("xfs")}), With({}), kWithLoops},
      {All({Mount("btrfs")}), With({}), kWithLoops},
      {All({Mount()}), With({{"kind", "directory"}, {"preallocate", "true"}}), kWithLoops},
  };
  int number = 0;
  for (const auto& one : cases) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        PlanVolume(one.capabilities, one.parameters, one.machine, std::nullopt).status()))
        << number;
    ++number;
  }
}

TEST(PlanVolumeTest, ACopyIsOfTheKindOfItsSource) {
  const Source xfs{.kind = Kind::kImage, .fs_type = "xfs", .size = kGiB};
  const auto plan = PlanVolume(All({Mount()}), With({}), kWithLoops, xfs);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kind, Kind::kImage);
  EXPECT_EQ(plan->fs_type, "xfs");
  EXPECT_FALSE(PlanVolume(All({Mount("ext4")}), With({}), kWithLoops, xfs).ok());
  EXPECT_FALSE(PlanVolume(All({Block()}), With({}), kWithLoops, xfs).ok());
  EXPECT_FALSE(PlanVolume(All({Mount()}), With({{"kind", "directory"}}), kWithLoops, xfs).ok());
}

TEST(ChooseCapacityTest, HonoursTheRange) {
  const VolumePlan ext4{.kind = Kind::kImage, .fs_type = "ext4"};
  EXPECT_EQ(ChooseCapacity(Range(0), ext4, std::nullopt).value(), kGiB);
  EXPECT_EQ(ChooseCapacity(Range(0, 100 * kMiB), ext4, std::nullopt).value(), 100 * kMiB);
  EXPECT_EQ(ChooseCapacity(Range(64 * kMiB, 64 * kMiB), ext4, std::nullopt).value(), 64 * kMiB);
  EXPECT_EQ(ChooseCapacity(Range(64 * kMiB + 1), ext4, std::nullopt).value(), 64 * kMiB + kSizeGranule);
  EXPECT_EQ(ChooseCapacity(Range(1), ext4, std::nullopt).value(), MinimumSize(Kind::kImage, "ext4"));
  EXPECT_TRUE(absl::IsOutOfRange(ChooseCapacity(Range(1, kMiB), ext4, std::nullopt).status()));
  EXPECT_TRUE(
      absl::IsOutOfRange(ChooseCapacity(Range(64 * kMiB + 1, 64 * kMiB + 2), ext4, std::nullopt).status()));
  const VolumePlan xfs{.kind = Kind::kImage, .fs_type = "xfs"};
  EXPECT_EQ(ChooseCapacity(Range(1), xfs, std::nullopt).value(), 300 * kMiB);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_GE(ChooseCapacity(Range(most), ext4, std::nullopt).value_or(0), most - kSizeGranule);
}

TEST(ChooseCapacityTest, ACopyIsAtLeastAsLargeAsItsSource) {
  const VolumePlan plan{.kind = Kind::kImage, .fs_type = "ext4"};
  const Source source{.kind = Kind::kImage, .fs_type = "ext4", .size = 64 * kMiB};
  EXPECT_EQ(ChooseCapacity(Range(0), plan, source).value(), 64 * kMiB);
  EXPECT_EQ(ChooseCapacity(Range(65 * kMiB), plan, source).value(), 65 * kMiB);
  EXPECT_TRUE(absl::IsOutOfRange(ChooseCapacity(Range(63 * kMiB), plan, source).status()));
  EXPECT_TRUE(absl::IsOutOfRange(ChooseCapacity(Range(0, 63 * kMiB), plan, source).status()));
}

TEST(ChooseCapacityTest, ADirectoryRemembersWhatWasAsked) {
  const VolumePlan plan{.kind = Kind::kDirectory};
  EXPECT_EQ(ChooseCapacity(Range(0), plan, std::nullopt).value(), 0);
  EXPECT_EQ(ChooseCapacity(Range(12345), plan, std::nullopt).value(), 12345);
}

TEST(SupportsCapabilityTest, OverEveryKind) {
  EXPECT_TRUE(SupportsCapability(Kind::kDirectory, "", Mount()).ok());
  EXPECT_FALSE(SupportsCapability(Kind::kDirectory, "", Mount("ext4")).ok());
  EXPECT_FALSE(SupportsCapability(Kind::kDirectory, "", Block()).ok());
  EXPECT_TRUE(SupportsCapability(Kind::kImage, "ext4", Mount("ext4")).ok());
  EXPECT_FALSE(SupportsCapability(Kind::kImage, "ext4", Mount("xfs")).ok());
  EXPECT_FALSE(SupportsCapability(Kind::kImage, "ext4", Block()).ok());
  EXPECT_TRUE(SupportsCapability(Kind::kBlock, "", Block()).ok());
  EXPECT_FALSE(SupportsCapability(Kind::kBlock, "", Mount()).ok());
  EXPECT_TRUE(SupportsCapability(Kind::kBlock, "ext4", Mount()).ok());
}

TEST(TopologyMatchesTest, OneRequisiteThatHoldsIsEnough) {
  const std::map<std::string, std::string> own = {{"zone", "z1"}, {"rack", "r1"}};
  ::google::protobuf::RepeatedPtrField<::csi::v1::Topology> requisite;
  EXPECT_TRUE(TopologyMatches(own, requisite));
  (*requisite.Add()->mutable_segments())["zone"] = "z2";
  EXPECT_FALSE(TopologyMatches(own, requisite));
  (*requisite.Add()->mutable_segments())["zone"] = "z1";
  EXPECT_TRUE(TopologyMatches(own, requisite));
  (*requisite.Mutable(1)->mutable_segments())["rack"] = "r2";
  EXPECT_FALSE(TopologyMatches(own, requisite));
}

}  // namespace
}  // namespace berth::hostpath
