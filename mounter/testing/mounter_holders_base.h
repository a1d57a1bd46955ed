// For tests: a node whose volumes others have, too, when they are unpublished.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "base/testing/holder.h"
#include "mounter/testing/mounter_test_base.h"

namespace berth {

class MounterHoldersBase : public MounterTestBase {
 protected:
  using AccessMode = ::csi::v1::VolumeCapability::AccessMode;

  void SetUp() override {
    MounterTestBase::SetUp();
    std::filesystem::create_directories(plugin_.DataPath("v1"));
    std::filesystem::create_directories(plugin_.DataPath("v2"));
  }
  // A container: a mount namespace of its own, into which the volume is bound somewhere else.
  [[nodiscard]] std::unique_ptr<Holder> Container(const std::string& target, bool block = false) {
    const std::string data = NewTestDirectory() + "/data";
    return std::make_unique<Holder>([=] {
      const bool made =
          block ? close(open(data.c_str(), O_CREAT | O_WRONLY, 0600)) == 0 : mkdir(data.c_str(), 0755) == 0;
      return made && unshare(CLONE_NEWNS) == 0 &&
             mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0 &&
             mount(target.c_str(), data.c_str(), nullptr, MS_BIND, nullptr) == 0;
    });
  }
  static PublishRequest For(const std::string& consumer, AccessMode::Mode mode) {
    PublishRequest request = Request("v1", consumer);
    request.use.access_mode = mode;
    return request;
  }
  // The holder is named, by each try, and nothing is unstaged; the rest happens by itself once it has ended.
  void ExpectBlockedBy(std::unique_ptr<Holder> holder) {
    for (const char* time : {"first", "second"}) {
      const auto busy = loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()));
      EXPECT_EQ(busy.status().code(), absl::StatusCode::kUnavailable) << time << ": " << busy.status();
      EXPECT_THAT(std::string(busy.status().message()),
                  ::testing::HasSubstr(fmt::format("still used by pid {}", holder->pid())))
          << time;
      EXPECT_THAT(std::string(busy.status().message()), ::testing::HasSubstr("in another mount namespace"))
          << time;
    }
    EXPECT_TRUE(View().publications.empty()) << "the consumer's target is gone";
    EXPECT_EQ(View().stage_state, StageState::kStaged);
    EXPECT_EQ(plugin_.Calls("NodeUnstageVolume"), 0);
    holder.reset();
    EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
    EXPECT_EQ(plugin_.Calls("NodeUnstageVolume"), 1);
  }
};

}  // namespace berth
