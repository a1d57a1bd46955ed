#include "supervisor/child_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<TreeMember> kTree = {
    {.pid = 10, .fuse = FuseUse::kNone, .main = true},
    {.pid = 11, .fuse = FuseUse::kNone, .main = false},
    {.pid = 12, .fuse = FuseUse::kHolds, .main = false},
    {.pid = 13, .fuse = FuseUse::kUnknown, .main = false},
};

constexpr TreeOccasion kAll[] = {TreeOccasion::kMainEnded, TreeOccasion::kReplaced,
                                 TreeOccasion::kLimitReached, TreeOccasion::kStopped};

TEST(ChildPolicyTest, EndEndsEverybodyAtEveryOccasion) {
  for (const TreeOccasion occasion : kAll) {
    const TreeVerdict verdict = DecideChildren(kTree, ChildrenPolicy::kEnd, occasion);
    EXPECT_THAT(verdict.end, ElementsAre(11, 12, 13));
    EXPECT_THAT(verdict.keep, IsEmpty());
  }
}

TEST(ChildPolicyTest, KeepSparesServersAndTheUnknownOverARestart) {
  for (const TreeOccasion occasion : {TreeOccasion::kMainEnded, TreeOccasion::kReplaced}) {
    const TreeVerdict verdict = DecideChildren(kTree, ChildrenPolicy::kKeep, occasion);
    EXPECT_THAT(verdict.end, ElementsAre(11));
    EXPECT_THAT(verdict.keep, ElementsAre(12, 13));
  }
}

TEST(ChildPolicyTest, KeepSparesNobodyAtAStopOrABrokenLimit) {
  for (const TreeOccasion occasion : {TreeOccasion::kLimitReached, TreeOccasion::kStopped}) {
    const TreeVerdict verdict = DecideChildren(kTree, ChildrenPolicy::kKeep, occasion);
    EXPECT_THAT(verdict.end, ElementsAre(11, 12, 13));
    EXPECT_THAT(verdict.keep, IsEmpty());
  }
}

TEST(ChildPolicyTest, MainProcessIsNeverAmongThem) {
  const std::vector<TreeMember> serving = {{.pid = 10, .fuse = FuseUse::kHolds, .main = true}};
  for (const TreeOccasion occasion : kAll) {
    for (const ChildrenPolicy children : {ChildrenPolicy::kEnd, ChildrenPolicy::kKeep}) {
      const TreeVerdict verdict = DecideChildren(serving, children, occasion);
      EXPECT_THAT(verdict.end, IsEmpty());
      EXPECT_THAT(verdict.keep, IsEmpty());
    }
  }
}

}  // namespace
}  // namespace berth
