#include "plugins/hostpath/filesystem.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "plugins/hostpath/command.h"
#include "plugins/hostpath/copy.h"

namespace berth::hostpath {
namespace {

// One row per combination that differs: kind, state, blank, signature → step or refusal.
TEST(DecideFormatTest, OverEveryStateAndContent) {
  const ImageContent blank{.blank = true};
  const ImageContent ext4{.signature = "ext4"};
  const ImageContent xfs{.signature = "xfs"};
  const ImageContent unknown{};
  constexpr auto kRefused = std::nullopt;
  const struct {
    Kind kind;
    FormatState state;
    ImageContent content;
    std::optional<FormatStep> step;
  } cases[] = {
      {Kind::kImage, FormatState::kFormatted, ext4, FormatStep::kMount},
      {Kind::kImage, FormatState::kFormatted, unknown, FormatStep::kMount},
      {Kind::kImage, FormatState::kFormatting, blank, FormatStep::kFormat},
      {Kind::kImage, FormatState::kFormatting, ext4, FormatStep::kFormat},
      {Kind::kImage, FormatState::kFormatting, unknown, FormatStep::kFormat},
      {Kind::kImage, FormatState::kNone, blank, FormatStep::kFormat},
      {Kind::kImage, FormatState::kNone, ext4, FormatStep::kAdopt},
      {Kind::kImage, FormatState::kNone, xfs, kRefused},
      {Kind::kImage, FormatState::kNone, unknown, kRefused},
      {Kind::kBlock, FormatState::kFormatted, ext4, FormatStep::kMount},
      {Kind::kBlock, FormatState::kFormatting, blank, FormatStep::kFormat},
      {Kind::kBlock, FormatState::kFormatting, ext4, FormatStep::kAdopt},
      {Kind::kBlock, FormatState::kFormatting, unknown, kRefused},
      {Kind::kBlock, FormatState::kNone, blank, FormatStep::kFormat},
      {Kind::kBlock, FormatState::kNone, ext4, FormatStep::kAdopt},
      {Kind::kBlock, FormatState::kNone, xfs, kRefused},
      {Kind::kBlock, FormatState::kNone, unknown, kRefused},
  };
  int number = 0;
  for (const auto& one : cases) {
    const auto step = DecideFormat(one.kind, one.state, one.content, "ext4");
    if (one.step.has_value()) {
      ASSERT_TRUE(step.ok()) << number << ": " << step.status();
      EXPECT_EQ(*step, *one.step) << number;
    } else {
      EXPECT_TRUE(absl::IsFailedPrecondition(step.status())) << number;
    }
    ++number;
  }
}

class ImageTest : public ::testing::Test {
 protected:
  ImageTest() {
    std::string pattern = "/tmp/berth-hostpath-image-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    image_ = directory_ + "/image";
    const UniqueFd fd(open(image_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(ftruncate(fd.get(), 512 * kMiB), 0);
  }
  ~ImageTest() override {
    unlink(image_.c_str());
    unlink((directory_ + "/copy").c_str());
    rmdir(directory_.c_str());
  }
  void Write(const std::string& text, off_t where) {
    const UniqueFd fd(open(image_.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(pwrite(fd.get(), text.data(), text.size(), where), static_cast<ssize_t>(text.size()));
  }
  static int64_t Allocated(const std::string& path) {
    struct stat info{};
    EXPECT_EQ(stat(path.c_str(), &info), 0);
    return info.st_blocks * 512;
  }
  std::string directory_;
  std::string image_;
};

TEST_F(ImageTest, IsBlankUntilAByteIsWritten) {
  EXPECT_TRUE(LookIntoImage(image_)->blank);
  Write(std::string(4096, '\0'), 100 * kMiB);
  EXPECT_TRUE(LookIntoImage(image_)->blank) << "zeros that take up space are zeros";
  Write("x", 400 * kMiB);
  const auto content = LookIntoImage(image_);
  EXPECT_FALSE(content->blank);
  EXPECT_EQ(content->signature, "");
}

TEST_F(ImageTest, TellsWhatFileSystemItHolds) {
  for (const char* fs_type : {"ext4", "xfs"}) {
    ASSERT_TRUE(MakeFileSystem(image_, fs_type).ok());
    EXPECT_EQ(LookIntoImage(image_)->signature, fs_type);
    EXPECT_LT(Allocated(image_), 300 * kMiB) << "no longer sparse";
  }
}

TEST_F(ImageTest, ACopyIsEqualAndAsSparse) {
  Write("first", 0);
  Write("second", 300 * kMiB);
  const std::string copy = directory_ + "/copy";
  ASSERT_TRUE(CopyImage(image_, copy, 600 * kMiB).ok());
  EXPECT_FALSE(CopyImage(image_, copy, 600 * kMiB).ok()) << "an existing file is not written over";
  const UniqueFd fd(open(copy.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(6, '\0');
  EXPECT_EQ(pread(fd.get(), text.data(), 6, 300 * kMiB), 6);
  EXPECT_EQ(text, "second");
  EXPECT_EQ(lseek(fd.get(), 0, SEEK_END), 600 * kMiB);
  EXPECT_LT(Allocated(copy), kMiB);
}

TEST(RunCommandTest, ReportsHowAProgramEnded) {
  using std::chrono::seconds;
  EXPECT_TRUE(RunCommand("true", {}, seconds(30)).ok());
  EXPECT_TRUE(absl::IsInternal(RunCommand("false", {}, seconds(30))));
  EXPECT_TRUE(RunCommand("false", {}, seconds(30), /*highest_good_code=*/1).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(RunCommand("no-such-program", {}, seconds(30))));
  const absl::Status failed = RunCommand("ls", {"/no/such/path"}, seconds(30));
  EXPECT_NE(failed.ToString().find("No such file"), std::string::npos) << failed;
}

TEST(RunCommandTest, KillsWhatTakesTooLong) {
  const TimePoint begin = Clock::now();
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(RunCommand("tail", {"-f", "/dev/null"}, std::chrono::milliseconds(50))));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST(RunCommandTest, TakesALotOfOutput) {
  EXPECT_TRUE(RunCommand("seq", {"1", "200000"}, std::chrono::seconds(30)).ok());
}

}  // namespace
}  // namespace berth::hostpath
