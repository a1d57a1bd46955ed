#include <gtest/gtest.h>

#include <cstring>

#include "tests/harness/node.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // Listing the tests needs no rights.
  if (!GTEST_FLAG_GET(list_tests)) berth::EnterOwnNamespaces();
  return RUN_ALL_TESTS();
}
