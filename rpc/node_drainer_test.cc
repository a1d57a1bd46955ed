#include "rpc/node_drainer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>

#include "base/file.h"
#include "base/testing/run_on.h"
#include "base/testing/temp_dir.h"
#include "rpc/testing/fakes.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class NodeDrainerTest : public testing::Test {
 protected:
  NodeDrainerTest() { Reopen(); }
  ~NodeDrainerTest() override { Close(); }

  void Close() {
    if (drainer_) RunOn(loop_, drainer_->Shutdown());
    drainer_.reset();
  }
  // As the next berthd does, with what is on the disk.
  void Reopen() {
    Close();
    drainer_ = std::make_unique<NodeDrainer>(loop_.get_executor(), file_, mounter_, events_);
    RunOn(loop_, drainer_->Restore());
  }
  absl::Status Begin(const std::string& reason = "a new disk") {
    return RunOn(loop_, drainer_->Begin(reason, Soon()));
  }
  absl::Status End() { return RunOn(loop_, drainer_->End(Soon())); }
  bool WaitFor(std::function<bool()> holds) { return RunOn(loop_, Poll(std::move(holds))); }
  [[nodiscard]] std::vector<std::string> Told() const {
    std::vector<std::string> types;
    for (const Event& event : events_.After(0, 100).events) types.push_back(event.type);
    return types;
  }
  [[nodiscard]] std::optional<int> Left() const {
    const auto drain = drainer_->Describe();
    return drain ? std::optional(drain->publications_left()) : std::nullopt;
  }
  static PublishRequest Of(const std::string& volume, const std::string& consumer) {
    return {.plugin_id = "p", .volume_id = volume, .consumer = consumer, .name = "", .use = {}};
  }
  absl::Status Admits(const PublishRequest& request) { return drainer_->Admit(request).status(); }
  static TimePoint Soon() { return Clock::now() + std::chrono::seconds(20); }

  TempDir dir_;
  std::string file_ = dir_.path() + "/node-drain.json";
  asio::io_context loop_;
  FakeMounter mounter_{loop_.get_executor()};
  EventLog events_{loop_.get_executor(), 100};
  std::unique_ptr<NodeDrainer> drainer_;

 private:
  Awaitable<bool> Poll(std::function<bool()> holds) {
    const TimePoint until = Soon();
    while (!holds()) {
      if (!co_await drainer_->WaitChange(drainer_->version(), until)) co_return holds();
    }
    co_return true;
  }
};

TEST_F(NodeDrainerTest, ADrainIsOnTheDiskBeforeItIsAnsweredAndComesBackWithTheNextBerthd) {
  ASSERT_TRUE(Begin().ok());
  struct stat kept{};
  ASSERT_EQ(stat(file_.c_str(), &kept), 0);
  EXPECT_EQ(kept.st_mode & 0777, 0600U);
  const auto before = drainer_->Describe();
  Reopen();
  const auto after = drainer_->Describe();
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(after->reason(), "a new disk");
  EXPECT_EQ(after->since().seconds(), before->since().seconds());
  ASSERT_TRUE(End().ok());
  EXPECT_NE(stat(file_.c_str(), &kept), 0);
  Reopen();
  EXPECT_EQ(drainer_->Describe(), std::nullopt);
}

TEST_F(NodeDrainerTest, AnotherReasonKeepsTheTimeAndTheSameOneIsNoNews) {
  ASSERT_TRUE(Begin("one").ok());
  const auto since = drainer_->Describe()->since();
  ASSERT_TRUE(Begin("one").ok());
  ASSERT_TRUE(Begin("two").ok());
  EXPECT_EQ(drainer_->Describe()->reason(), "two");
  EXPECT_EQ(drainer_->Describe()->since().nanos(), since.nanos());
  const std::vector<std::string> told = Told();
  EXPECT_EQ(std::ranges::count(told, "node.draining"), 2);
}

TEST_F(NodeDrainerTest, NothingNewIsAdmittedAndWhatIsHereIsConfirmed) {
  mounter_.Add("p", "v", "here");
  mounter_.Add("p", "w", "going").publications[0].state = PublicationState::kUnpublishing;
  EXPECT_TRUE(Admits(Of("v", "new")).ok());
  ASSERT_TRUE(Begin().ok());
  EXPECT_TRUE(Admits(Of("v", "here")).ok());
  for (const auto& request : {Of("v", "new"), Of("u", "here"), Of("w", "going")}) {
    const absl::Status refused = Admits(request);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << request.volume_id;
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("being drained"), HasSubstr("a new disk")));
  }
  ASSERT_TRUE(End().ok());
  EXPECT_TRUE(Admits(Of("v", "new")).ok());
}

TEST_F(NodeDrainerTest, WhatIsUndoneToBeMountedAgainIsHere) {
  PublicationView& repaired = mounter_.Add("p", "v", "here").publications[0];
  repaired.state = PublicationState::kUnpublishing;
  repaired.remount_after_undo = true;
  ASSERT_TRUE(Begin().ok());
  EXPECT_TRUE(Admits(Of("v", "here")).ok());
}

TEST_F(NodeDrainerTest, APublishThatWasAdmittedBeforeIsJoinedAndCounted) {
  {
    const auto admitted = drainer_->Admit(Of("v", "c"));
    ASSERT_TRUE(admitted.ok());
    ASSERT_TRUE(Begin().ok());
    EXPECT_EQ(Left(), 1);
    EXPECT_TRUE(Admits(Of("v", "c")).ok());
    EXPECT_EQ(Left(), 1) << "one use, however many wait for it";
  }
  EXPECT_EQ(Left(), 0);
  EXPECT_FALSE(Admits(Of("v", "c")).ok());
}

TEST_F(NodeDrainerTest, ItIsDrainedWhenTheLastUndeclaredPublicationHasLeft) {
  mounter_.Add("p", "v", "job");
  mounter_.Add("p", "boot", "declared").publications[0].origin = Origin::kDeclared;
  ASSERT_TRUE(Begin().ok());
  EXPECT_EQ(Left(), 1);
  mounter_.volumes.erase(mounter_.volumes.begin());
  drainer_->OnHoldersChanged();
  EXPECT_TRUE(WaitFor([this] { return Told().back() == "node.drained"; }));
  EXPECT_EQ(Left(), 0);
  ASSERT_TRUE(End().ok());
  EXPECT_THAT(Told(), ElementsAre("node.draining", "node.drained", "node.in_use"));
}

TEST_F(NodeDrainerTest, ANodeThatEmptiedWhileBerthdWasAwayIsToldToBeDrained) {
  mounter_.Add("p", "v", "job");
  ASSERT_TRUE(Begin().ok());
  Close();
  mounter_.volumes.clear();
  Reopen();
  EXPECT_TRUE(WaitFor([this] { return Told().back() == "node.drained"; }));
}

TEST_F(NodeDrainerTest, AFileThatCannotBeReadCountsAsADrainUntilAPersonEndsIt) {
  ASSERT_TRUE(WriteFileAtomic(file_, "{\"reason\": 7", 0600).ok());
  Reopen();
  ASSERT_TRUE(drainer_->Describe().has_value());
  EXPECT_THAT(drainer_->Describe()->reason(), HasSubstr(file_ + " is not a note of a drain"));
  EXPECT_FALSE(Admits(Of("v", "c")).ok());
  EXPECT_TRUE(End().ok());
  EXPECT_TRUE(Admits(Of("v", "c")).ok());
}

TEST_F(NodeDrainerTest, WhatCannotBeWrittenDownHasNotHappened) {
  file_ = dir_.path() + "/missing/node-drain.json";
  Reopen();
  EXPECT_FALSE(Begin().ok());
  EXPECT_EQ(drainer_->Describe(), std::nullopt);
  EXPECT_TRUE(Admits(Of("v", "c")).ok());
  EXPECT_THAT(Told(), ElementsAre());
}

}  // namespace
}  // namespace berth
