#include "tests/harness/host_faults.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace berth {

HostFaults::HostFaults(Node& node)
    : file_(node.dir() + "/host-faults"), clock_file_(node.dir() + "/host-clock") {
  Heal();
  ShiftWallClock(std::chrono::seconds(0));
  node.RunThrough({"/usr/bin/env", fmt::format("LD_PRELOAD={}", BERTH_HOST_FAULTS),
                   fmt::format("BERTH_TEST_HOST_FAULTS={}", file_),
                   fmt::format("BERTH_TEST_HOST_CLOCK={}", clock_file_)});
}

void HostFaults::ShiftWallClock(std::chrono::seconds by) const {
  const int64_t nanoseconds = std::chrono::nanoseconds(by).count();
  // In place: berthd has it mapped.
  const int fd = open(clock_file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  EXPECT_EQ(pwrite(fd, &nanoseconds, sizeof nanoseconds, 0), static_cast<ssize_t>(sizeof nanoseconds));
  close(fd);
}

void HostFaults::KillAtWrite(int n) const { Say(fmt::format("kill {}", n)); }

void HostFaults::Say(const std::string& fault) const {
  const std::string fresh = file_ + ".new";
  std::ofstream(fresh) << fault << std::flush;
  EXPECT_EQ(std::rename(fresh.c_str(), file_.c_str()), 0) << file_;
}

}  // namespace berth
