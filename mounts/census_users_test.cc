#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/testing/holder.h"
#include "base/testing/test_area.h"
#include "mounts/testing/census_base.h"
#include "mounts/testing/fuse_server.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class CensusUsersTest : public CensusTestBase {};
INSTANTIATE_TEST_SUITE_P(Kernels, CensusUsersTest,
                         ::testing::Values(KernelAs::kThis, KernelAs::kBefore6_12, KernelAs::kBefore6_8),
                         KernelName);

TEST_P(CensusUsersTest, WhatProcessesHaveIsNamed) {
  const Holder file([this] { return OpenAndKeep(file_); });
  const Holder directory([this] { return chdir(target_.c_str()) == 0; });
  const Holder root([this] { return chroot(target_.c_str()) == 0; });
  const Holder mapping([this] {
    const int fd = open(file_.c_str(), O_RDONLY);
    const bool mapped = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED;
    return close(fd) == 0 && mapped;
  });
  const Holder gone([this] { return OpenAndKeep(file_) && unlink(file_.c_str()) == 0; });
  std::vector<Hold> holds = Holds();
  EXPECT_THAT(holds, UnorderedElementsAre(Is(file.pid(), HoldKind::kOpenFile),
                                          Is(directory.pid(), HoldKind::kWorkingDirectory, target_),
                                          Is(root.pid(), HoldKind::kRootDirectory, target_),
                                          Is(mapping.pid(), HoldKind::kMappedFile),
                                          Is(gone.pid(), HoldKind::kOpenFile, file_ + " (deleted)")));
  question_.objects[0].users = false;
  EXPECT_THAT(Holds(), IsEmpty()) << "not asked for";
}

TEST_P(CensusUsersTest, ARunningProgramIsNamed) {
  std::error_code error;
  const std::string program = target_ + "/sleep";
  ASSERT_TRUE(std::filesystem::copy_file("/bin/sleep", program, error)) << error.message();
  int running[2] = {-1, -1};
  ASSERT_EQ(pipe2(running, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    execl(program.c_str(), program.c_str(), "1000", nullptr);
    _exit(1);
  }
  close(running[1]);
  char byte = 0;
  EXPECT_EQ(read(running[0], &byte, 1), 0) << "closed by the exec";
  close(running[0]);
  EXPECT_THAT(Holds(), ElementsAre(Is(pid, HoldKind::kProgram, program)));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

// What berthd's helpers have open they have only to ask; whoever else runs that program has it for himself.
TEST_P(CensusUsersTest, Fault61AHelperIsNoHolderAndAnotherUsersIs) {
  for (const uid_t user : {uid_t{0}, uid_t{65534}}) {
    int running[2] = {-1, -1};
    ASSERT_EQ(pipe2(running, O_CLOEXEC), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      // It waits for a question whose end does not come.
      int question[2] = {-1, -1};
      const bool ready = OpenAndKeep(file_) && setresuid(user, user, user) == 0 && pipe(question) == 0 &&
                         dup2(question[0], STDIN_FILENO) == STDIN_FILENO;
      if (ready) execl(BERTH_MOUNT_HELPER, BERTH_MOUNT_HELPER, "census", nullptr);
      _exit(1);
    }
    close(running[1]);
    char byte = 0;
    EXPECT_EQ(read(running[0], &byte, 1), 0) << "closed by the exec";
    close(running[0]);
    if (user == 0) {
      EXPECT_THAT(Holds(), IsEmpty());
    } else {
      EXPECT_THAT(Holds(), ElementsAre(Is(pid, HoldKind::kOpenFile, file_)));
    }
    EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), 0) << "it is still there";
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

TEST_P(CensusUsersTest, Fault49ADescriptorInAThreadsOwnTableIsNamed) {
  auto holder = std::make_unique<Holder>([this] {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) return false;
    std::thread([this, write_end = ready[1]] {
      const char up = unshare(CLONE_FILES) == 0 && OpenAndKeep(file_) ? 'y' : 'n';
      if (write(write_end, &up, 1) == 1) pause();
    }).detach();
    char up = 0;
    return read(ready[0], &up, 1) == 1 && up == 'y';
  });
  ExpectHeldUntilItEnds(std::move(holder), HoldKind::kOpenFile);
}

// A mount that is in no namespace any more, of a directory in a file system with other users, too.
TEST_P(CensusUsersTest, Fault47AFileOnAMountThatWasLazilyUnmountedIsNamed) {
  ShareDirectory();
  auto holder = std::make_unique<Holder>([this] {
    return Unshared(MS_PRIVATE) && OpenAndKeep(file_) && umount2(target_.c_str(), MNT_DETACH) == 0 &&
           umount2(shared_.c_str(), MNT_DETACH) == 0;
  });
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  const auto holds = Holds();
  ASSERT_THAT(holds, ElementsAre(Is(holder->pid(), HoldKind::kOpenFile)));
  EXPECT_EQ(holds[0].keeper, "detached");
  holder.reset();
  ExpectFree();
}

TEST_P(CensusUsersTest, Fault47ADetachedWorkingDirectoryAndAMappedFileAreNamed) {
  ShareDirectory();
  auto holder = std::make_unique<Holder>([this] {
    const int fd = open(file_.c_str(), O_RDONLY);
    return Unshared(MS_PRIVATE) && chdir(target_.c_str()) == 0 &&
           mmap(nullptr, 4096, PROT_READ, MAP_SHARED, open("file", O_RDONLY), 0) != MAP_FAILED &&
           close(fd) == 0 && close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0 &&
           umount2(target_.c_str(), MNT_DETACH) == 0 && umount2(shared_.c_str(), MNT_DETACH) == 0;
  });
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_THAT(Holds(), IsSupersetOf({Is(holder->pid(), HoldKind::kWorkingDirectory),
                                     Is(holder->pid(), HoldKind::kMappedFile)}));
  holder.reset();
  ExpectFree();
}

TEST_P(CensusUsersTest, Fault47ACloneOfTheMountThatOnlyADescriptorKeepsIsNamed) {
  ShareDirectory();
  auto holder = std::make_unique<Holder>(
      [this] { return syscall(SYS_open_tree, AT_FDCWD, target_.c_str(), OPEN_TREE_CLONE) >= 0; });
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  ExpectHeldUntilItEnds(std::move(holder), HoldKind::kOpenFile);
}

TEST_P(CensusUsersTest, ADetachedMountFromBeforeOrAnotherVolumesIsNoHold) {
  ShareDirectory();
  const std::string other = NewTestDirectory();
  ASSERT_TRUE(Bind(shared_ + "/v2", other));
  const uint64_t id = IdOf(other);
  const Holder holder([&] { return OpenAndKeep(other); });
  ASSERT_EQ(umount2(other.c_str(), MNT_DETACH), 0);
  EXPECT_THAT(Holds(), SizeIs(1)) << "it may be the volume's";
  recorded_ = {id};
  EXPECT_THAT(Holds(), IsEmpty());
  recorded_.clear();
  BeginVolume();
  // Without unique ids it may be the volume's.
  EXPECT_THAT(Holds(), SizeIs(question_.objects[0].before == 0 ? 1 : 0));
}

// Each process lives only until it has made the next one.
TEST_P(CensusUsersTest, Fault47AProcessThatForksAllTheTimeIsSeen) {
  ShareDirectory();
  int stop[2];
  ASSERT_EQ(pipe2(stop, O_CLOEXEC | O_NONBLOCK), 0);
  if (fork() == 0) {
    if (!OpenAndKeep(file_)) _exit(1);
    close(stop[1]);
    char byte = 0;
    // Until the other end is closed.
    while (read(stop[0], &byte, 1) < 0) {
      if (fork() != 0) _exit(0);
    }
    _exit(0);
  }
  for (int round = 0; round < 20; ++round) {
    EXPECT_THAT(Holds(), Contains(Field(&Hold::kind, HoldKind::kOpenFile))) << round;
  }
  for (const int fd : stop) close(fd);
  while (waitpid(-1, nullptr, 0) > 0) {
  }
}

TEST_P(CensusUsersTest, Fault47WhatHasNoNameThatCanBeToldIsNamedNevertheless) {
  ShareDirectory();
  ExpectHeldUntilItEnds(std::make_unique<Holder>([this] { return OpenDeepFile(target_) >= 0; }),
                        HoldKind::kOpenFile);
  ExpectHeldUntilItEnds(std::make_unique<Holder>([this] {
                          const int directory = OpenDeep(target_);
                          return fchdir(directory) == 0 && close(directory) == 0;
                        }),
                        HoldKind::kWorkingDirectory);
  ExpectHeldUntilItEnds(std::make_unique<Holder>([this] {
                          const int file = OpenDeepFile(target_);
                          return mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0) != MAP_FAILED &&
                                 close(file) == 0;
                        }),
                        HoldKind::kMappedFile);
  ExpectHeldUntilItEnds(std::make_unique<Holder>([this] {
                          const std::string data = shared_ + "/v2";
                          if (!Unshared(MS_SLAVE)) return false;
                          const int directory = OpenDeep(target_);
                          return Bind(fmt::format("/proc/self/fd/{}", directory), data) &&
                                 close(directory) == 0;
                        }),
                        HoldKind::kNamespace);
}

TEST_P(CensusUsersTest, AHungFileSystemIsNotAsked) {
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  auto server = FuseServer::Mount(target_);
  ASSERT_TRUE(server.ok()) << server.status();
  const Holder holder([this] { return OpenAndKeep(target_ + "/hello") && chdir(target_.c_str()) == 0; });
  question_.objects = {ObjectAt(target_)};
  (*server)->Hang();
  EXPECT_THAT(Holds(), IsSupersetOf({Is(holder.pid(), HoldKind::kWorkingDirectory),
                                     Is(holder.pid(), HoldKind::kOpenFile)}));
  (*server)->Die();
}

}  // namespace
}  // namespace berth
