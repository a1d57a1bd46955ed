#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <list>
#include <string>
#include <thread>
#include <utility>

#include "base/testing/holder.h"
#include "base/testing/run_on.h"
#include "base/testing/test_area.h"
#include "base/unique_fd.h"
#include "mounts/census_mounts.h"
#include "mounts/testing/census_base.h"
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
using ::testing::SizeIs;

class CensusTest : public CensusTestBase {};
INSTANTIATE_TEST_SUITE_P(Kernels, CensusTest,
                         ::testing::Values(KernelAs::kThis, KernelAs::kBefore6_12, KernelAs::kBefore6_8),
                         KernelName);

// In a pid or user namespace the kernel refuses the list, and the tests of the newest form would all be tests
// of the one before.
TEST(CensusKernelTest, MountNamespacesAreListedIfTheKernelCanDoThat) {
  utsname system{};
  ASSERT_EQ(uname(&system), 0);
  int major = 0;
  int minor = 0;
  ASSERT_EQ(std::sscanf(system.release, "%d.%d", &major, &minor), 2) << system.release;
  const UniqueFd own(open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(MayListNamespaces(own.get()), std::pair(major, minor) >= std::pair(6, 12)) << system.release;
}

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

// Two file systems without a disk may have one number, one after the other; what is open on the second is not
// the first's.
TEST_P(CensusTest, Fault64AFileSystemThatHasTheNumberByNowIsKnownByItsSource) {
  CensusObject& object = question_.objects[0];
  object.staged = false;
  object.users = true;
  object.ours.clear();
  const Holder holder([this] { return OpenAndKeep(file_); });
  object.source_fingerprint = SourceFingerprint("another");
  const CensusAnswer answer = Take();
  EXPECT_THAT(answer.holds, IsEmpty());
  EXPECT_THAT(answer.elsewhere, ElementsAre(0U));
  for (const uint64_t same : {SourceFingerprint("x"), uint64_t{0}}) {
    object.source_fingerprint = same;
    EXPECT_THAT(Holds(), Contains(Is(holder.pid(), HoldKind::kOpenFile))) << "the same, or not known";
  }
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
  const std::string script = NewTestDirectory() + "/helper";
  ASSERT_TRUE(RunShell("printf '#!/bin/sh\\nexec sleep 1000\\n' > " + script + " && chmod +x " + script));
  MountHelper silent(script, scope_);
  const CensusAnswer late =
      RunOn(loop_, silent.TakeCensus(question_, Clock::now() + std::chrono::milliseconds(300)));
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
