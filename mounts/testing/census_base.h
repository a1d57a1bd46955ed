// Tests of the census: a volume tree with a file system mounted in it as the volume's, and what a census says
// about it. As on this kernel, and as on older ones.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/safe_path.h"
#include "base/statmount.h"
#include "base/testing/holder.h"
#include "base/testing/run_on.h"
#include "base/testing/test_area.h"
#include "mounts/census.h"
#include "mounts/earlier_mounts.h"
#include "mounts/kernel_object.h"
#include "mounts/mount_tree.h"

namespace berth {

inline constexpr std::chrono::seconds kTestLimit{20};

inline bool RunShell(const std::string& command) { return std::system(command.c_str()) == 0; }
inline bool OpenAndKeep(const std::string& path) { return open(path.c_str(), O_RDONLY) >= 0; }
inline std::string Text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
inline bool Unshared(unsigned long propagation) {
  return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | propagation, nullptr) == 0;
}
inline bool Bind(const std::string& from, const std::string& to) {
  return mount(from.c_str(), to.c_str(), nullptr, MS_BIND, nullptr) == 0;
}
// A directory in `path` with a name of more than 4,096 bytes.
inline int OpenDeep(const std::string& path) {
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
inline int OpenDeepFile(const std::string& path) {
  const int directory = OpenDeep(path);
  const int file = openat(directory, "file", O_CREAT | O_RDWR, 0600);
  return close(directory) == 0 && ftruncate(file, 1 << 20) == 0 ? file : -1;
}

class CensusTestBase : public ::testing::TestWithParam<KernelAs> {
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
    umount2(target_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
    umount2(shared_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
    umount2(tree_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
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
    const auto mount = StatMount(id);
    return GetParam() == KernelAs::kBefore6_8 && mount.ok() && mount->has_value() ? (*mount)->old_id : id;
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
    EXPECT_THAT(Holds(), ::testing::Contains(Is(holder->pid(), kind)));
    holder.reset();
    ExpectFree();
  }
  // At once, unless another test's census has a descriptor of what just ended.
  void ExpectSoon(const ::testing::Matcher<const std::vector<Hold>&>& expected) {
    const TimePoint deadline = Clock::now() + kTestLimit;
    std::vector<Hold> holds = Holds();
    while (!expected.Matches(holds) && Clock::now() < deadline) holds = Holds();
    EXPECT_THAT(holds, expected);
  }
  void ExpectFree() { ExpectSoon(::testing::IsEmpty()); }
  static ::testing::Matcher<Hold> Is(pid_t pid, HoldKind kind) {
    return ::testing::AllOf(::testing::Field(&Hold::pid, pid), ::testing::Field(&Hold::kind, kind));
  }
  static ::testing::Matcher<Hold> Is(pid_t pid, HoldKind kind, const std::string& where) {
    return ::testing::AllOf(Is(pid, kind), ::testing::Field(&Hold::where, where));
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

inline std::string KernelName(const ::testing::TestParamInfo<KernelAs>& info) {
  constexpr std::array kNames = {"AsThis", "Before6_12", "Before6_8"};
  return kNames.at(static_cast<size_t>(info.param));
}

}  // namespace berth
