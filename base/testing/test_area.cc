#include "base/testing/test_area.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/testing/mount_namespace.h"

namespace berth {
namespace {

// The area's directory; the tmpfs hides it in this namespace.
std::string& Area() {
  static std::string area;
  return area;
}

void Require(bool ok, const char* what) {
  if (ok) return;
  fmt::print(stderr, "{}: {} (these tests need root)\n", what, strerror(errno));
  std::exit(1);
}

}  // namespace

void EnterTestArea() {
  Require(UnshareMounts(), "make a mount namespace");
  char name[] = "/tmp/bmt.XXXXXX";
  Require(mkdtemp(name) != nullptr, "mkdtemp");
  Area() = name;
  Require(mount("berth-test", name, "tmpfs", 0, "size=192m,mode=0755") == 0, "mount a tmpfs");
  // As on a real host.
  Require(mount(nullptr, name, nullptr, MS_SHARED, nullptr) == 0, "make the tmpfs shared");
}

void LeaveTestArea() {
  Require(umount2(Area().c_str(), MNT_DETACH) == 0, "umount the tmpfs");
  Require(rmdir(Area().c_str()) == 0, "rmdir the test area");
}

std::string NewTestDirectory() {
  static int count = 0;
  std::string path = fmt::format("{}/{}", Area(), ++count);
  Require(mkdir(path.c_str(), 0755) == 0, "mkdir");
  return path;
}

void MakeDirectory(const std::string& path) { ASSERT_EQ(mkdir(path.c_str(), 0755), 0) << path; }

}  // namespace berth
