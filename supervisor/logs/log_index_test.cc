#include "supervisor/logs/log_index.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/testing/temp_dir.h"

namespace berth {
namespace {

using ::testing::IsEmpty;

LogMark MarkAt(uint64_t i) {
  return LogMark{
      .position = i * 100, .line = i * 3, .time = static_cast<int64_t>(i * 7), .region = LogRegion::kShown};
}

class LogIndexTest : public ::testing::Test {
 protected:
  // An index with `count` marks.
  void Fill(uint64_t count) {
    LogIndex index;
    ASSERT_TRUE(index.Open(path_).ok());
    for (uint64_t i = 0; i < count; ++i) {
      index.mutable_state().position = MarkAt(i).position;
      index.mutable_state().line = MarkAt(i).line;
      index.Add(MarkAt(i));
    }
    index.mutable_state().position += 50;
    index.mutable_state().line += 1;
    index.mutable_state().base = 7;
    index.Store();
  }
  void Damage(off_t offset) const {
    const UniqueFd fd(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    ASSERT_EQ(pread(fd.get(), &byte, 1, offset), 1);
    byte = static_cast<char>(~byte);
    ASSERT_EQ(pwrite(fd.get(), &byte, 1, offset), 1);
  }

  TempDir temp_;
  std::string path_ = temp_.Path("nfs.log.index");
};

TEST_F(LogIndexTest, RemembersStateAndMarks) {
  Fill(1000);
  LogIndex index;
  ASSERT_TRUE(index.Open(path_).ok());
  EXPECT_TRUE(index.found());
  EXPECT_EQ(index.state().position, MarkAt(999).position + 50);
  EXPECT_EQ(index.state().base, 7U);
  const std::vector<LogMark> marks = index.Marks();
  ASSERT_EQ(marks.size(), 1000U);
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(marks[i], MarkAt(i));
  EXPECT_EQ(index.first(), MarkAt(0));
  struct stat info{};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(LogIndexTest, ANewOneFindsNothing) {
  LogIndex index;
  ASSERT_TRUE(index.Open(path_).ok());
  EXPECT_FALSE(index.found());
  EXPECT_THAT(index.Marks(), IsEmpty());
}

TEST_F(LogIndexTest, ForgetsTheOldestMarks) {
  Fill(LogIndex::kMarks * 2 + 5);
  for (int opened = 0; opened < 2; ++opened) {
    LogIndex index;
    ASSERT_TRUE(index.Open(path_).ok());
    EXPECT_EQ(index.Marks().size(), LogIndex::kMarks);
    EXPECT_EQ(index.first(), MarkAt(LogIndex::kMarks + 5));
    EXPECT_EQ(index.Marks().back(), MarkAt(LogIndex::kMarks * 2 + 4));
  }
  LogIndex index;
  ASSERT_TRUE(index.Open(path_).ok());
  index.ForgetBefore(LogIndex::kMarks * 2 + 1);
  EXPECT_EQ(index.Marks().size(), 4U);
  EXPECT_EQ(index.first(), MarkAt(LogIndex::kMarks * 2 + 1));
}

// berthd was killed after it had written a mark, before the state that counts it.
TEST_F(LogIndexTest, AMarkThatTheStateDoesNotKnowHurtsNothing) {
  Fill(LogIndex::kMarks);
  std::string state(72, '\0');
  const UniqueFd fd(open(path_.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(pread(fd.get(), state.data(), state.size(), 0), 72);
  LogIndex before;
  ASSERT_TRUE(before.Open(path_).ok());
  before.Add(MarkAt(LogIndex::kMarks));
  ASSERT_EQ(pwrite(fd.get(), state.data(), state.size(), 0), 72);
  LogIndex index;
  ASSERT_TRUE(index.Open(path_).ok());
  EXPECT_EQ(index.Marks().size(), LogIndex::kMarks);
  EXPECT_EQ(index.first(), MarkAt(0));
}

TEST_F(LogIndexTest, DamagedStateIsNotBelieved) {
  Fill(10);
  Damage(20);
  LogIndex index;
  ASSERT_TRUE(index.Open(path_).ok());
  EXPECT_FALSE(index.found());
}

TEST_F(LogIndexTest, DamagedMarksAreLeftOutAndTheStateHolds) {
  Fill(10);
  Damage(4096 + 3 * 32 + 1);
  LogIndex index;
  ASSERT_TRUE(index.Open(path_).ok());
  EXPECT_TRUE(index.found());
  EXPECT_EQ(index.state().position, MarkAt(9).position + 50);
  EXPECT_THAT(index.Marks(), IsEmpty());
  EXPECT_EQ(index.first().position, index.state().position);
}

TEST_F(LogIndexTest, CutOffFileIsNotBelieved) {
  Fill(10);
  ASSERT_EQ(truncate(path_.c_str(), 0), 0);
  LogIndex index;
  ASSERT_TRUE(index.Open(path_).ok());
  EXPECT_FALSE(index.found());
  // Nor does it hurt under an index in use.
  index.Add(MarkAt(1));
  ASSERT_EQ(truncate(path_.c_str(), 0), 0);
  index.Add(MarkAt(2));
  EXPECT_LE(index.Marks().size(), 2U);
}

TEST_F(LogIndexTest, WithoutAFileItWorksInMemory) {
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  LogIndex index;
  EXPECT_FALSE(index.Open(path_).ok());
  for (uint64_t i = 0; i < LogIndex::kMarks + 2; ++i) index.Add(MarkAt(i));
  EXPECT_EQ(index.Marks().size(), LogIndex::kMarks);
  EXPECT_EQ(index.first(), MarkAt(2));
}

}  // namespace
}  // namespace berth
