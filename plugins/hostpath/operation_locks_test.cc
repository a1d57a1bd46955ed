#include "plugins/hostpath/operation_locks.h"

#include <gtest/gtest.h>

#include <optional>

namespace berth::hostpath {
namespace {

using Space = OperationLocks::Space;

TEST(OperationLocksTest, ASecondOperationIsToldAborted) {
  OperationLocks locks;
  const auto first = locks.Take(Space::kVolume, "v");
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(absl::IsAborted(locks.Take(Space::kVolume, "v").status()));
  EXPECT_TRUE(absl::IsAborted(locks.Share(Space::kVolume, "v").status()));
}

TEST(OperationLocksTest, OthersAreNotInTheWay) {
  OperationLocks locks;
  const auto first = locks.Take(Space::kVolume, "v");
  EXPECT_TRUE(locks.Take(Space::kVolume, "w").ok());
  EXPECT_TRUE(locks.Take(Space::kSnapshot, "v").ok());
  EXPECT_TRUE(locks.Take(Space::kVolumeName, "v").ok());
}

TEST(OperationLocksTest, ReadersShareAndKeepAWriterOutUntilTheLast) {
  OperationLocks locks;
  std::optional<OperationLocks::Hold> one(*locks.Share(Space::kVolume, "v"));
  std::optional<OperationLocks::Hold> two(*locks.Share(Space::kVolume, "v"));
  EXPECT_FALSE(locks.Take(Space::kVolume, "v").ok());
  one.reset();
  EXPECT_FALSE(locks.Take(Space::kVolume, "v").ok());
  two.reset();
  EXPECT_TRUE(locks.Take(Space::kVolume, "v").ok());
}

TEST(OperationLocksTest, AMovedHoldIsReleasedOnce) {
  OperationLocks locks;
  {
    auto first = locks.Take(Space::kVolume, "v");
    ASSERT_TRUE(first.ok());
    const OperationLocks::Hold moved = *std::move(first);
    EXPECT_FALSE(locks.Take(Space::kVolume, "v").ok());
  }
  EXPECT_TRUE(locks.Take(Space::kVolume, "v").ok());
}

}  // namespace
}  // namespace berth::hostpath
