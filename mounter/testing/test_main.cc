// Runs the tests in a mount namespace of their own. The crash tests run this program again as the berthd
// that dies (mounter_crash_test.cc).
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <cstring>

#include "base/testing/test_area.h"
#include "mounter/testing/crash_child.h"

int main(int argc, char** argv) {
  spdlog::set_level(std::getenv("BERTH_TEST_LOG") != nullptr ? spdlog::level::debug
                                                             : spdlog::level::critical);
  if (argc > 1 && std::strcmp(argv[1], "crash-child") == 0) return berth::RunCrashChild(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  berth::EnterTestArea();
  const int result = RUN_ALL_TESTS();
  berth::LeaveTestArea();
  return result;
}
