#include "tests/harness/host_faults.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace berth {

HostFaults::HostFaults(Node& node) : file_(node.dir() + "/host-faults") {
  Heal();
  node.RunThrough({"/usr/bin/env", fmt::format("LD_PRELOAD={}", BERTH_HOST_FAULTS),
                   fmt::format("BERTH_TEST_HOST_FAULTS={}", file_)});
}

void HostFaults::KillAtWrite(int n) const { Say(fmt::format("kill {}", n)); }

void HostFaults::Say(const std::string& fault) const {
  const std::string fresh = file_ + ".new";
  std::ofstream(fresh) << fault << std::flush;
  EXPECT_EQ(std::rename(fresh.c_str(), file_.c_str()), 0) << file_;
}

}  // namespace berth
