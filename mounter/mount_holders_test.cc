#include "mounter/mount_holders.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <list>
#include <thread>

#include "base/safe_path.h"
#include "base/testing.h"
#include "mounter/testing/fuse_server.h"
#include "mounter/testing/holder.h"
#include "mounter/testing/test_area.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

bool OpenAndKeep(const std::string& path) { return open(path.c_str(), O_RDONLY) >= 0; }

class MountHoldersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(mount("x", path_.c_str(), "tmpfs", 0, nullptr), 0);
    std::ofstream file(path_ + "/file");
    file << "content";
    ASSERT_TRUE(file.flush().good());
    device_ = LookAt(path_)->device;
  }
  void TearDown() override {
    umount2(path_.c_str(), MNT_DETACH);
    RunOn(loop_, scope_.Join());
  }

  std::vector<MountHolder> Holders(const std::string& path, dev_t device) {
    const auto holders =
        RunOn(loop_, HoldersOf(helper_, path, device, Clock::now() + std::chrono::seconds(20)));
    EXPECT_TRUE(holders.ok()) << holders.status();
    return *holders;
  }
  std::vector<MountHolder> Holders() { return Holders(path_, device_); }
  static auto Is(pid_t pid, const std::string& how) {
    return AllOf(Field(&MountHolder::pid, pid), Field(&MountHolder::how, HasSubstr(how)));
  }

  std::string path_ = NewTestDirectory();
  std::string file_ = path_ + "/file";
  dev_t device_ = 0;
  asio::io_context loop_;
  TaskScope scope_{loop_.get_executor(), "test"};
  MountHelper helper_{BERTH_MOUNT_HELPER, scope_};
};

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

// How many threads of this process the kernel does not let go.
int ThreadsThatHang() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream stat(task.path() / "stat");
    std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
    const size_t name_end = text.rfind(')');
    if (name_end != std::string::npos && text.compare(name_end, 3, ") D") == 0) ++count;
  }
  return count;
}

TEST_F(MountHoldersTest, NobodyHoldsAQuietMount) { EXPECT_THAT(Holders(), IsEmpty()); }

TEST_F(MountHoldersTest, Fault25AnOpenFileIsNamed) {
  const Holder holder([this] { return OpenAndKeep(file_); });
  const auto holders = Holders();
  ASSERT_THAT(holders, ElementsAre(Is(holder.pid(), "open file " + file_)));
  EXPECT_THAT(holders[0].command, HasSubstr("mount_test"));
}

TEST_F(MountHoldersTest, EveryHoldIsFound) {
  const Holder directory([this] { return chdir(path_.c_str()) == 0; });
  const Holder root([this] { return chroot(path_.c_str()) == 0; });
  const Holder mapping([this] {
    const int fd = open(file_.c_str(), O_RDONLY);
    const bool mapped = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED;
    return close(fd) == 0 && mapped;
  });
  const Holder gone([this] { return OpenAndKeep(file_) && unlink(file_.c_str()) == 0; });
  const auto holders = Holders();
  EXPECT_THAT(holders, testing::UnorderedElementsAre(Is(directory.pid(), "working directory " + path_),
                                                     Is(root.pid(), "root directory"),
                                                     Is(mapping.pid(), "mapped file " + file_),
                                                     Is(gone.pid(), "open file " + file_)));
}

TEST_F(MountHoldersTest, Fault24MappingsThatCannotBeReadCostNoThreadAndHideNobody) {
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
    const auto holders =
        RunOn(loop_, HoldersOf(helper_, path_, device_, Clock::now() + std::chrono::seconds(4)));
    ASSERT_TRUE(holders.ok()) << holders.status();
    EXPECT_THAT(*holders, ElementsAre(Is(mapping.pid(), "mapped file " + file_)));
    EXPECT_EQ(ThreadsThatHang(), 0);
    (*server)->Resume();
  }
}

TEST_F(MountHoldersTest, ARunningProgramIsNamed) {
  std::error_code error;
  const std::string program = path_ + "/sleep";
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
  EXPECT_THAT(Holders(), ElementsAre(Is(pid, "program " + program)));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST_F(MountHoldersTest, AnotherUseOfTheFileSystemIsNotThisOne) {
  const std::string copy = NewTestDirectory();
  const std::string inner = path_ + "/inner";
  ASSERT_EQ(mount(path_.c_str(), copy.c_str(), nullptr, MS_BIND, nullptr), 0);
  ASSERT_EQ(mkdir(inner.c_str(), 0755), 0);
  ASSERT_EQ(mount("y", inner.c_str(), "tmpfs", 0, nullptr), 0);
  {
    const Holder other([&copy] { return OpenAndKeep(copy + "/file"); });
    const Holder deeper([&inner] { return chdir(inner.c_str()) == 0; });
    EXPECT_THAT(Holders(), IsEmpty());
    EXPECT_THAT(Holders(copy, device_), ElementsAre(Is(other.pid(), copy + "/file")));
  }
  EXPECT_EQ(umount2(inner.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_EQ(umount2(copy.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_F(MountHoldersTest, Fault25AnotherMountNamespaceIsNamedByOneOfItsProcesses) {
  const Holder outside([] {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  });
  ASSERT_EQ(umount2(path_.c_str(), UMOUNT_NOFOLLOW), 0);
  const auto holders = Holders();
  ASSERT_THAT(holders, ElementsAre(Is(outside.pid(), "in another mount namespace")));
  EXPECT_THAT(holders[0].how, HasSubstr(path_));
}

TEST_F(MountHoldersTest, ANamespaceThatLetsGoTogetherWithOursIsNotNamed) {
  const std::string shared = NewTestDirectory();
  ASSERT_EQ(mount("x", shared.c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_EQ(mount(nullptr, shared.c_str(), nullptr, MS_SHARED, nullptr), 0);
  const std::string target = shared + "/target";
  ASSERT_EQ(mkdir(target.c_str(), 0755), 0);
  ASSERT_EQ(mount("y", target.c_str(), "tmpfs", 0, nullptr), 0);
  {
    const Holder peer([] { return unshare(CLONE_NEWNS) == 0; });
    const Holder follower([&shared] {
      return unshare(CLONE_NEWNS) == 0 &&
             mount(nullptr, shared.c_str(), nullptr, MS_REC | MS_SLAVE, nullptr) == 0;
    });
    EXPECT_THAT(Holders(target, LookAt(target)->device), IsEmpty());
    const Holder user([&shared, &target] {
      return unshare(CLONE_NEWNS) == 0 &&
             mount(nullptr, shared.c_str(), nullptr, MS_REC | MS_SLAVE, nullptr) == 0 &&
             chdir(target.c_str()) == 0;
    });
    EXPECT_THAT(Holders(target, LookAt(target)->device), ElementsAre(Is(user.pid(), "working directory")));
    const Holder alone([&shared] {
      return unshare(CLONE_NEWNS) == 0 &&
             mount(nullptr, shared.c_str(), nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    });
    EXPECT_THAT(Holders(target, LookAt(target)->device),
                ElementsAre(Is(alone.pid(), "mount namespace"), Is(user.pid(), "working directory")));
  }
  EXPECT_EQ(umount2(target.c_str(), UMOUNT_NOFOLLOW), 0);
  EXPECT_EQ(umount2(shared.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_F(MountHoldersTest, Fault25AnOpenFileInAnotherNamespaceIsNamedToo) {
  const Holder outside([this] {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           OpenAndKeep(file_);
  });
  EXPECT_THAT(Holders(), ElementsAre(Is(outside.pid(), "in another mount namespace"),
                                     Is(outside.pid(), "open file " + file_)));
}

TEST_F(MountHoldersTest, ADirectoryOfASharedDiskIsNotHeldByAllWhoSeeTheDisk) {
  const std::string data = path_ + "/data";
  const std::string target = NewTestDirectory();
  ASSERT_EQ(mkdir(data.c_str(), 0755), 0);
  const Holder outside([] {
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  });
  ASSERT_EQ(mount(data.c_str(), target.c_str(), nullptr, MS_BIND, nullptr), 0);
  EXPECT_THAT(Holders(target, device_), IsEmpty());
  EXPECT_EQ(umount2(target.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_F(MountHoldersTest, NothingIsShownBeyondTheLimit) {
  std::list<Holder> holders;
  for (size_t i = 0; i < kHoldersShown + 4; ++i) holders.emplace_back([this] { return OpenAndKeep(file_); });
  EXPECT_THAT(Holders(), SizeIs(kHoldersShown));
}

TEST_F(MountHoldersTest, AHungFileSystemIsNotAsked) {
  const std::string fuse = NewTestDirectory();
  auto server = FuseServer::Mount(fuse);
  ASSERT_TRUE(server.ok()) << server.status();
  const Holder holder([&fuse] { return OpenAndKeep(fuse + "/hello") && chdir(fuse.c_str()) == 0; });
  const dev_t device = LookAt(fuse)->device;
  (*server)->Hang();
  EXPECT_THAT(Holders(fuse, device), ElementsAre(Is(holder.pid(), "working directory")));
  (*server)->Die();
}

}  // namespace
}  // namespace berth
