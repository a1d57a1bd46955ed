// For tests that mount: a mount namespace of the test program's own, with a tmpfs in it as the place for
// everything that a test makes. Both end with the program, so there is nothing to clean up piece by piece.
#pragma once

#include <string>

namespace berth {

// Enters the namespace and makes the area, once, before any other thread exists. Aborts where it may not.
void EnterTestArea();
// Leaves no directory behind. At the end of main.
void LeaveTestArea();
// A new empty directory in the area.
[[nodiscard]] std::string NewTestDirectory();
// A directory at `path`, in an existing parent; fails the test if it cannot be made.
void MakeDirectory(const std::string& path);

}  // namespace berth
