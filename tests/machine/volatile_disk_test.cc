#include "tests/machine/volatile_disk.h"

#include <gtest/gtest.h>

#include <set>

#include "base/testing/temp_dir.h"

namespace berth {
namespace {

constexpr uint64_t kBlocks = 64;

class VolatileDiskTest : public testing::Test {
 protected:
  VolatileDiskTest() { directory_.Write("image", std::string(kBlocks * VolatileDisk::kBlockSize, 'i')); }

  VolatileDisk Open() {
    auto disk = VolatileDisk::Open(directory_.Path("image"), directory_.Path("changes"));
    EXPECT_TRUE(disk.ok()) << disk.status();
    return *std::move(disk);
  }

  static void Fill(VolatileDisk& disk, uint64_t block, char with) {
    const std::string data(VolatileDisk::kBlockSize, with);
    ASSERT_TRUE(disk.Write(block * VolatileDisk::kBlockSize, data).ok());
  }

  static char Content(const VolatileDisk& disk, uint64_t block) {
    std::string data(VolatileDisk::kBlockSize, '-');
    EXPECT_TRUE(disk.Read(block * VolatileDisk::kBlockSize, data).ok());
    EXPECT_EQ(data, std::string(data.size(), data[0])) << "a torn block";
    return data[0];
  }

  TempDir directory_;
  std::mt19937_64 random_{1};
};

TEST_F(VolatileDiskTest, ReadsWhatWasWrittenAcrossBlocks) {
  VolatileDisk disk = Open();
  const std::string text(5000, 'x');
  ASSERT_TRUE(disk.Write(4000, text).ok());
  std::string back(5002, '-');
  ASSERT_TRUE(disk.Read(3999, back).ok());
  EXPECT_EQ(back, "i" + text + "i");
}

TEST_F(VolatileDiskTest, WhatWasFlushedSurvivesEveryCut) {
  VolatileDisk disk = Open();
  for (uint64_t block = 0; block < kBlocks; ++block) Fill(disk, block, 'a');
  ASSERT_TRUE(disk.Flush().ok());
  const auto loss = disk.CutPower(random_);
  ASSERT_TRUE(loss.ok());
  EXPECT_EQ(loss->blocks, 0U);
  for (uint64_t block = 0; block < kBlocks; ++block) EXPECT_EQ(Content(disk, block), 'a');
}

TEST_F(VolatileDiskTest, ACutLosesSomeOfWhatWasNotFlushedInAnyOrder) {
  VolatileDisk disk = Open();
  std::set<char> seen;
  size_t lost = 0;
  for (int round = 0; round < 20; ++round) {
    for (uint64_t block = 0; block < kBlocks; ++block) Fill(disk, block, 'a');
    ASSERT_TRUE(disk.Flush().ok());
    for (const char with : {'b', 'c'}) {
      for (uint64_t block = 0; block < kBlocks; ++block) Fill(disk, block, with);
    }
    const auto loss = disk.CutPower(random_);
    ASSERT_TRUE(loss.ok());
    EXPECT_EQ(loss->blocks, kBlocks);
    size_t old = 0;
    for (uint64_t block = 0; block < kBlocks; ++block) {
      seen.insert(Content(disk, block));
      if (Content(disk, block) != 'c') ++old;
    }
    EXPECT_EQ(old, loss->lost);
    lost += loss->lost;
  }
  EXPECT_EQ(seen, (std::set<char>{'a', 'b', 'c'}));
  EXPECT_GT(lost, 0U);
  EXPECT_LT(lost, 20 * kBlocks);
}

TEST_F(VolatileDiskTest, TheImageIsNeverWritten) {
  {
    VolatileDisk disk = Open();
    Fill(disk, 3, 'a');
    ASSERT_TRUE(disk.Flush().ok());
  }
  EXPECT_EQ(Content(Open(), 3), 'i');
}

}  // namespace
}  // namespace berth
