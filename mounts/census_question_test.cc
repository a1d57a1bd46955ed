#include "mounts/census_question.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace berth {
namespace {

using ::testing::IsEmpty;

CensusQuestion Asked() {
  CensusQuestion question{.recorded = {7, 8}, .kernel = KernelAs::kBefore6_12};
  question.objects.push_back({.device = makedev(0, 77),
                              .inode_device = makedev(0, 78),
                              .root = "/a \n\\b",
                              .fs_type = "nfs4",
                              .source = "server:/x",
                              .source_fingerprint = ~0ULL,
                              .ours = {uint64_t{1} << 40, 3},
                              .directory = "/var/lib/berth/volumes/1",
                              .staged = true,
                              .before = 12,
                              .earlier = {~uint64_t{0}, 5},
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
  const std::string bytes = EncodeQuestion(Asked());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeQuestion(std::string_view(bytes).substr(0, size)).has_value()) << size;
  }
  for (const char* const other :
       {"{}", "usage", "\xa0", "\x80", "\xf6", "\x9b\xff\xff\xff\xff\xff\xff\xff\xff"}) {
    EXPECT_FALSE(DecodeQuestion(other).has_value()) << other;
  }
  CensusQuestion of_another_kernel = Asked();
  of_another_kernel.kernel = static_cast<KernelAs>(3);
  EXPECT_FALSE(DecodeQuestion(EncodeQuestion(of_another_kernel)).has_value());
}

Hold AHold(size_t object, HoldKind kind) {
  return {.object = object,
          .kind = kind,
          .pid = 4711,
          .where = std::string("/a\tb\n\\c\x01 d\xff"),
          .keeper = "mnt:[1]"};
}

TEST(CensusAnswerTest, IsTheSameOnTheOtherSide) {
  std::string bytes;
  CensusAnswer said{.incomplete = ""};
  for (int kind = 0; kind <= static_cast<int>(HoldKind::kLoop); ++kind) {
    said.holds.push_back(AHold(1, static_cast<HoldKind>(kind)));
    bytes += EncodeAnswer({.holds = {said.holds.back()}});
  }
  said.elsewhere = {0, 1};
  for (const size_t object : said.elsewhere) bytes += EncodeAnswer({.elsewhere = {object}});
  EXPECT_NE(DecodeAnswer(bytes, 2).incomplete, "") << "its end is missing";
  bytes += EncodeAnswer({.incomplete = ""});
  EXPECT_EQ(DecodeAnswer(bytes, 2), said);
  EXPECT_EQ(DecodeAnswer(EncodeAnswer({.incomplete = "too many"}), 1).incomplete, "too many");
}

TEST(CensusAnswerTest, OneThatWasCutOffIsIncompleteAndKeepsItsWholeParts) {
  const std::string hold = EncodeAnswer({.holds = {AHold(0, HoldKind::kOpenFile)}});
  const std::string whole = hold + hold + EncodeAnswer({.incomplete = ""});
  for (size_t size = 0; size < whole.size(); ++size) {
    const CensusAnswer cut = DecodeAnswer(std::string_view(whole).substr(0, size), 1);
    EXPECT_EQ(cut.holds.size(), std::min<size_t>(size / hold.size(), 2)) << size;
    EXPECT_NE(cut.incomplete, "") << size;
  }
  EXPECT_EQ(DecodeAnswer(whole, 1).incomplete, "");
}

TEST(CensusAnswerTest, WhatIsNoPartEndsIt) {
  const std::string end = EncodeAnswer({.incomplete = ""});
  for (const std::string& bad :
       {EncodeAnswer({.holds = {AHold(5, HoldKind::kMount)}}), EncodeAnswer({.elsewhere = {1}}),
        EncodeAnswer({.holds = {AHold(0, static_cast<HoldKind>(99))}}), std::string("usage: "),
        EncodeQuestion(Asked())}) {
    const CensusAnswer answer = DecodeAnswer(bad + end, 1);
    EXPECT_THAT(answer.holds, IsEmpty());
    EXPECT_NE(answer.incomplete, "");
    EXPECT_NE(DecodeAnswer(end + bad, 1).incomplete, "");
  }
}

}  // namespace
}  // namespace berth
