#include "mounts/census.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/safe_path.h"
#include "base/statmount.h"
#include "base/testing/holder.h"
#include "base/testing/run_on.h"
#include "base/testing/test_area.h"
#include "base/unique_fd.h"
#include "mounts/earlier_mounts.h"
#include "mounts/kernel_object.h"
#include "mounts/mount_tree.h"
#include "mounts/testing/fuse_server.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr std::chrono::seconds kTestLimit{20};

bool RunShell(const std::string& command) { return std::system(command.c_str()) == 0; }
bool OpenAndKeep(const std::string& path) { return open(path.c_str(), O_RDONLY) >= 0; }
std::string Text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
bool Unshared(unsigned long propagation) {
  return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | propagation, nullptr) == 0;
}
bool Bind(const std::string& from, const std::string& to) {
  return mount(from.c_str(), to.c_str(), nullptr, MS_BIND, nullptr) == 0;
}

// A volume tree with a file system mounted in it as the volume's. As on this kernel, and as on older ones.
class CensusTest : public ::testing::TestWithParam<KernelAs> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SetUpMountTree(tree_).ok());
    ASSERT_EQ(mkdir(volume_.c_str(), 0755), 0);
    ASSERT_EQ(mkdir(target_.c_str(), 0755), 0);
    ASSERT_EQ(mkdir(shared_.c_str(), 0755), 0);
    ASSERT_EQ(mount("x", target_.c_str(), "tmpfs", 0, nullptr), 0);
    ASSERT_EQ(mkdir((target_ + "/inner").c_str(), 0755), 0);
    std::ofstream file(file_);
    file << "content";
    ASSERT_TRUE(file.flush().good());
    question_.objects = {ObjectAt(target_)};
    census_.AsKernel(GetParam());
  }
  void TearDown() override {
    umount2(target_.c_str(), MNT_DETACH);
    umount2(shared_.c_str(), MNT_DETACH);
    umount2(tree_.c_str(), MNT_DETACH);
    RunOn(loop_, scope_.Join());
  }

  // As it is asked before the volume is unstaged.
  CensusObject ObjectAt(const std::string& path) {
    const auto objects = ObjectsAt(path, tree_);
    EXPECT_TRUE(objects.ok() && !objects->empty()) << objects.status();
    const KernelObject& object = objects->back();
    return {.block_device = object.block_device,
            .device = object.device,
            .inode_device = object.inode_device,
            .root = object.root,
            .fs_type = object.fs_type,
            .source = "",
            .ours = {IdOf(path)},
            .directory = volume_,
            .staged = true,
            .before = 0,
            .users = true};
  }
  static uint64_t IdOf(const std::string& path) {
    const uint64_t id = LookAt(path)->mount_id;
    const auto told = StatMount(id);
    return GetParam() == KernelAs::kBefore6_8 && told.ok() && told->has_value() ? (*told)->old_id : id;
  }
  // All mounts that there are now were there before the volume.
  void BeginVolume() {
    CensusObject& object = question_.objects[0];
    object.before = GetParam() == KernelAs::kBefore6_8 ? 0 : MountIdNow(tree_);
    object.earlier.clear();
    if (object.before == 0) object.earlier = FingerprintsOutside(tree_);
  }
  // A directory of a file system that others use, too, bound to the volume's place.
  void ShareDirectory() {
    ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
    ASSERT_EQ(mount("shared", shared_.c_str(), "tmpfs", 0, nullptr), 0);
    for (const char* name : {"/v1", "/v1/inner", "/v2"}) ASSERT_EQ(mkdir((shared_ + name).c_str(), 0755), 0);
    ASSERT_TRUE(Bind(shared_ + "/v1", target_));
    question_.objects = {ObjectAt(target_)};
    std::ofstream(file_) << "content";
  }
  CensusAnswer Take() {
    CensusAnswer answer = RunOn(loop_, census_.Take(question_, Clock::now() + kTestLimit));
    EXPECT_EQ(answer.incomplete, "");
    return answer;
  }
  std::vector<Hold> Holds() { return Take().holds; }
  // Held while the holder is there, and free afterwards.
  void ExpectHeldUntilItEnds(std::unique_ptr<Holder> holder, HoldKind kind) {
    EXPECT_THAT(Holds(), Contains(Is(holder->pid(), kind)));
    holder.reset();
    ExpectFree();
  }
  // At once, unless another test's census has a descriptor of what just ended.
  void ExpectSoon(const testing::Matcher<const std::vector<Hold>&>& expected) {
    const TimePoint deadline = Clock::now() + kTestLimit;
    std::vector<Hold> holds = Holds();
    while (!expected.Matches(holds) && Clock::now() < deadline) holds = Holds();
    EXPECT_THAT(holds, expected);
  }
  void ExpectFree() { ExpectSoon(IsEmpty()); }
  static testing::Matcher<Hold> Is(pid_t pid, HoldKind kind) {
    return AllOf(Field(&Hold::pid, pid), Field(&Hold::kind, kind));
  }
  static testing::Matcher<Hold> Is(pid_t pid, HoldKind kind, const std::string& where) {
    return AllOf(Is(pid, kind), Field(&Hold::where, where));
  }

  std::string tree_ = NewTestDirectory();
  std::string volume_ = tree_ + "/volume";
  std::string target_ = volume_ + "/target";
  std::string file_ = target_ + "/file";
  std::string shared_ = NewTestDirectory() + "/shared";
  CensusQuestion question_;
  std::vector<uint64_t> recorded_;
  asio::io_context loop_;
  TaskScope scope_{loop_.get_executor(), "test"};
  MountHelper helper_{BERTH_MOUNT_HELPER, scope_};
  Census census_{loop_.get_executor(), scope_, helper_,
                 [this](const std::set<dev_t>& /*devices*/) { return recorded_; }};
};

std::string NameOf(const testing::TestParamInfo<KernelAs>& info) {
  constexpr std::array kNames = {"AsThis", "Before6_12", "Before6_8"};
  return kNames.at(static_cast<size_t>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Kernels, CensusTest,
                         testing::Values(KernelAs::kThis, KernelAs::kBefore6_12, KernelAs::kBefore6_8),
                         NameOf);

// --- mounts
// -------------------------------------------------------------------------------------------------

TEST_P(CensusTest, ItsOwnMountIsNoHoldWhileItIsStagedAndOneAfterwards) {
  EXPECT_THAT(Holds(), IsEmpty());
  question_.objects[0].staged = false;
  EXPECT_THAT(Holds(), ElementsAre(Is(0, HoldKind::kMount, target_)));
}

TEST_P(CensusTest, ACopyThatReceivesOurUnmountsIsNoHold) {
  const Holder follower([] { return Unshared(MS_SLAVE); });
  EXPECT_THAT(Holds(), IsEmpty());
}

TEST_P(CensusTest, ACopyOfACopyThatReceivesOurUnmountsIsNoHold) {
  const Holder follower([] {
    // As a container engine in a container does: shared again, then cloned as a slave of that.
    return Unshared(MS_SLAVE) && mount(nullptr, "/", nullptr, MS_REC | MS_SHARED, nullptr) == 0 &&
           Unshared(MS_SLAVE);
  });
  EXPECT_THAT(Holds(), IsEmpty());
}

TEST_P(CensusTest, Fault25APrivateCopyIsAHoldAndItsNamespaceIsNamed) {
  ExpectHeldUntilItEnds(std::make_unique<Holder>([] { return Unshared(MS_PRIVATE); }), HoldKind::kNamespace);
}

// As in a container, where newer kernels do not list mount namespaces.
TEST_P(CensusTest, Fault25InAPidNamespaceOfItsOwnWhatIsSeenThereCounts) {
  const UniqueFd before(open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(unshare(CLONE_NEWPID), 0);
  const Holder init([] { return true; });
  ExpectHeldUntilItEnds(std::make_unique<Holder>([] { return Unshared(MS_PRIVATE); }), HoldKind::kNamespace);
  ASSERT_EQ(setns(before.get(), CLONE_NEWPID), 0);
}

TEST_P(CensusTest, ABindElsewhereInANamespaceThatFollowsIsAHold) {
  const std::string data = NewTestDirectory();
  ExpectHeldUntilItEnds(std::make_unique<Holder>([&] { return Unshared(MS_SLAVE) && Bind(target_, data); }),
                        HoldKind::kNamespace);
}

TEST_P(CensusTest, AMountOfADirectoryInItIsAHold) {
  const std::string data = NewTestDirectory();
  ExpectHeldUntilItEnds(std::make_unique<Holder>([&] {
                          return Unshared(MS_PRIVATE) && Bind(target_ + "/inner", data) &&
                                 umount2(target_.c_str(), MNT_DETACH) == 0;
                        }),
                        HoldKind::kNamespace);
}

TEST_P(CensusTest, ABindInOurOwnNamespaceIsAHoldWhereverItLies) {
  for (const std::string& place : {NewTestDirectory(), tree_ + "/another-volume"}) {
    mkdir(place.c_str(), 0755);
    ASSERT_TRUE(Bind(target_, place));
    EXPECT_THAT(Holds(), ElementsAre(Is(0, HoldKind::kMount, place)));
    ASSERT_EQ(umount2(place.c_str(), UMOUNT_NOFOLLOW), 0);
  }
}

// Fault 50: the state directory is a bind mount of another disk, which receives each mount and unmount.
TEST_P(CensusTest, Fault50ACopyInOurOwnNamespaceThatReceivesOurUnmountsIsNoHold) {
  const std::string copy = NewTestDirectory();
  ASSERT_TRUE(Bind(tree_, copy));
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_EQ(mount("x", target_.c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_TRUE(LookAt(copy + "/volume/target")->mount_root) << "it was copied";
  question_.objects = {ObjectAt(target_)};
  EXPECT_THAT(Holds(), IsEmpty());
  // One that was made private does not receive them any more.
  ASSERT_EQ(mount(nullptr, copy.c_str(), nullptr, MS_PRIVATE, nullptr), 0);
  EXPECT_THAT(Holds(), ElementsAre(Is(0, HoldKind::kMount, copy + "/volume/target")));
  ASSERT_EQ(umount2((copy + "/volume/target").c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_EQ(umount2(copy.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_P(CensusTest, ARecordedMountOfAnotherVolumeAndItsCopiesAreNoHolds) {
  ShareDirectory();
  const std::string other = tree_ + "/other";
  ASSERT_EQ(mkdir(other.c_str(), 0755), 0);
  ASSERT_TRUE(Bind(shared_ + "/v1", other));
  const Holder follower([] { return Unshared(MS_SLAVE); });
  EXPECT_THAT(Holds(), Contains(Is(0, HoldKind::kMount, other)));
  recorded_ = {IdOf(other)};
  const CensusAnswer answer = Take();
  EXPECT_THAT(answer.holds, IsEmpty());
  EXPECT_THAT(answer.elsewhere, ElementsAre(0U));
  ASSERT_EQ(umount2(other.c_str(), UMOUNT_NOFOLLOW), 0);
}

// Without unique ids the number of a recorded mount that has gone may be a consumer's bind by now.
TEST_P(CensusTest, ARecordedNumberOutsideOfTheTreeIsBelievedOnlyIfItIsUnique) {
  ShareDirectory();
  const std::string outside = NewTestDirectory();
  ASSERT_TRUE(Bind(shared_ + "/v1", outside));
  recorded_ = {IdOf(outside)};
  const auto told = StatMount(LookAt(outside)->mount_id);
  const bool unique = GetParam() != KernelAs::kBefore6_8 && told.ok() && told->has_value();
  EXPECT_THAT(Holds(), SizeIs(unique ? 0 : 1));
  ASSERT_EQ(umount2(outside.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_P(CensusTest, WhatWasMountedBeforeIsNoHold) {
  ShareDirectory();
  const std::string before = NewTestDirectory();
  const std::string after = NewTestDirectory();
  ASSERT_TRUE(Bind(shared_ + "/v1", before));
  BeginVolume();
  ASSERT_TRUE(Bind(shared_ + "/v1", after));
  EXPECT_THAT(Holds(), ElementsAre(Is(0, HoldKind::kMount, after)));
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  question_.objects[0].staged = false;
  EXPECT_THAT(Holds(), ElementsAre(Is(0, HoldKind::kMount, after)));
  // Another one has its place.
  ASSERT_EQ(umount2(before.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(Bind(shared_ + "/v1/inner", before));
  EXPECT_THAT(Holds(), SizeIs(2));
  for (const std::string& each : {before, after}) ASSERT_EQ(umount2(each.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_P(CensusTest, ADirectoryThatWasRenamedIsStillTheVolumes) {
  ShareDirectory();
  ASSERT_EQ(rename((shared_ + "/v1").c_str(), (shared_ + "/renamed").c_str()), 0);
  ExpectHeldUntilItEnds(std::make_unique<Holder>([] { return Unshared(MS_PRIVATE); }), HoldKind::kNamespace);
}

// What was mounted there, and is not known: its copies in other namespaces lie at the same directory.
TEST_P(CensusTest, Fault51WhateverLiesOnADirectoryIsAHold) {
  const auto tree = ObjectsAt(tree_, tree_);
  ASSERT_TRUE(tree.ok()) << tree.status();
  question_.objects = {{.place = true,
                        .device = tree->front().device,
                        .root = "/volume",
                        .directory = volume_,
                        .staged = true}};
  const Holder follower([] { return Unshared(MS_SLAVE); });
  EXPECT_THAT(Holds(), IsEmpty());
  auto holder = std::make_unique<Holder>([] { return Unshared(MS_PRIVATE); });
  EXPECT_THAT(Holds(), ElementsAre(Is(holder->pid(), HoldKind::kNamespace, target_)));
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  question_.objects[0].staged = false;
  ExpectHeldUntilItEnds(std::move(holder), HoldKind::kNamespace);
  question_.objects[0].root = "/vol";
  EXPECT_THAT(Holds(), IsEmpty()) << "another directory";
}

TEST_P(CensusTest, TheNeighbourOfADirectoryIsNotTheVolumes) {
  ShareDirectory();
  const std::string data = NewTestDirectory();
  ASSERT_TRUE(Bind(shared_ + "/v2", data));
  {
    const Holder neighbour([&] { return OpenAndKeep(data) && chdir((shared_ + "/v2").c_str()) == 0; });
    const CensusAnswer answer = Take();
    EXPECT_THAT(answer.holds, IsEmpty());
    EXPECT_THAT(answer.elsewhere, ElementsAre(0U));
  }
  ASSERT_EQ(umount2(data.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_P(CensusTest, ADeviceNumberThatIsAnothersByNowIsReported) {
  question_.objects[0].fs_type = "nfs4";
  const CensusAnswer answer = Take();
  EXPECT_THAT(answer.holds, IsEmpty());
  EXPECT_THAT(answer.elsewhere, ElementsAre(0U));
}

TEST_P(CensusTest, OfANetworkFileSystemTheSourceNamesTheDirectory) {
  // No server here: the words are compared, whatever the type.
  question_.objects[0].staged = false;
  for (const auto& [source, counts] :
       {std::pair("x", true), std::pair("x/deeper", false), std::pair("y", false)}) {
    question_.objects[0].source = source;
    EXPECT_EQ(Holds().size(), counts ? 1U : 0U) << source;
  }
}

TEST_P(CensusTest, Fault47ANamespaceOfOneThreadIsAHold) {
  auto holder = std::make_unique<Holder>([] {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) return false;
    std::thread([write_end = ready[1]] {
      const char up = Unshared(MS_PRIVATE) ? 'y' : 'n';
      if (write(write_end, &up, 1) == 1) pause();
    }).detach();
    char up = 0;
    return read(ready[0], &up, 1) == 1 && up == 'y';
  });
  ExpectHeldUntilItEnds(std::move(holder), HoldKind::kNamespace);
}

TEST_P(CensusTest, Fault47AProcessWhoseFirstThreadHasEndedIsAHold) {
  ShareDirectory();
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    std::thread([this, write_end = ready[1]] {
      const bool held = OpenAndKeep(file_);
      // Once the first thread has ended.
      while (syscall(SYS_tgkill, getpid(), getpid(), 0) == 0 &&
             Text(fmt::format("/proc/self/task/{}/stat", getpid())).find(") Z") == std::string::npos) {
        std::this_thread::yield();
      }
      if (write(write_end, held ? "y" : "n", 1) == 1) pause();
    }).detach();
    syscall(SYS_exit, 0);
  }
  char held = 0;
  EXPECT_EQ(read(ready[0], &held, 1), 1);
  EXPECT_EQ(held, 'y');
  EXPECT_THAT(Holds(), ElementsAre(Is(pid, HoldKind::kOpenFile, file_)));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  ExpectFree();
  for (const int fd : ready) close(fd);
}

TEST_P(CensusTest, Fault47ANamespaceThatOnlyAFileKeepsIsAHold) {
  const std::string kept = NewTestDirectory() + "/ns";
  ASSERT_EQ(close(open(kept.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
  // A namespace with a lower number than ours cannot be mounted here, and each CPU gives out numbers.
  bool bound = false;
  for (int i = 0; i < 100 && !bound; ++i) {
    const Holder made([] { return Unshared(MS_PRIVATE); });
    bound = Bind(fmt::format("/proc/{}/ns/mnt", made.pid()), kept);
  }
  ASSERT_TRUE(bound) << strerror(errno);
  ExpectSoon(ElementsAre(AllOf(Is(0, HoldKind::kNamespace, target_), Field(&Hold::keeper, kept))));
  // Another test's census may be looking at it.
  ASSERT_EQ(umount2(kept.c_str(), MNT_DETACH), 0);
  ExpectFree();
}

TEST_P(CensusTest, Fault47AChrootedProcessInAPrivateNamespaceIsAHold) {
  const std::string root = NewTestDirectory();
  ExpectHeldUntilItEnds(std::make_unique<Holder>([&] {
                          return Unshared(MS_PRIVATE) && OpenAndKeep(file_) && chroot(root.c_str()) == 0 &&
                                 chdir("/") == 0;
                        }),
                        HoldKind::kNamespace);
}

// --- users
// --------------------------------------------------------------------------------------------------

TEST_P(CensusTest, WhatProcessesHaveIsNamed) {
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

TEST_P(CensusTest, ARunningProgramIsNamed) {
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

TEST_P(CensusTest, Fault49ADescriptorInAThreadsOwnTableIsNamed) {
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
TEST_P(CensusTest, Fault47AFileOnAMountThatWasLazilyUnmountedIsNamed) {
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

TEST_P(CensusTest, Fault47ADetachedWorkingDirectoryAndAMappedFileAreNamed) {
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

TEST_P(CensusTest, Fault47ACloneOfTheMountThatOnlyADescriptorKeepsIsNamed) {
  ShareDirectory();
  auto holder = std::make_unique<Holder>(
      [this] { return syscall(SYS_open_tree, AT_FDCWD, target_.c_str(), OPEN_TREE_CLONE) >= 0; });
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  ExpectHeldUntilItEnds(std::move(holder), HoldKind::kOpenFile);
}

TEST_P(CensusTest, ADetachedMountFromBeforeOrAnotherVolumesIsNoHold) {
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
TEST_P(CensusTest, Fault47AProcessThatForksAllTheTimeIsSeen) {
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

TEST_P(CensusTest, Fault47AnOverlayWithALayerInItIsNamed) {
  ShareDirectory();
  for (const char* name : {"/up", "/work"}) ASSERT_EQ(mkdir((target_ + name).c_str(), 0755), 0);
  const std::string low = NewTestDirectory();
  const std::string over = NewTestDirectory();
  const std::string options = fmt::format("lowerdir={0},upperdir={1}/up,workdir={1}/work", low, target_);
  ASSERT_EQ(mount("overlay", over.c_str(), "overlay", 0, options.c_str()), 0);
  EXPECT_THAT(Holds(), ElementsAre(Is(0, HoldKind::kOverlay, over)));
  // Also when what it was mounted from is gone.
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_THAT(Holds(), ElementsAre(Is(0, HoldKind::kOverlay, over)));
  ASSERT_EQ(umount2(over.c_str(), UMOUNT_NOFOLLOW), 0);
  ExpectFree();
}

TEST_P(CensusTest, ASwapFileAndALoopDeviceOnAFileInItAreNamed) {
  // On a file system that can have swap files.
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  const std::string image = NewTestDirectory() + "/image";
  ASSERT_TRUE(RunShell(
      fmt::format("truncate -s 32M {0} && mkfs.ext4 -q {0} && mount -o loop {0} {1}", image, target_)));
  question_.objects = {ObjectAt(target_)};
  const std::string swap = target_ + "/swap";
  ASSERT_TRUE(
      RunShell(fmt::format("dd if=/dev/zero of={0} bs=1M count=4 2>/dev/null && chmod 600 {0} && "
                           "mkswap -q {0} >/dev/null && swapon {0}",
                           swap)));
  EXPECT_THAT(Holds(), ElementsAre(Is(0, HoldKind::kSwap, swap)));
  ASSERT_TRUE(RunShell("swapoff " + swap));
  ASSERT_TRUE(RunShell(fmt::format("losetup --find --show {} > {}.loop", swap, image)));
  EXPECT_THAT(Holds(), ElementsAre(Field(&Hold::kind, HoldKind::kLoop)));
  ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {}.loop)", image)));
  ExpectFree();
}

TEST_P(CensusTest, Fault49ALoopDeviceOnAFileThatHasNoNameAnyMoreIsNamed) {
  ShareDirectory();
  const std::string other = shared_ + "/v2/file";
  ASSERT_TRUE(RunShell(fmt::format("truncate -s 1M {} {}", file_, other)));
  const auto over = [&](const std::string& file) {
    const std::string name = NewTestDirectory() + "/loop";
    EXPECT_TRUE(RunShell(fmt::format("losetup --find --show {} > {}", file, name)));
    return name;
  };
  const std::string elsewhere = over(other);
  const std::string ours = over(file_);
  ASSERT_EQ(umount2(target_.c_str(), MNT_DETACH), 0);
  question_.objects[0].staged = false;
  EXPECT_THAT(Holds(), ElementsAre(Field(&Hold::kind, HoldKind::kLoop)));
  ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {})", ours)));
  ExpectFree();
  ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {})", elsewhere)));
}

// A container that attaches a loop device to a file in a volume, and leaves it behind when it ends; and one
// that has another directory of the same file system.
TEST_P(CensusTest, Fault49ALoopDeviceOfAContainerIsNamedAsLongAsItIsThere) {
  ShareDirectory();
  const std::string elsewhere = NewTestDirectory();
  const std::string name = elsewhere + "-loop";
  const auto container_on = [&](const std::string& directory) {
    return std::make_unique<Holder>([&, directory] {
      return Unshared(MS_PRIVATE) && Bind(directory, elsewhere) &&
             umount2(target_.c_str(), MNT_DETACH) == 0 && umount2(shared_.c_str(), MNT_DETACH) == 0 &&
             RunShell(fmt::format("truncate -s 1M {0}/file && losetup --find --show {0}/file > {1}",
                                  elsewhere, name));
    });
  };
  const std::string detach = fmt::format("losetup --detach $(cat {})", name);
  auto container = container_on(target_);
  const auto loop = Field(&Hold::kind, HoldKind::kLoop);
  EXPECT_THAT(Holds(), Contains(Is(container->pid(), HoldKind::kNamespace)));
  container.reset();
  ExpectSoon(ElementsAre(loop));
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  question_.objects[0].staged = false;
  EXPECT_THAT(Holds(), ElementsAre(loop));
  ASSERT_TRUE(RunShell(detach));
  ExpectFree();
  ASSERT_TRUE(Bind(shared_ + "/v1", target_));
  container = container_on(shared_ + "/v2");
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  ExpectFree();
  // Left behind, too, while the other directory has a mount of its own.
  const std::string other = NewTestDirectory();
  ASSERT_TRUE(Bind(shared_ + "/v2", other));
  container.reset();
  ExpectFree();
  ASSERT_EQ(umount2(other.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(RunShell(detach));
}

TEST_P(CensusTest, Fault49WhoHasABlockDeviceIsNamedWhateverItsName) {
  const std::string directory = NewTestDirectory();
  ASSERT_TRUE(RunShell(
      fmt::format("truncate -s 8M {0}/image && losetup --find --show {0}/image > {0}/loop", directory)));
  std::string device;
  std::getline(std::ifstream(directory + "/loop"), device);
  const dev_t number = LookAt(device)->special;
  question_.objects = {{.block_device = true, .device = number, .users = true}};
  // Another test's losetup opens it for a moment, too: to see whether it is free.
  ExpectFree();
  // On a disk: a node need not lie where devices usually do.
  const std::string disk = NewTestDirectory();
  ASSERT_TRUE(RunShell(fmt::format(
      "truncate -s 16M {0}/disk && mkfs.ext4 -q {0}/disk && mount -o loop {0}/disk {1}", directory, disk)));
  const std::string node = disk + "/node";
  ASSERT_EQ(mknod(node.c_str(), S_IFBLK | 0600, number), 0);
  ExpectHeldUntilItEnds(std::make_unique<Holder>([&] { return OpenAndKeep(node); }), HoldKind::kOpenFile);
  ExpectHeldUntilItEnds(std::make_unique<Holder>([&] {
                          const int fd = open(node.c_str(), O_RDONLY);
                          const bool mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED;
                          return close(fd) == 0 && mapped;
                        }),
                        HoldKind::kMappedFile);
  ASSERT_TRUE(RunShell(fmt::format("losetup --find --show {} > {}/above", node, directory)));
  ExpectSoon(ElementsAre(Field(&Hold::kind, HoldKind::kLoop)));
  ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {}/above)", directory)));
  ExpectFree();
  ASSERT_EQ(umount2(disk.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(RunShell("losetup --detach " + device));
}

// A directory in `path` with a name of more than 4,096 bytes.
int OpenDeep(const std::string& path) {
  int at = open(path.c_str(), O_RDONLY | O_DIRECTORY);
  const std::string name(250, 'd');
  for (int depth = 0; depth < 20; ++depth) {
    mkdirat(at, name.c_str(), 0755);
    const int inner = openat(at, name.c_str(), O_RDONLY | O_DIRECTORY);
    close(at);
    at = inner;
  }
  return at;
}
int OpenDeepFile(const std::string& path) {
  const int directory = OpenDeep(path);
  const int file = openat(directory, "file", O_CREAT | O_RDWR, 0600);
  return close(directory) == 0 && ftruncate(file, 1 << 20) == 0 ? file : -1;
}

TEST_P(CensusTest, Fault47WhatHasNoNameThatCanBeToldIsNamedNevertheless) {
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

TEST_P(CensusTest, Fault49ALoopDeviceOnAFileWhoseNameCannotBeToldIsNamed) {
  ShareDirectory();
  const int file = OpenDeepFile(target_);
  ASSERT_GE(file, 0);
  const UniqueFd control(open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  loop_config config{.fd = static_cast<uint32_t>(file)};
  std::string name;
  int configured = -1;
  // Another test may take the same one.
  for (int tries = 0; tries < 100 && configured != 0; ++tries) {
    name = fmt::format("/dev/loop{}", ioctl(control.get(), LOOP_CTL_GET_FREE));
    const UniqueFd loop(open(name.c_str(), O_RDWR | O_CLOEXEC));
    configured = ioctl(loop.get(), LOOP_CONFIGURE, &config);
  }
  ASSERT_EQ(configured, 0);
  ASSERT_EQ(close(file), 0);
  EXPECT_THAT(Holds(), ElementsAre(Field(&Hold::kind, HoldKind::kLoop)));
  ASSERT_TRUE(RunShell("losetup --detach " + name));
  ExpectFree();
}

TEST_P(CensusTest, AHungFileSystemIsNotAsked) {
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

// --- limits
// -------------------------------------------------------------------------------------------------

// A process that changes its mappings, waits for a FUSE server meanwhile, and keeps everybody from reading
// them.
class StuckMapper {
 public:
  explicit StuckMapper(const FuseServer& server, const std::string& file) {
    int go[2] = {-1, -1};
    int ready[2] = {-1, -1};
    EXPECT_TRUE(pipe2(go, O_CLOEXEC) == 0 && pipe2(ready, O_CLOEXEC) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      const int fd = open(file.c_str(), O_RDWR | O_CLOEXEC);
      void* const at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      if (at == MAP_FAILED || close(fd) != 0) _exit(1);
      *static_cast<volatile char*>(at) = 'H';
      char byte = 0;
      if (write(ready[1], "x", 1) != 1 || read(go[0], &byte, 1) != 1) _exit(1);
      // What was written goes to the server before the mapping does.
      mmap(at, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
      while (true) pause();
    }
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1) << "it has mapped the file";
    server.Hang();
    EXPECT_EQ(write(go[1], "x", 1), 1);
    for (const int fd : {go[0], go[1], ready[0], ready[1]}) close(fd);
    const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
    while (!server.HoldsRequest() && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(server.HoldsRequest()) << "it does not wait for the server";
  }
  ~StuckMapper() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  StuckMapper(const StuckMapper&) = delete;
  StuckMapper& operator=(const StuckMapper&) = delete;
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST_P(CensusTest, Fault24MappingsThatCannotBeReadHideNobody) {
  const auto server = FuseServer::Mount(NewTestDirectory());
  ASSERT_TRUE(server.ok()) << server.status();
  {
    const StuckMapper stuck(**server, (*server)->path() + "/cached");
    // Begun later, so that it comes later in every list.
    const Holder mapping([this] {
      const int fd = open(file_.c_str(), O_RDONLY);
      const bool mapped = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED;
      return close(fd) == 0 && mapped;
    });
    ASSERT_GT(mapping.pid(), stuck.pid());
    const auto answer = RunOn(loop_, helper_.TakeCensus(question_, Clock::now() + std::chrono::seconds(4)));
    // Older kernels, 6.1 for one, let others read such a process's mappings.
    EXPECT_THAT(answer.incomplete, AnyOf(IsEmpty(), HasSubstr("hangs in it")));
    EXPECT_THAT(answer.holds, ElementsAre(Is(mapping.pid(), HoldKind::kMappedFile, file_)));
    (*server)->Resume();
  }
}

TEST_P(CensusTest, OfOneObjectNoMoreHoldsAreReportedThanCount) {
  std::list<Holder> holders;
  for (size_t i = 0; i < kHoldsPerObject + 4; ++i)
    holders.emplace_back([this] { return OpenAndKeep(file_); });
  EXPECT_THAT(Holds(), SizeIs(kHoldsPerObject));
}

// As many and as long names as users like to have of their volumes: the others' part is whole.
TEST_P(CensusTest, LongNamesOfOneVolumeHideNobodyElses) {
  const Holder holder([this] {
    for (size_t i = 0; i < kHoldsPerObject; ++i) {
      std::string path = fmt::format("{}/{}", target_, i);
      for (int depth = 0; depth < 15; ++depth) {
        if (mkdir(path.c_str(), 0755) != 0) return false;
        path += "/" + std::string(240, '\1');
      }
      if (open(path.c_str(), O_CREAT | O_RDWR, 0600) < 0) return false;
    }
    return true;
  });
  question_.objects.resize(30, question_.objects[0]);
  EXPECT_THAT(Holds(), SizeIs(question_.objects.size() * kHoldsPerObject));
}

TEST_P(CensusTest, AQuestionMayNameVeryManyMounts) {
  const Holder holder([this] { return OpenAndKeep(file_); });
  for (uint64_t id = 0; id < 200'000; ++id) recorded_.push_back((uint64_t{1} << 40) + id);
  EXPECT_THAT(Holds(), ElementsAre(Is(holder.pid(), HoldKind::kOpenFile)));
}

TEST_P(CensusTest, ReleasesAtOnceShareAHelperAndGetTheirOwnPart) {
  constexpr size_t kReleases = 50;
  const Holder holder([this] { return OpenAndKeep(file_); });
  size_t held = 0;
  size_t free = 0;
  TaskScope releases(loop_.get_executor(), "releases");
  const auto release = [](Census* from, CensusQuestion question, size_t* held_count,
                          size_t* free_count) -> Awaitable<void> {
    const auto answer = co_await from->Take(std::move(question), Clock::now() + kTestLimit);
    if (answer.holds.size() == 1 && answer.holds[0].object == 0) ++*held_count;
    if (answer.incomplete.empty() && answer.holds.empty()) ++*free_count;
  };
  CensusQuestion other = question_;
  other.objects[0].device = makedev(0, 0xFFFFF);
  for (size_t i = 0; i < kReleases; ++i) {
    releases.Spawn("release", release(&census_, i % 2 == 0 ? question_ : other, &held, &free));
  }
  RunOn(loop_, releases.WaitEmpty());
  EXPECT_EQ(held, kReleases / 2);
  EXPECT_EQ(free, kReleases / 2);
  EXPECT_LE(census_.taken(), 2U) << "one may have begun before the others came";
}

TEST_P(CensusTest, AHelperThatDoesNotAnswerIsNotTakenForNoHolds) {
  const CensusAnswer late = RunOn(loop_, helper_.TakeCensus(question_, Clock::now()));
  EXPECT_THAT(late.incomplete, HasSubstr("look for who has volumes"));
  MountHelper missing("/nowhere/berth-mount-helper", scope_);
  const CensusAnswer failed = RunOn(loop_, missing.TakeCensus(question_, Clock::now() + kTestLimit));
  EXPECT_THAT(failed.incomplete, HasSubstr("/nowhere/berth-mount-helper"));
}

// Whatever it is that cannot be opened for want of a descriptor.
TEST_P(CensusTest, Fault29WithTooFewDescriptorsItDoesNotMissAHold) {
  question_.kernel = GetParam();
  const std::string script = NewTestDirectory() + "/helper";
  const auto count_holds = [&](const Holder& holder) {
    int complete = 0;
    for (int limit = 3; limit < 30; ++limit) {
      std::ofstream(script) << fmt::format("#!/bin/sh\nulimit -n {}; exec {} \"$@\"\n", limit,
                                           BERTH_MOUNT_HELPER);
      EXPECT_EQ(chmod(script.c_str(), 0700), 0);
      MountHelper helper(script, scope_);
      const CensusAnswer answer = RunOn(loop_, helper.TakeCensus(question_, Clock::now() + kTestLimit));
      if (!answer.incomplete.empty()) continue;
      ++complete;
      EXPECT_THAT(answer.holds, Contains(Field(&Hold::pid, holder.pid()))) << limit;
    }
    return complete;
  };
  const Holder file([this] { return OpenAndKeep(file_); });
  EXPECT_GT(count_holds(file), 0);
  const Holder directory([this] { return chdir(target_.c_str()) == 0; });
  EXPECT_GT(count_holds(directory), 0);
  const Holder mapping([this] {
    const int fd = open(file_.c_str(), O_RDONLY);
    return mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED && close(fd) == 0;
  });
  EXPECT_GT(count_holds(mapping), 0);
  const Holder elsewhere([] { return Unshared(MS_PRIVATE); });
  EXPECT_GT(count_holds(elsewhere), 0);
}

TEST_P(CensusTest, WhatIsNotDoneInTimeIsIncomplete) {
  EXPECT_THAT(RunOn(loop_, census_.Take(question_, Clock::now())).incomplete, HasSubstr("not done in time"));
}

}  // namespace
}  // namespace berth
