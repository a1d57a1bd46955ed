// The longest that a test waits for what must come: many times what it takes where both cores are busy with
// other tests, or the sanitizers slow everything down. A wait that may end well before has a bound of its
// own.
#pragma once

#include <chrono>

namespace berth {

inline constexpr std::chrono::seconds kTestBound{90};

}  // namespace berth
