// What waits for a scheduler that is not reached, and how its volumes are released.
#include <sys/mount.h>

#include <algorithm>
#include <csignal>
#include <tuple>
#include <vector>

#include "base/testing/holder.h"
#include "base/testing/sleeper.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_types.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using LeaseMode = ::csi::v1::VolumeCapability::AccessMode;

constexpr const char* kNoLease = "no valid lease of the scheduler since today";

class MounterLeaseTest : public MounterTestBase {
 protected:
  MounterLeaseTest() {
    options_.on_consumer_ended = [this](const std::string& consumer, const std::string& cause,
                                        Origin origin) { ended_.emplace_back(consumer, cause, origin); };
    options_.consumer_end.grace = std::chrono::seconds(5);
  }

  static PublishRequest Scheduled(const std::string& volume = "v1", const std::string& consumer = "web") {
    PublishRequest request = Request(volume, consumer);
    request.origin = Origin::kScheduler;
    return request;
  }
  static PublishRequest By(const Sleeper& process, const std::string& volume = "v1",
                           const std::string& consumer = "web") {
    PublishRequest request = Scheduled(volume, consumer);
    request.life = ProcessLife(process.pid());
    return request;
  }

  [[nodiscard]] size_t Told(const std::string& type) const {
    return static_cast<size_t>(std::ranges::count(EventTypes(), type));
  }
  [[nodiscard]] std::string Held(const std::string& volume = "v1") {
    return View(volume).publications.at(0).blocked.value_or(Blocked()).text;
  }
  [[nodiscard]] bool Arrives(const std::string& volume = "v1") {
    return loop_.RunUntil([&] {
      const VolumeView view = View(volume);
      return !view.publications.empty() && view.publications[0].state == PublicationState::kPublished &&
             !view.publications[0].uncertain;
    });
  }
  // Long enough for several tries in the background, which come every 50 ms: other volumes come and go.
  void LetTimePass() {
    const TimePoint until = Clock::now() + std::chrono::milliseconds(200);
    while (Clock::now() < until) {
      ASSERT_TRUE(Publish(Request("other", "web")).ok());
      ASSERT_TRUE(Unpublish(Request("other", "web")).ok());
    }
  }
  // Whether the identity files would bring all of it back, should the journal be lost.
  [[nodiscard]] bool IdentitiesAreRight() {
    const auto findings = loop_.Run(mounter_->Examine(false, Soon()));
    return findings.ok() && std::ranges::count(*findings, "identity.wrong", &Finding::code) == 0;
  }
  absl::StatusOr<UnpublishResult> ForceRelease(const std::string& volume = "v1") {
    return loop_.Run(mounter_->ForceRelease({"hp", volume}, Origin::kScheduler, Soon()));
  }

  std::vector<std::tuple<std::string, std::string, Origin>> ended_;
};

TEST_F(MounterLeaseTest, AfterARestartOfBerthdWhatWasUnderWayForASchedulerWaits) {
  plugin_.HangNext("NodePublishVolume", Effect::kNone);
  const auto cut_off = loop_.Start(mounter_->Publish(Scheduled(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") == 1; }));
  loop_.RunVoid(mounter_->Shutdown(Clock::now()));
  mounter_.reset();
  plugin_.Release();
  Open();
  LetTimePass();
  const auto is_v1 = [](const std::string& call) { return call.ends_with(" v1"); };
  EXPECT_EQ(std::ranges::count_if(plugin_.Log(), is_v1), 2) << "the stage and the publish before";
  EXPECT_THAT(Held(), HasSubstr("berthd was restarted"));
  EXPECT_EQ(Told("node.awaiting_scheduler"), 1U);
  mounter_->UnblockForward(Origin::kDeclared, BootTime{});
  EXPECT_THAT(Held(), HasSubstr("berthd was restarted"));
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  ASSERT_TRUE(Arrives());
  EXPECT_THAT(Held(), IsEmpty());
}

TEST_F(MounterLeaseTest, WhatIsUndoneWaitsForNobody) {
  ASSERT_TRUE(Publish(Scheduled()).ok());
  ASSERT_TRUE(Publish(Scheduled("v2")).ok());
  plugins_.SetUsable(false);
  EXPECT_FALSE(loop_.Run(mounter_->Unpublish(Undo(Scheduled()), Shortly())).ok());
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  plugins_.SetUsable(true);
  EXPECT_TRUE(loop_.RunUntil([&] { return View().volume_id.empty(); }));
  EXPECT_EQ(*Unpublish(Scheduled("v2")), true);
  EXPECT_TRUE(Gone());
  EXPECT_EQ(plugin_.StagedCount() + plugin_.PublishedCount(), 0U);
}

TEST_F(MounterLeaseTest, WithoutALeaseNothingForwardIsTriedAgain) {
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone, 1000);
  const auto publish = loop_.Start(mounter_->Publish(Scheduled(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") >= 2; }));
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  ASSERT_TRUE(loop_.RunUntil([&] { return publish->has_value(); })) << "its caller is answered at once";
  EXPECT_TRUE(absl::IsUnavailable((*publish)->status())) << (*publish)->status();
  EXPECT_THAT(std::string(MessageOf((*publish)->status())), HasSubstr(kNoLease));
  plugin_.ClearFaults();
  const auto forward = [](const std::string& call) { return call == "NodePublishVolume v1"; };
  const auto before = std::ranges::count_if(plugin_.Log(), forward);
  LetTimePass();
  EXPECT_EQ(std::ranges::count_if(plugin_.Log(), forward), before);
  EXPECT_EQ(Held(), kNoLease);
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  EXPECT_TRUE(Arrives());
}

TEST_F(MounterLeaseTest, ThatTheSchedulerIsNotHeardIsToldOnceForTheNode) {
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  EXPECT_EQ(Told("node.awaiting_scheduler"), 0U) << "it has nothing here";
  for (const char* volume : {"v1", "v2", "v3"}) ASSERT_TRUE(Publish(Scheduled(volume)).ok());
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  EXPECT_EQ(Told("node.awaiting_scheduler"), 1U);
  EXPECT_THAT(Held(), IsEmpty()) << "what is published stays, and waits for nothing";
  Close();
  Open();
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  EXPECT_EQ(Told("node.awaiting_scheduler"), 2U) << "and by the next berthd";
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  EXPECT_EQ(Told("node.awaiting_scheduler"), 3U) << "and when it was heard in between";
}

TEST_F(MounterLeaseTest, APublishThatWaitsForItsPluginIsNotBegunWithoutALease) {
  plugins_.SetUsable(false);
  const auto first = loop_.Start(mounter_->Publish(Scheduled(), Soon()));
  const auto queued = loop_.Start(mounter_->Publish(Scheduled("v1", "db"), Soon()));
  const auto callers = loop_.Start(mounter_->Publish(Request("v1", "person"), Soon()));
  EXPECT_FALSE(loop_.RunUntil([&] { return first->has_value(); }, kAWhile));
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  ASSERT_TRUE(loop_.RunUntil([&] { return first->has_value() && queued->has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable((*first)->status())) << (*first)->status();
  EXPECT_TRUE(absl::IsUnavailable((*queued)->status())) << (*queued)->status();
  plugins_.SetUsable(true);
  ASSERT_TRUE(loop_.RunUntil([&] { return callers->has_value(); }));
  EXPECT_TRUE((*callers)->ok()) << "which is not the scheduler's: " << (*callers)->status();
  EXPECT_EQ(View().publications.size(), 1U);
}

TEST_F(MounterLeaseTest, FromWhicheverPointOnThereIsNoLeaseNothingMoreIsSent) {
  size_t sent = 0;
  bool lost = true;
  for (int point = 1; lost; ++point) {
    ASSERT_LT(point, 20);
    lost = false;
    int finds = 0;
    plugins_.on_find = [&] {
      if (++finds != point) return;
      lost = true;
      sent = plugin_.Log().size();
      mounter_->BlockForward(Origin::kScheduler, kNoLease);
    };
    const auto published = Publish(Scheduled());
    plugins_.on_find = nullptr;
    EXPECT_EQ(published.ok(), !lost) << "at point " << point << ": " << published.status();
    if (lost) EXPECT_EQ(plugin_.Log().size(), sent) << "at point " << point;
    if (lost) EXPECT_TRUE(absl::IsUnavailable(published.status())) << published.status();
    ASSERT_TRUE(Unpublish(Scheduled()).ok());
  }
  EXPECT_GT(sent, 0U) << "once after the staging";
}

TEST_F(MounterLeaseTest, AMountThatIsLostWithoutALeaseIsMadeAgainWithOne) {
  PublishRequest request = Scheduled();
  request.remount = true;
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(loop_.RunUntil([&] { return Told("volume.lost") == 1; }));
  LetTimePass();
  EXPECT_FALSE(IsMounted(*target));
  EXPECT_EQ(Held(), kNoLease);
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  ASSERT_TRUE(loop_.RunUntil([&] { return Told("volume.remounted") == 1; }));
  EXPECT_TRUE(IsMounted(*target));
}

TEST_F(MounterLeaseTest, AMountThatIsLostWhileBerthdIsAwayWaitsToo) {
  PublishRequest request = Scheduled();
  request.remount = true;
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  Close();
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  Open();
  LetTimePass();
  EXPECT_FALSE(IsMounted(*target));
  EXPECT_EQ(Told("node.awaiting_scheduler"), 1U);
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  ASSERT_TRUE(Arrives());
  EXPECT_TRUE(IsMounted(*target));
}

TEST_F(MounterLeaseTest, AnExpansionThatIsOwedWaitsForALease) {
  ASSERT_TRUE(Publish(Scheduled()).ok());
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  LetTimePass();
  EXPECT_EQ(plugin_.Calls("NodeExpandVolume"), 0);
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  EXPECT_TRUE(loop_.RunUntil([&] { return View().pending_expansion_bytes == 0; }));
}

TEST_F(MounterLeaseTest, ThatAConsumerHasEndedIsToldOnceForEachWhoPublishedForIt) {
  const Sleeper process;
  for (const char* volume : {"v1", "v2"}) ASSERT_TRUE(Publish(By(process, volume)).ok());
  PublishRequest own = By(process, "v3");
  own.origin = Origin::kCaller;
  ASSERT_TRUE(Publish(own).ok());
  process.Kill();
  ASSERT_TRUE(loop_.RunUntil([&] { return Gone(); }));
  const std::string why = "process " + std::to_string(process.pid()) + " has ended";
  EXPECT_THAT(ended_, UnorderedElementsAre(std::tuple("web", why, Origin::kScheduler),
                                           std::tuple("web", why, Origin::kCaller)));
  // Another one with that name, reported as ended.
  ended_.clear();
  for (const char* volume : {"v1", "v2"}) ASSERT_TRUE(Publish(Scheduled(volume)).ok());
  EXPECT_EQ(*loop_.Run(mounter_->ConsumerEnded("web", "said by uid 7", Soon())), 2U);
  EXPECT_THAT(ended_, ElementsAre(std::tuple("web", "said by uid 7", Origin::kScheduler)));
  EXPECT_EQ(*loop_.Run(mounter_->ConsumerEnded("web", "said by uid 7", Soon())), 0U);
  EXPECT_EQ(ended_.size(), 1U) << "nothing of its is here";
}

TEST_F(MounterLeaseTest, ForcedReleaseIsWhatOneNodeAloneMayWriteTo) {
  const auto publish = [this](const std::string& volume, LeaseMode::Mode mode, bool readonly, Origin origin) {
    PublishRequest request = Scheduled(volume);
    request.use.access_mode = mode;
    request.readonly = readonly;
    request.origin = origin;
    ASSERT_TRUE(Publish(request).ok()) << volume;
  };
  publish("a", LeaseMode::SINGLE_NODE_WRITER, false, Origin::kScheduler);
  publish("b", LeaseMode::SINGLE_NODE_MULTI_WRITER, true, Origin::kScheduler);
  publish("c", LeaseMode::MULTI_NODE_SINGLE_WRITER, false, Origin::kScheduler);
  publish("d", LeaseMode::MULTI_NODE_SINGLE_WRITER, true, Origin::kScheduler);
  publish("e", LeaseMode::MULTI_NODE_MULTI_WRITER, false, Origin::kScheduler);
  publish("f", LeaseMode::MULTI_NODE_READER_ONLY, true, Origin::kScheduler);
  publish("g", LeaseMode::SINGLE_NODE_READER_ONLY, true, Origin::kScheduler);
  publish("h", LeaseMode::SINGLE_NODE_WRITER, false, Origin::kCaller);
  publish("i", LeaseMode::SINGLE_NODE_SINGLE_WRITER, false, Origin::kScheduler);
  EXPECT_THAT(
      mounter_->SingleWriterVolumes(Origin::kScheduler),
      ElementsAre(VolumeRef{"hp", "a"}, VolumeRef{"hp", "b"}, VolumeRef{"hp", "c"}, VolumeRef{"hp", "i"}));
}

TEST_F(MounterLeaseTest, WhatTheSchedulerAsksForIsItsOwnThoughACallerHadPublishedIt) {
  const Sleeper process;
  PublishRequest own = By(process);
  own.origin = Origin::kCaller;
  const auto target = Publish(own);
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_THAT(mounter_->SingleWriterVolumes(Origin::kScheduler), IsEmpty());
  ASSERT_TRUE(Publish(By(process)).ok());
  EXPECT_EQ(View().publications.at(0).origin, Origin::kScheduler);
  EXPECT_THAT(mounter_->SingleWriterVolumes(Origin::kScheduler), ElementsAre(VolumeRef{"hp", "v1"}));
  ASSERT_TRUE(Publish(own).ok());
  EXPECT_EQ(View().publications.at(0).origin, Origin::kScheduler) << "a caller's repeat does not take it";
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
  EXPECT_TRUE(IdentitiesAreRight());

  // It waits for the scheduler after a restart, and while there is no lease.
  Close();
  Open();
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(loop_.RunUntil([&] { return Told("volume.lost") == 1; }));
  EXPECT_THAT(Held(), HasSubstr("berthd was restarted"));
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  EXPECT_EQ(Held(), kNoLease);
  // Its end is the scheduler's to know.
  process.Kill();
  ASSERT_TRUE(loop_.RunUntil([&] { return Gone(); }));
  ASSERT_EQ(ended_.size(), 1U);
  EXPECT_EQ(std::get<2>(ended_[0]), Origin::kScheduler);
}

TEST_F(MounterLeaseTest, WhatACallerHasBegunIsTheSchedulersOnceItAsksForIt) {
  options_.rpc_timeout = std::chrono::milliseconds(100);
  Close();
  Open();
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone, 1000);
  EXPECT_FALSE(Publish(Request()).ok());
  EXPECT_FALSE(Publish(Scheduled()).ok());
  EXPECT_EQ(View().publications.at(0).origin, Origin::kScheduler);
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  EXPECT_EQ(Held(), kNoLease);
  EXPECT_FALSE(Publish(Request()).ok());
  EXPECT_EQ(View().publications.at(0).origin, Origin::kScheduler);
  plugin_.ClearFaults();
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  ASSERT_TRUE(Arrives());
  EXPECT_TRUE(IdentitiesAreRight());
}

TEST_F(MounterLeaseTest, WhatAFileDeclaresIsNotTheSchedulersToAskFor) {
  PublishRequest declared = Scheduled();
  declared.origin = Origin::kDeclared;
  ASSERT_TRUE(Publish(declared).ok());
  const auto refused = Publish(Scheduled());
  EXPECT_TRUE(absl::IsAlreadyExists(refused.status())) << refused.status();
  EXPECT_THAT(std::string(MessageOf(refused.status())), HasSubstr("consumer web has this volume already"));
  EXPECT_THAT(std::string(MessageOf(refused.status())), HasSubstr("volumes.d"));
  EXPECT_TRUE(Publish(Request()).ok()) << "a caller may repeat it, as ever";
  EXPECT_EQ(View().publications.at(0).origin, Origin::kDeclared);
}

TEST_F(MounterLeaseTest, AVolumeThatIsForcedReleaseLeavesWithItsConsumer) {
  const Sleeper process;
  const auto target = Publish(By(process));
  ASSERT_TRUE(target.ok()) << target.status();
  mounter_->BlockForward(Origin::kScheduler, kNoLease);
  const auto result = ForceRelease();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->still_in_use);
  EXPECT_EQ(waitpid(process.pid(), nullptr, WNOHANG), process.pid()) << "it has ended";
  EXPECT_TRUE(Gone());
  EXPECT_FALSE(IsMounted(*target));
  EXPECT_EQ(plugin_.StagedCount() + plugin_.PublishedCount(), 0U);
  EXPECT_TRUE(ForceRelease().ok()) << "again";
}

TEST_F(MounterLeaseTest, AVolumeIsNotTakenFromAConsumerThatCannotBeEnded) {
  PublishRequest request = Scheduled();
  request.life = ProcessLife(getpid());
  ASSERT_TRUE(Publish(request).ok());
  const auto result = ForceRelease();
  EXPECT_TRUE(absl::IsFailedPrecondition(result.status())) << result.status();
  EXPECT_EQ(View().publications.at(0).state, PublicationState::kPublished);
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0);
}

TEST_F(MounterLeaseTest, AConsumerThatDoesNotEndKeepsNoOtherFromIt) {
  const Holder stubborn([] { return std::signal(SIGTERM, SIG_IGN) != SIG_ERR; });
  const Sleeper polite;
  PublishRequest first = Scheduled("v1", "stubborn");
  first.life = ProcessLife(stubborn.pid());
  ASSERT_TRUE(Publish(first).ok());
  ASSERT_TRUE(Publish(By(polite)).ok());
  const auto result = loop_.Run(mounter_->ForceRelease({"hp", "v1"}, Origin::kScheduler,
                                                       Clock::now() + std::chrono::milliseconds(500)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
  EXPECT_THAT(std::string(MessageOf(result.status())), HasSubstr("consumer stubborn"));
  EXPECT_THAT(std::string(MessageOf(result.status())), HasSubstr("was asked to end, and has not yet"));
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(polite.pid()), &ended, WEXITED | WNOHANG | WNOWAIT), 0);
  EXPECT_EQ(ended.si_pid, polite.pid());
  EXPECT_EQ(ended.si_status, SIGTERM) << "it had its time";
  ASSERT_EQ(View().publications.size(), 1U) << "and its volume is taken back";
  EXPECT_EQ(View().publications[0].consumer, "stubborn");
  ended = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(stubborn.pid()), &ended, WEXITED | WNOHANG | WNOWAIT), 0);
  EXPECT_EQ(ended.si_pid, 0) << "its grace is not over";
  kill(stubborn.pid(), SIGKILL);
  EXPECT_TRUE(ForceRelease().ok());
}

TEST_F(MounterLeaseTest, AVolumeThatOthersUseIsNotCalledForcedRelease) {
  const Sleeper process;
  ASSERT_TRUE(Publish(By(process)).ok());
  ASSERT_TRUE(Publish(Request("v1", "person")).ok());
  const auto result = ForceRelease();
  EXPECT_TRUE(absl::IsFailedPrecondition(result.status())) << result.status();
  EXPECT_THAT(std::string(MessageOf(result.status())), HasSubstr("person"));
  EXPECT_EQ(View().publications.size(), 1U);
  ASSERT_TRUE(Unpublish(Request("v1", "person")).ok());
  EXPECT_TRUE(ForceRelease().ok());
}

TEST_F(MounterLeaseTest, AVolumeThatItsPluginDoesNotUnpublishIsNotCalledForcedRelease) {
  const auto target = Publish(Scheduled());
  ASSERT_TRUE(target.ok()) << target.status();
  plugin_.FailNext("NodeUnpublishVolume", grpc::StatusCode::INTERNAL, Effect::kNone, 1000);
  const auto result = loop_.Run(mounter_->ForceRelease({"hp", "v1"}, Origin::kScheduler,
                                                       Clock::now() + std::chrono::milliseconds(300)));
  EXPECT_FALSE(result.ok());
  EXPECT_TRUE(IsMounted(*target));
  plugin_.ClearFaults();
  EXPECT_TRUE(ForceRelease().ok());
  EXPECT_FALSE(IsMounted(*target));
  EXPECT_TRUE(Gone());
}

}  // namespace
}  // namespace berth
