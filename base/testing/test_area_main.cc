// Runs the tests in a mount namespace of their own.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "base/testing/test_area.h"

int main(int argc, char** argv) {
  spdlog::set_level(std::getenv("BERTH_TEST_LOG") != nullptr ? spdlog::level::debug
                                                             : spdlog::level::critical);
  ::testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  berth::EnterTestArea();
  const int result = RUN_ALL_TESTS();
  berth::LeaveTestArea();
  return result;
}
