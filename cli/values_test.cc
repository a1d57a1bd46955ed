#include "cli/values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "berth/v1/node.pb.h"
#include "cli/capability_options.h"
#include "cli/failure.h"

namespace berth::cli {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

google::protobuf::Timestamp At(int64_t seconds) {
  google::protobuf::Timestamp time;
  time.set_seconds(seconds);
  return time;
}

TEST(ParseSizeTest, ReadsBytesAndUnitsOf1024) {
  EXPECT_EQ(*ParseSize("0"), 0);
  EXPECT_EQ(*ParseSize("4096"), 4096);
  EXPECT_EQ(*ParseSize("12b"), 12);
  for (const char* text : {"64MiB", "64Mi", "64M", "64m", "64mib", "67108864"}) {
    EXPECT_EQ(*ParseSize(text), 67108864) << text;
  }
  EXPECT_EQ(*ParseSize("1Gi"), int64_t{1} << 30);
  EXPECT_EQ(*ParseSize("2T"), int64_t{2} << 40);
  EXPECT_EQ(*ParseSize("1PiB"), int64_t{1} << 50);
}

TEST(ParseSizeTest, ReadsUnitsOf1000) {
  EXPECT_EQ(*ParseSize("64MB"), 64'000'000);
  EXPECT_EQ(*ParseSize("1kB"), 1000);
}

TEST(ParseSizeTest, RefusesWhatIsNoSizeAndSaysWhatIs) {
  for (const char* text :
       {"", "M", "-1", "1.5G", "64Q", "64MiBs", "64 M", "0x10", "99999999999999999999", "9000000P"}) {
    const auto size = ParseSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(ExitCodeOf(size.status()), ExitCode::kUsage) << text;
    EXPECT_THAT(HintOf(size.status()), HasSubstr("64MiB")) << text;
  }
  EXPECT_THAT(MessageOf(ParseSize("64Q").status()), HasSubstr("'64Q'"));
}

TEST(ParseSizeTest, GoesUpToTheLargestNumber) {
  EXPECT_EQ(*ParseSize("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(*ParseSize("8191P"), int64_t{8191} << 50);
  EXPECT_FALSE(ParseSize("8192P").ok());
}

TEST(ParseDurationTest, ReadsNumbersWithUnits) {
  EXPECT_EQ(*ParseDuration("500ms"), milliseconds(500));
  EXPECT_EQ(*ParseDuration("90s"), milliseconds(90'000));
  EXPECT_EQ(*ParseDuration("90"), milliseconds(90'000));
  EXPECT_EQ(*ParseDuration("1m30s"), milliseconds(90'000));
  EXPECT_EQ(*ParseDuration("2h"), milliseconds(7'200'000));
  EXPECT_EQ(*ParseDuration("1d"), milliseconds(86'400'000));
}

TEST(ParseDurationTest, RefusesWhatIsNoTime) {
  for (const char* text :
       {"", "s", "0", "0s", "-1s", "2 m", "2x", "1.5s", "99999999999d", "4000d", "1m-3s"}) {
    const auto duration = ParseDuration(text);
    ASSERT_FALSE(duration.ok()) << text;
    EXPECT_EQ(ExitCodeOf(duration.status()), ExitCode::kUsage) << text;
  }
}

TEST(ParsePairsTest, SplitsAtTheFirstEqualsSign) {
  EXPECT_THAT(*ParsePairs({"a=b=c", "empty="}, "--context"),
              ElementsAre(Pair("a", "b=c"), Pair("empty", "")));
}

TEST(ParsePairsTest, RefusesWhatIsNoPairOrRepeatsAKey) {
  EXPECT_THAT(MessageOf(ParsePairs({"plain"}, "--context").status()), HasSubstr("--context 'plain'"));
  EXPECT_FALSE(ParsePairs({"=value"}, "--context").ok());
  EXPECT_THAT(MessageOf(ParsePairs({"a=1", "a=2"}, "--context").status()), HasSubstr("'a' is given twice"));
}

TEST(ParseEnumTest, TakesNamesInEveryWriting) {
  for (const char* text : {"SINGLE_NODE_WRITER", "single-node-writer", "Single_Node-Writer"}) {
    EXPECT_EQ(*ParseEnum(text, v1::AccessMode_descriptor(), "--access"), v1::SINGLE_NODE_WRITER) << text;
  }
}

TEST(ParseEnumTest, NamesWhatMayHaveBeenMeant) {
  const auto mode = ParseEnum("single-node-writter", v1::AccessMode_descriptor(), "--access");
  EXPECT_THAT(MessageOf(mode.status()), HasSubstr("did you mean SINGLE_NODE_WRITER"));
  EXPECT_THAT(HintOf(mode.status()), HasSubstr("MULTI_NODE_MULTI_WRITER"));
  EXPECT_FALSE(ParseEnum("ACCESS_MODE_UNKNOWN", v1::AccessMode_descriptor(), "--access").ok());
}

TEST(NearestTest, PrefersNearMissesToParts) {
  EXPECT_THAT(Nearest("plugns", {"plugins", "plugin", "volumes"}), ElementsAre("plugins"));
  EXPECT_THAT(Nearest("publish", {"publish-volume", "unpublish-volume", "get-info"}),
              ElementsAre("publish-volume", "unpublish-volume"));
  EXPECT_THAT(Nearest("zzz", {"publish-volume"}), IsEmpty());
}

TEST(FormatTest, ShowsSizes) {
  EXPECT_EQ(FormatSize(12), "12 B");
  EXPECT_EQ(FormatSize(int64_t{64} << 20), "64 MiB");
  EXPECT_EQ(FormatSize(int64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(FormatSize(std::numeric_limits<int64_t>::max()), "8 EiB");
}

TEST(FormatTest, ShowsDurations) {
  EXPECT_EQ(FormatDuration(milliseconds(0)), "<1ms");
  EXPECT_EQ(FormatDuration(milliseconds(999)), "999ms");
  EXPECT_EQ(FormatDuration(milliseconds(119'999)), "119s");
  EXPECT_EQ(FormatDuration(milliseconds(120'000)), "2m");
}

TEST(FormatTest, ShowsTimesRelativeToNow) {
  const auto now = std::chrono::system_clock::from_time_t(1'000'000);
  EXPECT_EQ(FormatRelative(At(1'000'000), now), "now");
  EXPECT_EQ(FormatRelative(At(1'000'000 - 42), now), "42s ago");
  EXPECT_EQ(FormatRelative(At(1'000'000 - 180), now), "3m ago");
  EXPECT_EQ(FormatRelative(At(1'000'000 - 3 * 86400), now), "3d ago");
  EXPECT_EQ(FormatRelative(At(1'000'000 + 12), now), "in 12s");
}

TEST(MakeCapabilityTest, LeavesTheDefaultModeToTheNode) {
  const auto capability = MakeCapability({.fs = "ext4", .mount_flags = {"noatime", "ro"}});
  ASSERT_TRUE(capability.ok());
  EXPECT_EQ(capability->access_mode(), v1::ACCESS_MODE_UNKNOWN);
  EXPECT_EQ(capability->access_type(), v1::MOUNT);
  EXPECT_THAT(capability->mount_flags(), ElementsAre("noatime", "ro"));
  EXPECT_EQ(DescribeCapability(*capability), "SINGLE_NODE_MULTI_WRITER ext4") << "the API's default";
}

TEST(MakeCapabilityTest, RefusesMountFlagsForABlockDevice) {
  EXPECT_EQ(ExitCodeOf(MakeCapability({.block = true, .mount_flags = {"ro"}}).status()), ExitCode::kUsage);
  EXPECT_EQ(DescribeCapability(*MakeCapability({.access = "multi-node-multi-writer", .block = true})),
            "MULTI_NODE_MULTI_WRITER block");
}

}  // namespace
}  // namespace berth::cli
