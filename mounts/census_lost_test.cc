// A census that loses an answer, wherever it asks, is incomplete, or names who has the volume all the same
// (FAULTS row 62): a lost answer is never "nobody".
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/testing/holder.h"
#include "base/testing/run_on.h"
#include "mounts/testing/census_base.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

class CensusLostTest : public CensusTestBase {
 protected:
  CensusAnswer TakeWithout(const std::string& answer) {
    const std::string program = NewTestDirectory() + "/helper";
    std::ofstream(program) << fmt::format(
        "#!/bin/sh\nLD_PRELOAD='{}' BERTH_TEST_LOST_ANSWER='{}' exec {} \"$@\"\n", BERTH_CENSUS_FAULTS,
        answer, BERTH_MOUNT_HELPER);
    EXPECT_EQ(chmod(program.c_str(), 0755), 0);
    MountHelper helper(program, scope_);
    CensusQuestion question = question_;
    question.kernel = GetParam();
    question.recorded = recorded_;
    return RunOn(loop_, helper.TakeCensus(std::move(question), Clock::now() + kTestLimit));
  }
  void ExpectNotTakenForNobody(const std::string& answer, pid_t holder) {
    const CensusAnswer taken = TakeWithout(answer);
    if (taken.incomplete.empty()) {
      EXPECT_THAT(taken.holds, Contains(Field(&Hold::pid, holder))) << "without " << answer;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, CensusLostTest,
                         ::testing::Values(KernelAs::kThis, KernelAs::kBefore6_12, KernelAs::kBefore6_8),
                         KernelName);

TEST_P(CensusLostTest, Fault62NothingThatIsAskedOfProcessesIsTakenForNobody) {
  ShareDirectory();
  const Holder file([this] { return OpenAndKeep(file_); });
  for (const char* const lost :
       {"openat proc", "openat /task", "openat /fd", "openat /fdinfo/", "readlinkat /fd/", "openat /stat",
        "openat mountinfo", "readlinkat ns/mnt"}) {
    ExpectNotTakenForNobody(lost, file.pid());
  }
  const Holder directory([this] { return chdir(target_.c_str()) == 0; });
  for (const char* const lost : {"statx /cwd", "openat /task"})
    ExpectNotTakenForNobody(lost, directory.pid());
  const Holder mapping([this] {
    const int fd = open(file_.c_str(), O_RDONLY);
    const bool mapped = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED;
    return close(fd) == 0 && mapped;
  });
  for (const char* const lost : {"openat /maps", "statx /map_files/", "readlinkat /map_files/"})
    ExpectNotTakenForNobody(lost, mapping.pid());
}

TEST_P(CensusLostTest, Fault62NothingThatIsAskedOfDetachedMountsIsTakenForNobody) {
  ShareDirectory();
  const Holder holder([this] {
    return Unshared(MS_PRIVATE) && OpenAndKeep(file_) && umount2(target_.c_str(), MNT_DETACH) == 0 &&
           umount2(shared_.c_str(), MNT_DETACH) == 0;
  });
  ASSERT_EQ(umount2(target_.c_str(), UMOUNT_NOFOLLOW), 0);
  for (const char* const lost : {"statx /fd/", "openat /fdinfo/"})
    ExpectNotTakenForNobody(lost, holder.pid());
}

TEST_P(CensusLostTest, Fault62NothingThatIsAskedOfLoopDevicesAndSwapIsTakenForNobody) {
  ShareDirectory();
  const std::string name = NewTestDirectory() + "/loop";
  ASSERT_TRUE(RunShell(
      fmt::format("truncate -s 1M {0} && losetup --find --show {0} > {1}", target_ + "/image", name)));
  ASSERT_EQ(umount2(target_.c_str(), MNT_DETACH), 0);
  question_.objects[0].staged = false;
  ASSERT_THAT(Holds(), Contains(Field(&Hold::kind, HoldKind::kLoop)));
  for (const char* const lost :
       {"openat sys/block", "openat proc/swaps", "faccessat backing_file", "openat /dev"}) {
    const CensusAnswer taken = TakeWithout(lost);
    if (taken.incomplete.empty()) {
      EXPECT_THAT(taken.holds, Contains(Field(&Hold::kind, HoldKind::kLoop))) << "without " << lost;
    }
  }
  for (const char* const lost : {"loop kill", "loop stop"}) {
    EXPECT_THAT(TakeWithout(lost).incomplete, HasSubstr("ended, or stopped")) << lost;
  }
  ASSERT_TRUE(RunShell(fmt::format("losetup --detach $(cat {})", name)));
}

TEST_P(CensusLostTest, WhatWasLostIsNamed) {
  ShareDirectory();
  EXPECT_EQ(TakeWithout("openat no such path").incomplete, "");
  EXPECT_THAT(TakeWithout("openat proc/swaps").incomplete, HasSubstr("proc/swaps"));
}

}  // namespace
}  // namespace berth
