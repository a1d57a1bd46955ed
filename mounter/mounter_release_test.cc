// Consumers end, and their volumes leave; secrets that are read again where a reference says.
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "base/file.h"
#include "base/safe_path.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_types.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A process that does nothing until it is ended.
class Consumer {
 public:
  Consumer() : pid_(fork()) {
    if (pid_ == 0) {
      execl("/bin/sleep", "sleep", "1000", nullptr);
      _exit(127);
    }
  }
  ~Consumer() { End(); }
  Consumer(const Consumer&) = delete;
  Consumer& operator=(const Consumer&) = delete;

  [[nodiscard]] ConsumerLife Life() const { return ProcessLife(pid_); }
  void End() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  pid_t pid_;
};

class MounterReleaseTest : public MounterTestBase {
 protected:
  static PublishRequest Of(const Consumer& consumer, const std::string& volume = "v1") {
    PublishRequest request = Request(volume);
    request.life = consumer.Life();
    return request;
  }
};

TEST_F(MounterReleaseTest, AProcessThatEndsLetsItsVolumesGo) {
  Consumer consumer;
  for (const char* volume : {"v1", "v2"}) ASSERT_TRUE(Publish(Of(consumer, volume)).ok());
  ASSERT_TRUE(Publish(Request("v1", "db")).ok());
  EXPECT_NE(View().publications.at(0).life.start_time(), 0U) << "so that no other process is taken for it";
  consumer.End();
  ASSERT_TRUE(
      loop_.RunUntil([&] { return View().publications.size() == 1 && View("v2").volume_id.empty(); }));
  EXPECT_EQ(View().publications.at(0).consumer, "db") << "only its own";
  EXPECT_THAT(EventTypes(), Contains("volume.released"));
}

TEST_F(MounterReleaseTest, AProcessThatHasEndedIsRefusedBeforeAnythingIsDone) {
  Consumer consumer;
  const PublishRequest request = Of(consumer);
  consumer.End();
  EXPECT_FALSE(Publish(request).ok());
  EXPECT_THAT(plugin_.Log(), IsEmpty());
  EXPECT_TRUE(Gone());
}

// The publish waits for the consumer's identity; its position in the queue is by its arrival.
TEST_F(MounterReleaseTest, AnUnpublishEndsAPublishWhoseConsumerIsBeingIdentified) {
  Consumer consumer;
  const auto publish = loop_.Start(mounter_->Publish(Of(consumer), Soon()));
  const auto unpublish = loop_.Start(mounter_->Unpublish(Undo(Request()), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return publish->has_value() && unpublish->has_value(); }));
  EXPECT_EQ((*publish)->status().code(), absl::StatusCode::kAborted) << (*publish)->status();
  EXPECT_TRUE((*unpublish)->ok()) << (*unpublish)->status();
  EXPECT_TRUE(Gone());
  EXPECT_THAT(plugin_.Log(), IsEmpty());
}

TEST_F(MounterReleaseTest, AProcessThatEndsWhileItsVolumeIsPublishedLetsItGoAfterwards) {
  Consumer consumer;
  plugin_.HangNext("NodePublishVolume", Effect::kDone);
  const auto publish = loop_.Start(mounter_->Publish(Of(consumer), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") == 1; }));
  consumer.End();
  ASSERT_TRUE(loop_.RunUntil([&] {
    const auto types = EventTypes();
    return std::ranges::find(types, "volume.released") != types.end();
  }));
  plugin_.Release();
  EXPECT_TRUE(loop_.RunUntil([&] { return publish->has_value() && Gone(); }));
  EXPECT_EQ(plugin_.StagedCount() + plugin_.PublishedCount(), 0U);
}

TEST_F(MounterReleaseTest, AProcessThatEndsWhileBerthdIsAwayLetsItsVolumeGo) {
  Consumer consumer;
  ASSERT_TRUE(Publish(Of(consumer)).ok());
  Close();
  consumer.End();
  Open();
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); }));
}

TEST_F(MounterReleaseTest, ARepeatWithANewProcessIsWhatCounts) {
  Consumer first;
  Consumer second;
  ASSERT_TRUE(Publish(Of(first)).ok());
  ASSERT_TRUE(Publish(Of(second)).ok());
  EXPECT_EQ(View().publications.at(0).life.pid(), second.Life().pid());
  first.End();
  ASSERT_TRUE(Publish(Request("v2")).ok());
  EXPECT_FALSE(View().volume_id.empty());
  second.End();
  EXPECT_TRUE(loop_.RunUntil([&] { return View().volume_id.empty(); }));
}

TEST_F(MounterReleaseTest, AnUnpublishWaitsForTheConsumersEnd) {
  Consumer consumer;
  ASSERT_TRUE(Publish(Of(consumer)).ok());
  UnpublishRequest undo = Undo(Request());
  undo.wait_for_consumer = true;
  const auto early = loop_.Run(mounter_->Unpublish(undo, Shortly()));
  EXPECT_EQ(early.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(MessageOf(early.status()), HasSubstr("still runs"));
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0) << "nothing was begun";
  const auto waiting = loop_.Start(mounter_->Unpublish(undo, Soon()));
  // The volume is not held up meanwhile.
  EXPECT_TRUE(Publish(Request("v1", "db")).ok());
  EXPECT_FALSE(waiting->has_value());
  consumer.End();
  ASSERT_TRUE(loop_.RunUntil([&] { return waiting->has_value(); }));
  ASSERT_TRUE((*waiting)->ok()) << (*waiting)->status();
  EXPECT_TRUE((**waiting)->was_published);
  undo.consumer = "db";
  EXPECT_EQ(loop_.Run(mounter_->Unpublish(undo, Soon())).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "it is not known what it consists of";
}

TEST_F(MounterReleaseTest, AnUnpublishWaitsForTheConsumerThatThereIsByThen) {
  Consumer first;
  Consumer second;
  ASSERT_TRUE(Publish(Of(first)).ok());
  UnpublishRequest undo = Undo(Request());
  undo.wait_for_consumer = true;
  const auto waiting = loop_.Start(mounter_->Unpublish(undo, Soon()));
  ASSERT_TRUE(Publish(Of(second)).ok());
  first.End();
  ASSERT_TRUE(Publish(Request("v2")).ok());
  EXPECT_FALSE(waiting->has_value());
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0);
  second.End();
  ASSERT_TRUE(loop_.RunUntil([&] { return waiting->has_value(); }));
  EXPECT_TRUE((*waiting)->ok()) << (*waiting)->status();
}

TEST_F(MounterReleaseTest, AConsumerThatHasEndedLetsAllGoSideBySide) {
  for (const char* volume : {"v1", "v2", "v3"}) ASSERT_TRUE(Publish(Request(volume)).ok());
  PublishRequest again = Request("v1");
  again.name = "again";
  ASSERT_TRUE(Publish(again).ok());
  ASSERT_TRUE(Publish(Request("v3", "db")).ok());
  plugin_.HangNext("NodeUnpublishVolume", Effect::kDone);
  const auto ended = loop_.Start(mounter_->ConsumerEnded("web", "said so", Soon()));
  // The other volumes are released while one hangs. Which one hangs is not known: of v1, two may.
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.PublishedCount() <= 3; }));
  EXPECT_FALSE(ended->has_value());
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return ended->has_value(); }));
  ASSERT_TRUE((*ended)->ok()) << (*ended)->status();
  EXPECT_EQ(***ended, 4U);
  EXPECT_EQ(mounter_->List({}).size(), 1U);
  EXPECT_THAT(mounter_->List({.consumer = "web"}), IsEmpty());
  EXPECT_EQ(mounter_->List({.consumer = "db"}).size(), 1U);
  EXPECT_EQ(*loop_.Run(mounter_->ConsumerEnded("web", "said so", Soon())), 0U) << "repeated";
}

TEST_F(MounterReleaseTest, WhatWaitedForAConsumerThatHasEndedNeverBegins) {
  plugin_.HangNext("NodeStageVolume", Effect::kDone);
  const auto other = loop_.Start(mounter_->Publish(Request("v1", "db"), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeStageVolume") == 1; }));
  const auto queued = loop_.Start(mounter_->Publish(Request("v1", "web"), Soon()));
  const auto ended = loop_.Start(mounter_->ConsumerEnded("web", "said so", Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return queued->has_value(); }));
  EXPECT_EQ((*queued)->status().code(), absl::StatusCode::kAborted);
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return ended->has_value() && other->has_value(); }));
  EXPECT_TRUE((*ended)->ok()) << (*ended)->status();
  EXPECT_TRUE((*other)->ok()) << (*other)->status();
  EXPECT_THAT(mounter_->List({.consumer = "web"}), IsEmpty());
  EXPECT_EQ(plugin_.PublishedCount(), 1U);
}

class MounterSecretsTest : public MounterTestBase {
 protected:
  void SetUp() override {
    options_.credentials_dir = directory_;
    Open();
  }
  void WriteSecret(const std::string& value) const {
    std::ofstream(directory_ + "/token") << "k=" << value << "\n";
    ASSERT_EQ(chmod((directory_ + "/token").c_str(), 0400), 0);
  }
  static PublishRequest WithReference() {
    PublishRequest request = Request();
    request.secrets_reference.set_credential("token");
    return request;
  }
};

TEST_F(MounterSecretsTest, AReferenceIsReadAgainAfterBerthdEndedInTheMiddle) {
  WriteSecret("hunter2");
  plugin_.HangNext("NodePublishVolume", Effect::kDone);
  const auto cut = loop_.Start(mounter_->Publish(WithReference(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") == 1; }));
  EXPECT_EQ(plugin_.LastStage().secrets().at("k"), "hunter2");
  loop_.RunVoid(mounter_->Shutdown(Clock::now()));
  mounter_.reset();
  plugin_.Release();
  ASSERT_EQ(unlink((directory_ + "/token").c_str()), 0);
  WriteSecret("changed");
  Open();
  EXPECT_FALSE(View().awaiting_secrets);
  ASSERT_TRUE(loop_.RunUntil([&] {
    return !View().publications.empty() && View().publications[0].state == PublicationState::kPublished;
  }));
  EXPECT_EQ(plugin_.LastPublish().secrets().at("k"), "changed");
  EXPECT_THAT(EventTypes(), Not(Contains("volume.awaiting_secrets")));
  for (const char* file : {"/journal.db", "/journal.db-wal"}) {
    const auto bytes = ReadFile(options_.state_dir + file, 100'000'000);
    if (bytes.ok()) EXPECT_THAT(*bytes, Not(HasSubstr("hunter2")));
  }
}

TEST_F(MounterSecretsTest, AReferenceThatIsNotThereIsSaidBeforeAnythingIsBegun) {
  const auto refused = Publish(WithReference());
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("secrets"));
  EXPECT_THAT(plugin_.Log(), IsEmpty());
  EXPECT_TRUE(Gone());
}

TEST_F(MounterSecretsTest, ThatSecretsAreAwaitedIsToldOnce) {
  (void)CutOffWithSecrets("NodeStageVolume", Effect::kNone);
  EXPECT_FALSE(Publish(Request()).ok());
  const auto types = EventTypes();
  EXPECT_EQ(std::ranges::count(types, "volume.awaiting_secrets"), 1);
  EXPECT_TRUE(View().publications.at(0).awaiting_secrets);
}

}  // namespace
}  // namespace berth
