#include "mounts/census_question.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <string>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

CensusQuestion Asked() {
  CensusQuestion question{.recorded = {7, 8}, .kernel = KernelAs::kBefore6_12};
  question.objects.push_back({.device = makedev(0, 77),
                              .inode_device = makedev(0, 78),
                              .root = "/a \n\\b",
                              .fs_type = "nfs4",
                              .source = "server:/x",
                              .ours = {uint64_t{1} << 40, 3},
                              .directory = "/var/lib/berth/volumes/1",
                              .staged = true,
                              .before = 12,
                              .earlier = {~uint64_t{0}, 5},
                              .detached = true,
                              .users = true});
  question.objects.push_back({.block_device = true, .device = makedev(259, 70000)});
  question.objects.push_back({.place = true, .device = makedev(0, 9), .root = "/x"});
  return question;
}

TEST(CensusQuestionTest, IsTheSameOnTheOtherSide) {
  const auto decoded = DecodeQuestion(EncodeQuestion(Asked()));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(*decoded, Asked());
}

TEST(CensusQuestionTest, WhatIsNoQuestionIsRefused) {
  for (const char* const word :
       {"--device=", "--device=1:2", "--before=-1", "--before", "--ours=x", "--users", "--users=yes",
        "--unknown=1", "--kernel=3", "--recorded=x", "", "="}) {
    EXPECT_FALSE(DecodeQuestion({"--object", word}).has_value()) << word;
  }
  EXPECT_TRUE(DecodeQuestion({"--object", "--users=1"}).has_value());
  EXPECT_FALSE(DecodeQuestion({"--users=1"}).has_value()) << "of no object";
}

TEST(CensusAnswerTest, IsTheSameOnTheOtherSide) {
  std::string text;
  std::vector<Hold> holds;
  for (int kind = 0; kind <= static_cast<int>(HoldKind::kLoop); ++kind) {
    holds.push_back({.object = 1,
                     .kind = static_cast<HoldKind>(kind),
                     .pid = 4711,
                     .where = std::string("/a\tb\n\\c\x01 d\xff"),
                     .source = "",
                     .keeper = "mnt:[1]"});
    text += EncodeHold(holds.back());
  }
  text += EncodeElsewhere(0) + EncodeElsewhere(1) + EncodeEnd("");
  const CensusAnswer answer = DecodeAnswer(text, 2);
  EXPECT_EQ(answer.holds, holds);
  EXPECT_THAT(answer.elsewhere, ElementsAre(0U, 1U));
  EXPECT_EQ(answer.incomplete, "");
}

TEST(CensusAnswerTest, OneThatWasCutOffIsIncompleteAndKeepsItsWholeLines) {
  const Hold hold{
      .object = 0, .kind = HoldKind::kOpenFile, .pid = 1, .where = "/x", .source = "", .keeper = ""};
  const std::string text = EncodeHold(hold) + EncodeHold(hold) + EncodeEnd("");
  const CensusAnswer cut = DecodeAnswer(std::string_view(text).substr(0, text.size() - 12), 1);
  EXPECT_THAT(cut.holds, SizeIs(1));
  EXPECT_NE(cut.incomplete, "");
  EXPECT_EQ(DecodeAnswer(EncodeEnd("too many"), 1).incomplete, "too many");
  EXPECT_NE(DecodeAnswer("", 1).incomplete, "");
}

TEST(CensusAnswerTest, WhatIsNoLineIsPassedOver) {
  const CensusAnswer answer =
      DecodeAnswer("held\t5\tmount\t0\t/x\t\t\nheld\t0\tnothing\t0\t/x\t\t\nheld\t0\n\n\t\ncomplete\n", 1);
  EXPECT_THAT(answer.holds, IsEmpty());
  EXPECT_EQ(answer.incomplete, "");
}

}  // namespace
}  // namespace berth
