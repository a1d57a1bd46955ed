#include "mounts/helper_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "base/status.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(HelperAnswerTest, AReadHasModeOwnerAndContent) {
  const auto content = ParseRead("mode 100600 owner 1000\nKEY=value\nmore", "read /f");
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_EQ(content->mode, 0100600U);
  EXPECT_EQ(content->owner, 1000U);
  EXPECT_EQ(content->text, "KEY=value\nmore");
}

TEST(HelperAnswerTest, AReadThatFailedHasItsErrno) {
  EXPECT_EQ(ErrnoOf(ParseRead("errno 40", "read /f").status()), ELOOP);
}

TEST(HelperAnswerTest, AnAnswerInAnotherFormIsAnErrorWithoutTheContent) {
  for (const char* output : {"", "\n", "mode 100600\nhunter2", "owner 0\nhunter2", "mode 9 owner 0\nhunter2",
                             "mode 100600 owner x\nhunter2", "mode 100600 owner 0 hunter2"}) {
    const absl::Status status = ParseRead(output, "read /f").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << output;
    EXPECT_THAT(MessageOf(status), Not(HasSubstr("hunter2")));
  }
}

TEST(HelperAnswerTest, AMountAtAPathHasItsIdAndWhetherItIsGuarded) {
  const auto mounted = ParseMountPath("mounted 4294967297 1 0", "/srv/data");
  ASSERT_TRUE(mounted.ok()) << mounted.status();
  EXPECT_EQ(mounted->mount_id, 4294967297U);
  EXPECT_TRUE(mounted->fresh);
  EXPECT_EQ(mounted->unguarded, "");
  const auto unguarded = ParseMountPath("mounted 7 0 95", "/srv/data");
  ASSERT_TRUE(unguarded.ok()) << unguarded.status();
  EXPECT_FALSE(unguarded->fresh);
  EXPECT_THAT(unguarded->unguarded, HasSubstr("immutable"));
}

TEST(HelperAnswerTest, WhatStandsInTheWayOfAPathIsNamedWithWhatToDo) {
  const auto why = [](std::string_view output) {
    const absl::Status status = ParseMountPath(output, "/srv/data").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << output;
    return std::string(MessageOf(status));
  };
  EXPECT_THAT(why("foreign"), HasSubstr("umount"));
  EXPECT_THAT(why("symlink"), HasSubstr("symbolic link"));
  EXPECT_THAT(why("noparent"), HasSubstr("make it"));
  EXPECT_THAT(why("notdirectory"), HasSubstr("not a directory"));
  const std::string occupied = why(std::string_view("occupied 3\na\0b\0", 15));
  EXPECT_THAT(occupied, HasSubstr("(a, b and 3 more)"));
  EXPECT_THAT(occupied, HasSubstr("/srv/data.moved"));
}

TEST(HelperAnswerTest, AMountPathThatDoesNotSayIsNotTakenForMounted) {
  for (const char* output :
       {"", "mounted", "mounted x 1 0", "mounted 7 1", "unmounted 7 1 0", "occupied 3"}) {
    EXPECT_EQ(ParseMountPath(output, "/srv/data").status().code(), absl::StatusCode::kInternal) << output;
  }
}

TEST(HelperAnswerTest, AProbeHasAVerdictForEachPathThatAnswered) {
  const std::vector<std::string> paths = {"/a", "/b", "/c", "/d", "/e"};
  const auto answers =
      ParseProbe("0 pid 12\n1 pid 13\n0 ok\n1 errno 107\n2 errno 13\n3 nochild 11\n4 pid 17\n", paths);
  ASSERT_EQ(answers.size(), 5U);
  EXPECT_EQ(answers[0].child, 12);
  EXPECT_EQ(answers[0].verdict, absl::OkStatus());
  EXPECT_EQ(answers[1].verdict->code(), absl::StatusCode::kUnavailable) << "ENOTCONN: its server is gone";
  EXPECT_EQ(ErrnoOf(*answers[1].verdict), ENOTCONN);
  EXPECT_EQ(answers[2].verdict, absl::OkStatus()) << "who may not look was answered";
  EXPECT_EQ(answers[3].verdict->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(answers[4].child, 17);
  EXPECT_FALSE(answers[4].verdict.has_value()) << "it hangs";
}

TEST(HelperAnswerTest, LinesOfAProbeInAnotherFormAreSkipped) {
  const auto answers = ParseProbe("-1 ok\n9 ok\nx ok\n0\n0 errno\n0 errno x\n0 fine\n", {"/a"});
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].child, 0);
  EXPECT_FALSE(answers[0].verdict.has_value());
}

}  // namespace
}  // namespace berth
