#include "mounts/host_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "base/safe_path.h"
#include "base/status.h"
#include "base/testing/test_area.h"
#include "mounts/mount_tree.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

// What a child ends with.
constexpr int kSeen = 10;
constexpr int kNotSeen = 11;
constexpr int kOtherError = 12;
constexpr int kLeftSomething = 13;
constexpr int kNotPossible = 14;

int Child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int Check(const std::string& directory) {
  const absl::Status status = CheckSeenByHost(directory);
  if (!std::filesystem::is_empty(directory)) return kLeftSomething;
  if (status.ok()) return kSeen;
  if (status.code() == absl::StatusCode::kFailedPrecondition) return kNotSeen;
  fprintf(stderr, "%s\n", status.ToString().c_str());
  return kOtherError;
}

bool Make(unsigned long propagation) {
  return mount(nullptr, "/", nullptr, MS_REC | propagation, nullptr) == 0;
}

// A small host of its own: a pid namespace with a PID 1 that runs `body`, and a shared directory in it.
int OnAHost(const std::function<int(const std::string& directory)>& body) {
  const std::string directory = NewTestDirectory();
  return Child([&] {
    if (unshare(CLONE_NEWNS | CLONE_NEWPID) != 0) return kNotPossible;
    return Child([&] {
      if (getpid() != 1 || !Make(MS_PRIVATE) || mount("proc", "/proc", "proc", 0, nullptr) != 0 ||
          mount("host", directory.c_str(), "tmpfs", 0, nullptr) != 0 ||
          mount(nullptr, directory.c_str(), nullptr, MS_SHARED, nullptr) != 0) {
        return kNotPossible;
      }
      return body(directory);
    });
  });
}

// CheckSeenByHost in a process that has first entered a namespace, or whatever `enter` does.
int CheckAfter(const std::function<bool()>& enter) {
  return OnAHost([&enter](const std::string& directory) {
    return Child([&] { return enter() ? Check(directory) : kNotPossible; });
  });
}

TEST(HostViewTest, TheHostsOwnNamespaceIsSeen) {
  EXPECT_EQ(CheckAfter([] { return true; }), kSeen);
}

TEST(HostViewTest, ASharedCopyIsSeen) {
  EXPECT_EQ(CheckAfter([] { return unshare(CLONE_NEWNS) == 0; }), kSeen);
}

TEST(HostViewTest, Fault28ASlaveIsNotSeen) {
  EXPECT_EQ(CheckAfter([] { return unshare(CLONE_NEWNS) == 0 && Make(MS_SLAVE); }), kNotSeen);
}

TEST(HostViewTest, Fault28APrivateNamespaceIsNotSeen) {
  EXPECT_EQ(CheckAfter([] { return unshare(CLONE_NEWNS) == 0 && Make(MS_PRIVATE); }), kNotSeen);
}

TEST(HostViewTest, Fault28ASlaveThatSharesOnIsNotSeen) {
  EXPECT_EQ(CheckAfter([] { return unshare(CLONE_NEWNS) == 0 && Make(MS_SLAVE) && Make(MS_SHARED); }),
            kNotSeen);
}

TEST(HostViewTest, OneTreeMayBeSeenWhereAnotherIsNot) {
  EXPECT_EQ(OnAHost([](const std::string& directory) {
              return Child([&directory] {
                const std::string hidden = directory + "/hidden";
                if (unshare(CLONE_NEWNS) != 0 || Check(directory) != kSeen) return kNotPossible;
                if (mkdir(hidden.c_str(), 0755) != 0 ||
                    mount("own", hidden.c_str(), "tmpfs", 0, nullptr) != 0 ||
                    mount(nullptr, hidden.c_str(), nullptr, MS_PRIVATE, nullptr) != 0) {
                  return kNotPossible;
                }
                return Check(hidden);
              });
            }),
            kNotSeen);
}

TEST(HostViewTest, OurTreeInASharedCopyIsSeen) {
  EXPECT_EQ(OnAHost([](const std::string& directory) {
              return Child([&directory] {
                const std::string tree = directory + "/volumes";
                if (unshare(CLONE_NEWNS) != 0 || !SetUpMountTree(tree).ok()) return kNotPossible;
                return Check(tree);
              });
            }),
            kSeen);
}

TEST(HostViewTest, WhatAKilledCheckLeftIsSweptUp) {
  EXPECT_EQ(OnAHost([](const std::string& directory) {
              const std::string left = directory + "/.berth-host-view.abcdef";
              if (mkdir(left.c_str(), 0700) != 0 || mount("x", left.c_str(), "tmpfs", 0, nullptr) != 0) {
                return kNotPossible;
              }
              return Check(directory);
            }),
            kSeen);
}

// This program itself is in a private namespace.
TEST(HostViewTest, Fault28TheRefusalSaysWhatToDo) {
  const std::string directory = NewTestDirectory();
  const absl::Status status = CheckSeenByHost(directory);
  ASSERT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  for (const char* const word : {"PrivateTmp=", "ProtectSystem=", "mount namespace", "rshared"}) {
    EXPECT_THAT(MessageOf(status), HasSubstr(word));
  }
  EXPECT_THAT(MessageOf(status), HasSubstr(directory));
}

// A namespace may hold 100,000 mounts (fs.mount-max). Each copy of all copies doubles them; what is left then
// is filled with copies of ever smaller ones: the n-th holds 2^n mounts.
TEST(HostViewTest, Fault29TooManyMountsLeaveNothingHalfDone) {
  const std::string directory = NewTestDirectory();
  const int result = Child([&directory] {
    if (unshare(CLONE_NEWNS) != 0 || !Make(MS_PRIVATE)) return kNotPossible;
    if (mount("x", directory.c_str(), "tmpfs", 0, nullptr) != 0) return kNotPossible;
    const std::string tree = directory + "/tree";
    const std::string copies = directory + "/copies";
    const std::string rest = directory + "/rest";
    for (const std::string& each : {tree, copies, rest}) {
      if (mkdir(each.c_str(), 0755) != 0) return kNotPossible;
    }
    if (mount("y", copies.c_str(), "tmpfs", 0, nullptr) != 0) return kNotPossible;
    int count = 0;
    const auto copy = [&count](const std::string& from, const std::string& to) {
      const std::string at = to + "/" + std::to_string(count++);
      return mkdir(at.c_str(), 0755) == 0 &&
             mount(from.c_str(), at.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0;
    };
    while (count < 40 && copy(copies, copies)) {
    }
    if (errno != ENOSPC) return kNotPossible;
    for (int size = count - 2; size >= 0;) {
      if (copy(copies + "/" + std::to_string(size), rest)) continue;
      if (errno != ENOSPC) return kNotPossible;
      --size;
    }
    const absl::Status tree_status = SetUpMountTree(tree).status();
    const absl::Status seen_status = CheckSeenByHost(tree);
    for (const absl::Status& status : {tree_status, seen_status}) {
      if (status.code() == absl::StatusCode::kResourceExhausted) continue;
      fprintf(stderr, "%d copies: %s\n", count, status.ToString().c_str());
      return kOtherError;
    }
    if (LookAt(tree)->mount_root || !std::filesystem::is_empty(tree)) return kLeftSomething;
    return kSeen;
  });
  EXPECT_EQ(result, kSeen);
}

}  // namespace
}  // namespace berth
