// What is published is mounted at the path that its file names too.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/statmount.h"
#include "base/testing/holder.h"
#include "base/unique_fd.h"
#include "journal/journal.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_record.h"
#include "mounts/mount_table.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// What only a person can change is answered so soon, whatever the deadline: on a loaded machine, too.
constexpr std::chrono::seconds kAtOnce{5};

class MounterPathTest : public MounterTestBase {
 protected:
  [[nodiscard]] PublishRequest At(const std::string& path) const {
    PublishRequest request = Request();
    request.origin = Origin::kDeclared;
    request.path.path = path;
    return request;
  }
  [[nodiscard]] static std::vector<Mount> MountsAt(const std::string& path) {
    auto mounts = MountsBeneath(path, 100);
    EXPECT_TRUE(mounts.ok()) << mounts.status();
    return mounts.ok() ? *std::move(mounts) : std::vector<Mount>();
  }
  [[nodiscard]] static bool IsImmutable(const std::string& path) {
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int flags = 0;
    return ioctl(fd.get(), FS_IOC_GETFLAGS, &flags) == 0 && (flags & FS_IMMUTABLE_FL) != 0;
  }
  [[nodiscard]] PublicationView Publication() {
    const VolumeView view = View();
    return view.publications.empty() ? PublicationView{} : view.publications.front();
  }
  [[nodiscard]] bool WaitMountedAt(const std::string& path) {
    return loop_.RunUntil([&] {
      const PublicationView view = Publication();
      return view.path.path == path && view.path_mounted;
    });
  }
  [[nodiscard]] std::vector<Finding> Findings() {
    auto findings = loop_.Run(mounter_->Examine(false, Soon()));
    EXPECT_TRUE(findings.ok()) << findings.status();
    return findings.ok() ? *std::move(findings) : std::vector<Finding>();
  }
  static void WriteFile(const std::string& path) { std::ofstream(path) << "notes\n"; }

  std::string path_ = directory_ + "/srv-db";
};

TEST_F(MounterPathTest, IsMountedThereWhilePublished) {
  const auto target = Publish(At(path_));
  ASSERT_TRUE(target.ok()) << target.status();
  ASSERT_THAT(MountsAt(path_), SizeIs(1));
  EXPECT_THAT(MountsAt(path_).front().options,
              AllOf(HasSubstr("nosuid"), HasSubstr("nodev"), HasSubstr("rw")));
  WriteFile(*target + "/file");
  EXPECT_EQ(access((path_ + "/file").c_str(), F_OK), 0) << "it is another file system";
  EXPECT_TRUE(Publication().path_mounted);
  EXPECT_THAT(EventTypes(), Contains("volume.path_mounted"));
  EXPECT_THAT(Findings(), IsEmpty());

  ASSERT_EQ(Publish(At(path_)).status(), absl::OkStatus()) << "a repeat";
  EXPECT_THAT(MountsAt(path_), SizeIs(1));

  ASSERT_TRUE(Unpublish(At(path_)).ok());
  EXPECT_THAT(MountsAt(path_), IsEmpty());
  EXPECT_TRUE(Gone());
  EXPECT_TRUE(IsImmutable(path_));
  EXPECT_LT(open((path_ + "/file").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600), 0)
      << "a process writes while the volume is away";

  ASSERT_EQ(loop_.Run(mounter_->FreePath(path_, Soon())), absl::OkStatus());
  EXPECT_LT(access(path_.c_str(), F_OK), 0) << "the directory that was made for it is left";
  EXPECT_EQ(loop_.Run(mounter_->FreePath(path_, Soon())), absl::OkStatus()) << "a repeat";
}

// Any local user who may list it can do that.
TEST_F(MounterPathTest, Fault39SomebodysLockOfTheDirectoryHindersNothing) {
  MakeDirectory(path_);
  const UniqueFd theirs(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(theirs.get(), LOCK_EX | LOCK_NB), 0);
  const auto target = Publish(At(path_));
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_THAT(MountsAt(path_), SizeIs(1));
  EXPECT_TRUE(Publication().path_mounted);
  struct stat locks{};
  ASSERT_EQ(stat((directory_ + "/state/paths.lock").c_str(), &locks), 0);
  EXPECT_EQ(locks.st_mode & 07777, 0600U);
  ASSERT_TRUE(Unpublish(At(path_)).ok());
  EXPECT_THAT(MountsAt(path_), IsEmpty());
}

TEST_F(MounterPathTest, DirectoryAndFlagOfTheirOwnersStay) {
  MakeDirectory(path_);
  ASSERT_TRUE(Publish(At(path_)).ok());
  ASSERT_TRUE(Unpublish(At(path_)).ok());
  EXPECT_TRUE(IsImmutable(path_));
  ASSERT_EQ(loop_.Run(mounter_->FreePath(path_, Soon())), absl::OkStatus());
  EXPECT_FALSE(IsImmutable(path_));
  EXPECT_EQ(access(path_.c_str(), F_OK), 0) << "an operator's directory was removed";

  const UniqueFd fd(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  int flags = FS_IMMUTABLE_FL;
  ASSERT_EQ(ioctl(fd.get(), FS_IOC_SETFLAGS, &flags), 0) << strerror(errno);
  ASSERT_TRUE(Publish(At(path_)).ok());
  ASSERT_TRUE(Unpublish(At(path_)).ok());
  ASSERT_EQ(loop_.Run(mounter_->FreePath(path_, Soon())), absl::OkStatus());
  EXPECT_TRUE(IsImmutable(path_)) << "an operator's flag was taken away";
}

TEST_F(MounterPathTest, ReadOnlyAndOptionsHold) {
  PublishRequest request = At(path_);
  request.readonly = true;
  request.path.suid = true;
  request.path.dev = true;
  ASSERT_EQ(Publish(request).status(), absl::OkStatus());
  struct statvfs info{};
  ASSERT_EQ(statvfs(path_.c_str(), &info), 0);
  EXPECT_NE(info.f_flag & ST_RDONLY, 0U);
  EXPECT_EQ(info.f_flag & (ST_NOSUID | ST_NODEV), 0U);

  request.path.suid = false;
  ASSERT_EQ(Publish(request).status(), absl::OkStatus());
  ASSERT_EQ(statvfs(path_.c_str(), &info), 0);
  EXPECT_NE(info.f_flag & ST_NOSUID, 0U);
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
}

TEST_F(MounterPathTest, FilesInTheWayAreNamedAndNeverCovered) {
  MakeDirectory(path_);
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) WriteFile(path_ + "/" + name);
  const absl::Status refused = Publish(At(path_)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(path_), HasSubstr("and 2 more"),
                                                    HasSubstr("mv -T " + path_ + " " + path_ + ".moved")));
  EXPECT_THAT(MountsAt(path_), IsEmpty());
  EXPECT_FALSE(IsImmutable(path_));
  EXPECT_EQ(access((path_ + "/a").c_str(), F_OK), 0);
  // It is published nevertheless, and says what is wrong.
  EXPECT_EQ(Publication().state, PublicationState::kPublished);
  EXPECT_THAT(Publication().path_error, HasSubstr("mv -T"));
  const std::vector<Finding> findings = Findings();
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].code, "path.missing");
  EXPECT_EQ(findings[0].path, path_);
  EXPECT_THAT(findings[0].text, AllOf(HasSubstr("and 2 more"), HasSubstr("mv -T")));
  const auto explained = loop_.Run(mounter_->Explain("hp", "v1", Soon()));
  ASSERT_TRUE(explained.ok());
  EXPECT_THAT(explained->remarks, Contains(HasSubstr("mv -T")));
  // No new request is needed once they are moved.
  ASSERT_EQ(rename(path_.c_str(), (path_ + ".moved").c_str()), 0);
  EXPECT_TRUE(WaitMountedAt(path_));
  EXPECT_THAT(MountsAt(path_), SizeIs(1));
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
}

TEST_F(MounterPathTest, FilesAtTheTargetAreNamedAndNeverCovered) {
  // As a unit that was started before berthd had published leaves them.
  ASSERT_TRUE(Publish(Request()).ok());
  const std::string target = Publication().target_path;
  ASSERT_EQ(umount2(target.c_str(), UMOUNT_NOFOLLOW), 0);
  mkdir(target.c_str(), 0755);
  WriteFile(target + "/orphan");
  const int before = plugin_.Calls("NodePublishVolume");
  const TimePoint began = Clock::now();
  const absl::Status refused = Publish(Request()).status();
  EXPECT_LT(Clock::now() - began, kAtOnce) << "repeating it does not move the files away";
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("orphan"), HasSubstr("mv -T " + target)));
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), before) << "the volume would be mounted over them";
  EXPECT_EQ(access((target + "/orphan").c_str(), F_OK), 0);
  ASSERT_EQ(unlink((target + "/orphan").c_str()), 0);
  EXPECT_TRUE(Publish(Request()).ok());
}

TEST_F(MounterPathTest, NoOtherMountAndNoSymlink) {
  MakeDirectory(path_);
  ASSERT_EQ(mount("other", path_.c_str(), "tmpfs", 0, nullptr), 0);
  const absl::Status refused = Publish(At(path_)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("something else is mounted"));
  // Nor is it unmounted with the volume, nor does it keep that.
  ASSERT_TRUE(Unpublish(At(path_)).ok());
  EXPECT_THAT(MountsAt(path_), SizeIs(1));
  ASSERT_EQ(umount2(path_.c_str(), 0), 0);

  const std::string link = directory_ + "/link";
  ASSERT_EQ(symlink(path_.c_str(), link.c_str()), 0);
  EXPECT_THAT(std::string(Publish(At(link)).status().message()), HasSubstr("symbolic link"));
  ASSERT_TRUE(Unpublish(At(link)).ok());
  ASSERT_EQ(symlink(directory_.c_str(), (directory_ + "/up").c_str()), 0);
  EXPECT_THAT(std::string(Publish(At(directory_ + "/up/x")).status().message()), HasSubstr("symbolic link"));
  ASSERT_TRUE(Unpublish(At(link)).ok());
  EXPECT_THAT(std::string(Publish(At(directory_ + "/none/x")).status().message()),
              HasSubstr("the directory above it does not exist"));
  ASSERT_TRUE(Unpublish(At(link)).ok());
}

TEST_F(MounterPathTest, WhatIsMountedOverItIsNotUnmounted) {
  ASSERT_TRUE(Publish(At(path_)).ok());
  ASSERT_EQ(mount("other", path_.c_str(), "tmpfs", 0, nullptr), 0);
  const TimePoint began = Clock::now();
  EXPECT_TRUE(absl::IsFailedPrecondition(Unpublish(At(path_)).status()));
  EXPECT_LT(Clock::now() - began, kAtOnce) << "repeating it does not unmount the other";
  EXPECT_TRUE(loop_.RunUntil([&] {
    return Publication().last_error.find("something else is mounted") != std::string::npos;
  })) << Publication().last_error;
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0);
  EXPECT_THAT(MountsAt(path_), SizeIs(2));
  ASSERT_EQ(umount2(path_.c_str(), 0), 0);
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); }));
  EXPECT_THAT(MountsAt(path_), IsEmpty());
}

TEST_F(MounterPathTest, LazyDetachesItAndSaysThatItStillInUse) {
  ASSERT_TRUE(Publish(At(path_)).ok());
  const Holder holder([this] { return chdir(path_.c_str()) == 0; });
  UnpublishRequest undo = Undo(At(path_));
  undo.lazy = true;
  const auto result = loop_.Run(mounter_->Unpublish(undo, Soon()));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->still_in_use);
  EXPECT_THAT(MountsAt(path_), IsEmpty());
}

TEST_F(MounterPathTest, WhoUsesItThereIsNamedAndTheVolumeStays) {
  ASSERT_TRUE(Publish(At(path_)).ok());
  {
    const Holder holder([this] { return chdir(path_.c_str()) == 0; });
    UnpublishRequest undo = Undo(At(path_));
    ASSERT_FALSE(loop_.Run(mounter_->Unpublish(undo, Clock::now() + std::chrono::milliseconds(100))).ok());
    const std::string pid = fmt::format("pid {}", holder.pid());
    EXPECT_TRUE(loop_.RunUntil([&] { return Publication().last_error.find(pid) != std::string::npos; }))
        << Publication().last_error;
    EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0) << "it is still used";
    EXPECT_THAT(MountsAt(path_), SizeIs(1));
  }
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); }));
  EXPECT_THAT(MountsAt(path_), IsEmpty());
}

TEST_F(MounterPathTest, AnotherPathNeedsNoNewMountOfTheVolume) {
  const std::string other = directory_ + "/elsewhere";
  ASSERT_TRUE(Publish(At(path_)).ok());
  ASSERT_EQ(Publish(At(other)).status(), absl::OkStatus());
  EXPECT_THAT(MountsAt(path_), IsEmpty());
  EXPECT_THAT(MountsAt(other), SizeIs(1));
  EXPECT_LT(access(path_.c_str(), F_OK), 0);
  ASSERT_EQ(Publish(At("")).status(), absl::OkStatus());
  EXPECT_THAT(MountsAt(other), IsEmpty());
  EXPECT_LT(access(other.c_str(), F_OK), 0);
  EXPECT_TRUE(IsMounted(Publication().target_path));
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0);
  // A caller who repeats it says nothing of paths.
  ASSERT_EQ(Publish(At(path_)).status(), absl::OkStatus());
  PublishRequest caller = At("");
  caller.origin = Origin::kCaller;
  [[maybe_unused]] const auto repeated = Publish(caller);
  EXPECT_THAT(MountsAt(path_), SizeIs(1));
}

TEST_F(MounterPathTest, UnmountedBySomebodyItIsMountedAgain) {
  ASSERT_TRUE(Publish(At(path_)).ok());
  ASSERT_EQ(umount2(path_.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_TRUE(loop_.RunUntil([&] { return IsMounted(path_); }));
  EXPECT_TRUE(WaitMountedAt(path_));
  // Else the kernel says nothing of it, and it is mounted where it is missing.
  const auto told = StatMount(LookAt(path_)->mount_id);
  if (told.ok() && told->has_value()) EXPECT_THAT(EventTypes(), Contains("volume.path_lost"));
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
}

TEST_F(MounterPathTest, TheNextBerthdFindsIt) {
  ASSERT_TRUE(Publish(At(path_)).ok());
  const uint64_t id = LookAt(path_)->mount_id;
  Close();
  EXPECT_TRUE(IsMounted(path_));
  Open();
  EXPECT_TRUE(WaitMountedAt(path_));
  EXPECT_EQ(LookAt(path_)->mount_id, id);
  EXPECT_THAT(MountsAt(path_), SizeIs(1));
  // And if it went meanwhile, makes it again.
  Close();
  ASSERT_EQ(umount2(path_.c_str(), UMOUNT_NOFOLLOW), 0);
  Open();
  EXPECT_TRUE(WaitMountedAt(path_));
  EXPECT_THAT(MountsAt(path_), SizeIs(1));
  ASSERT_TRUE(Unpublish(At(path_)).ok());
  EXPECT_THAT(MountsAt(path_), IsEmpty());
}

TEST_F(MounterPathTest, AfterARebootItIsMountedAgain) {
  ASSERT_TRUE(Publish(At(path_)).ok());
  Close();
  ASSERT_EQ(umount2(path_.c_str(), UMOUNT_NOFOLLOW), 0);
  auto mounts = MountsBeneath(options_.state_dir + "/volumes", 1000);
  ASSERT_TRUE(mounts.ok());
  std::ranges::reverse(*mounts);
  for (const Mount& mount : *mounts) ASSERT_EQ(umount2(mount.target.c_str(), MNT_DETACH), 0);
  {
    auto journal = Journal::Open(loop_.executor(), {.path = options_.state_dir + "/journal.db"});
    ASSERT_TRUE(journal.ok());
    for (const auto& [key, row] : (*journal)->TakeLoaded()) {
      auto record = DecodeRecord(row);
      ASSERT_TRUE(record.ok());
      record->boot_id = "00000000-0000-0000-0000-000000000000";
      ASSERT_EQ(loop_.Run((*journal)->Put(key, EncodeRecord(*record))), absl::OkStatus());
    }
  }
  EXPECT_LT(open((path_ + "/file").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600), 0)
      << "a process writes before berthd has published";
  Open();
  EXPECT_TRUE(WaitMountedAt(path_));
  EXPECT_THAT(MountsAt(path_), SizeIs(1));
}

}  // namespace
}  // namespace berth
