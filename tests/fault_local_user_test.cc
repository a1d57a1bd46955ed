// What a local user without rights gets from the tree of volumes (FAULTS row 40), on a whole node.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>

#include "base/testing/as_user.h"
#include "tests/harness/fault_test.h"

namespace berth {
namespace {

// Numbers of users and groups that do not exist here.
constexpr uid_t kStranger = 64'998;
constexpr uid_t kNamed = 64'997;
constexpr gid_t kNamedGroup = 64'996;

int Opens(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  return fd >= 0 ? 0 : errno;
}

// 0: it ran with root's rights. `program` is a copy of test(1), with the set-user-id bit.
int RunsAsRoot(const std::string& program, const std::string& file_of_root) {
  execl(program.c_str(), "test", "-r", file_of_root.c_str(), nullptr);
  return errno;
}

class FaultLocalUserTest : public FaultTest {
 protected:
  // A volume with a set-user-id program of root's and a device node that everybody may use.
  void PublishTraps() {
    StartReady();
    target_ = Publish(CreateVolume("v"), "job");
    std::filesystem::copy_file("/usr/bin/test", Program());
    ASSERT_EQ(chmod(Program().c_str(), 04755), 0);
    ASSERT_EQ(mknod(Device().c_str(), S_IFCHR | 0666, makedev(1, 3)), 0);
    ASSERT_EQ(chmod(Device().c_str(), 0666), 0);
    ASSERT_EQ(chmod(target_.c_str(), 0755), 0);
  }
  [[nodiscard]] std::string Program() const { return target_ + "/set-uid"; }
  [[nodiscard]] std::string Device() const { return target_ + "/null"; }
  // What the process of this user finds at the volume's path.
  [[nodiscard]] int Runs(uid_t uid, gid_t gid) const {
    return As(uid, gid, [this] { return RunsAsRoot(Program(), "/etc/shadow"); });
  }
  [[nodiscard]] int OpensDevice(uid_t uid, gid_t gid) const {
    return As(uid, gid, [this] { return Opens(Device()); });
  }
  void ReloadWith(const std::string& traverse) {
    node_.WriteBerthdToml(fmt::format("[volumes]\ntraverse = {}\n", traverse));
    node_.Reload();
  }

  std::string target_;
};

TEST_F(FaultLocalUserTest, Fault40ASetUidProgramOnAVolumeIsNotReachableThroughTheTree) {
  PublishTraps();
  EXPECT_EQ(As(0, 0, [this] { return Opens(Device()); }), 0) << "the kernel has devices here";
  EXPECT_EQ(Runs(kStranger, kStranger), EACCES);
  EXPECT_EQ(OpensDevice(kStranger, kStranger), EACCES);
}

// Who is named may pass, as soon as the file is read; others may not.
TEST_F(FaultLocalUserTest, Fault40OnlyWhoIsNamedPassesThroughTheTree) {
  PublishTraps();
  ReloadWith(fmt::format("[\"user:{}\", \"group:{}\"]", kNamed, kNamedGroup));
  EXPECT_EQ(OpensDevice(kNamed, kStranger), 0);
  EXPECT_EQ(OpensDevice(kStranger, kNamedGroup), 0);
  EXPECT_EQ(OpensDevice(kStranger, kStranger), EACCES);
  EXPECT_EQ(Runs(kStranger, kStranger), EACCES);
  ReloadWith("[]");
  EXPECT_EQ(OpensDevice(kNamed, kNamedGroup), EACCES);
}

// A plugin's user passes while it runs, also under the next berthd.
TEST_F(FaultLocalUserTest, Fault40APluginsUserPassesThroughTheTreeWhileItRuns) {
  node_.WritePlugin("other", fmt::format("kind = \"controller\"\ncommand = \"/bin/sleep\"\n"
                                         "args = [\"1000\"]\nuser = {}\nstart_timeout = \"10m\"\n",
                                         kNamed));
  PublishTraps();
  node_.WaitPlugin("other", "it runs", [](const v1::Plugin& plugin) { return plugin.pid() > 0; });
  EXPECT_EQ(OpensDevice(kNamed, kNamed), 0);
  EXPECT_EQ(OpensDevice(kStranger, kNamed), EACCES) << "its group";
  node_.Kill();
  node_.Start();
  node_.WaitPlugin("other", "it is taken back", [](const v1::Plugin& plugin) { return plugin.pid() > 0; });
  EXPECT_EQ(OpensDevice(kNamed, kNamed), 0);
  const grpc::Status stopped = StopPlugin("other", true);
  ASSERT_TRUE(stopped.ok()) << stopped.error_message();
  EXPECT_EQ(OpensDevice(kNamed, kNamed), EACCES);
}

// A berthd that let everybody through is replaced by this one, while volumes are mounted.
TEST_F(FaultLocalUserTest, Fault40ATreeThatWasOpenIsClosedAtTheStart) {
  PublishTraps();
  node_.Kill();
  const std::string tree = node_.state_dir() + "/volumes";
  ASSERT_EQ(chmod(tree.c_str(), 0711), 0);
  ASSERT_EQ(Runs(kStranger, kStranger), 0);
  node_.Start();
  EXPECT_EQ(Runs(kStranger, kStranger), EACCES);
  EXPECT_EQ(OpensDevice(kStranger, kStranger), EACCES);
  node_.WaitReady(fault_.id());
}

TEST_F(FaultLocalUserTest, Fault40ADirectoryThatIsBoundElsewhereIsReachedThereAsItsOwnerWants) {
  PublishTraps();
  const std::string elsewhere = node_.dir() + "/consumer";
  ASSERT_EQ(mkdir(elsewhere.c_str(), 0755), 0);
  ASSERT_EQ(mount(target_.c_str(), elsewhere.c_str(), nullptr, MS_BIND, nullptr), 0);
  EXPECT_EQ(As(kStranger, kStranger, [&elsewhere] { return Opens(elsewhere + "/null"); }), 0);
  ASSERT_EQ(umount2(elsewhere.c_str(), UMOUNT_NOFOLLOW), 0);
}

}  // namespace
}  // namespace berth
