// For tests of what is refused before anything is done.
#pragma once

#include <absl/status/statusor.h>
#include <gtest/gtest.h>

#include <string>

namespace berth {

// What an INVALID_ARGUMENT says; fails the test where `result` is anything else.
template <class T>
std::string Refused(const absl::StatusOr<T>& result) {
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(result.status().message());
}

}  // namespace berth
