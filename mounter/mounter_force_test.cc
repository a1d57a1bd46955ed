// What waits for what: requests that join, supersede and force their way.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/safe_path.h"
#include "base/unique_fd.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_types.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class MounterForceTest : public MounterTestBase {
 protected:
  // So that only what the test does ends a wait.
  void PatientlyOpen() {
    Close();
    options_.rpc_timeout = std::chrono::hours(1);
    Open();
  }
  static UnpublishRequest Forced(const PublishRequest& request) {
    UnpublishRequest undo = Undo(request);
    undo.force = true;
    return undo;
  }
};

TEST_F(MounterForceTest, AnotherRequestIsToldWhatRunsSinceWhenAndForWhom) {
  plugin_.HangNext("NodeStageVolume", Effect::kDone);
  const auto first = loop_.Start(mounter_->Publish(Request(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeStageVolume") == 1; }));
  const auto late = loop_.Run(mounter_->Publish(Request("v1", "db"), Shortly()));
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(MessageOf(late.status()), HasSubstr("NodeStageVolume has run for"));
  EXPECT_THAT(MessageOf(late.status()), HasSubstr("consumer web"));
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return first->has_value(); }));
}

TEST_F(MounterForceTest, OtherSecretsAreAnotherRequest) {
  PublishRequest request = Request();
  request.secrets = {{"k", "right"}};
  plugin_.HangNext("NodeStageVolume", Effect::kDone);
  const auto first = loop_.Start(mounter_->Publish(request, Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeStageVolume") == 1; }));
  request.secrets = {{"k", "wrong"}};
  const auto second = loop_.Run(mounter_->Publish(request, Shortly()));
  EXPECT_THAT(MessageOf(second.status()), HasSubstr("not begun")) << "it did not join";
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return first->has_value(); }));
}

TEST_F(MounterForceTest, AnUnpublishDoesNotWaitForAPluginThatAPublishWaitsFor) {
  PatientlyOpen();
  plugins_.SetUsable(false);
  const auto publish = loop_.Start(mounter_->Publish(Request(), Clock::now() + std::chrono::hours(1)));
  EXPECT_FALSE(loop_.RunUntil([&] { return publish->has_value(); }, kAWhile));
  // Nothing was sent, so nothing has to be undone, and no plugin is needed for that.
  EXPECT_TRUE(Unpublish(Request()).ok());
  ASSERT_TRUE(loop_.RunUntil([&] { return publish->has_value(); }));
  EXPECT_EQ((*publish)->status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(MessageOf((*publish)->status()), HasSubstr("backing off"));
  EXPECT_TRUE(Gone());
  EXPECT_THAT(plugin_.Log(), IsEmpty());
}

TEST_F(MounterForceTest, NothingIsLeftOfAPublishWhosePluginWentAwayBeforeItWasAsked) {
  options_.at_boundary = [this](std::string_view point) {
    if (point == "intent: written") plugins_.SetUsable(false);
  };
  PatientlyOpen();
  const auto publish = loop_.Start(mounter_->Publish(Request(), Clock::now() + std::chrono::hours(1)));
  ASSERT_TRUE(loop_.RunUntil([&] { return !View().publications.empty(); }));
  EXPECT_FALSE(loop_.RunUntil([&] { return publish->has_value(); }, kAWhile));
  EXPECT_TRUE(Unpublish(Request()).ok());
  ASSERT_TRUE(loop_.RunUntil([&] { return publish->has_value(); }));
  EXPECT_FALSE((*publish)->ok());
  EXPECT_TRUE(Gone());
  EXPECT_THAT(plugin_.Log(), IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(options_.state_dir + "/volumes"));
  EXPECT_THAT(EventTypes(), Not(Contains("volume.leftover")));
}

TEST_F(MounterForceTest, NothingIsLeftOfAPublishWhoseStagingFailedForGood) {
  plugin_.FailNext("NodeStageVolume", grpc::StatusCode::INVALID_ARGUMENT, Effect::kNone);
  EXPECT_EQ(Publish(Request()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Gone());
  EXPECT_TRUE(std::filesystem::is_empty(options_.state_dir + "/volumes"));
  EXPECT_THAT(EventTypes(), Not(Contains("volume.leftover")));
}

TEST_F(MounterForceTest, AnExpansionThatWaitsForAPluginMakesWayForAnUnpublish) {
  PatientlyOpen();
  ASSERT_TRUE(Publish(Request()).ok());
  plugins_.SetUsable(false);
  ::csi::v1::CapacityRange range;
  range.set_required_bytes(1 << 20);
  const auto expand =
      loop_.Start(mounter_->NodeExpand("hp", "v1", range, {}, Clock::now() + std::chrono::hours(1)));
  EXPECT_FALSE(loop_.RunUntil([&] { return expand->has_value(); }, kAWhile));
  const auto undo = loop_.Start(mounter_->Unpublish(Undo(Request()), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return expand->has_value(); }));
  EXPECT_EQ((*expand)->status().code(), absl::StatusCode::kAborted);
  plugins_.SetUsable(true);
  ASSERT_TRUE(loop_.RunUntil([&] { return undo->has_value(); }));
  EXPECT_TRUE((*undo)->ok()) << (*undo)->status();
}

TEST_F(MounterForceTest, Fault56AnUnpublishGoesBeforeAPublishThatFailsForEver) {
  PatientlyOpen();
  ASSERT_TRUE(Publish(Request("v1", "web")).ok());
  for (const char* rpc : {"NodePublishVolume", "NodeStageVolume"}) {
    plugin_.FailNext(rpc, grpc::StatusCode::UNAVAILABLE, Effect::kNone, 1000);
  }
  const auto publish =
      loop_.Start(mounter_->Publish(Request("v1", "db"), Clock::now() + std::chrono::hours(1)));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") > 3; }));
  const auto undone = loop_.Run(mounter_->Unpublish(Undo(Request("v1", "web")), Soon()));
  EXPECT_TRUE(undone.ok()) << undone.status();
  EXPECT_FALSE(publish->has_value()) << "it goes on afterwards";
  const int tries = plugin_.Calls("NodePublishVolume");
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") > tries; }));
  // Its own ends it.
  EXPECT_TRUE(loop_.Run(mounter_->Unpublish(Undo(Request("v1", "db")), Soon())).ok());
  ASSERT_TRUE(loop_.RunUntil([&] { return publish->has_value(); }));
  EXPECT_FALSE((*publish)->ok());
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); }));
}

TEST_F(MounterForceTest, Fault56APublishThatMadeWayComesToItsEnd) {
  PatientlyOpen();
  ASSERT_TRUE(Publish(Request("v1", "web")).ok());
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone, 1000);
  const auto publish =
      loop_.Start(mounter_->Publish(Request("v1", "db"), Clock::now() + std::chrono::hours(1)));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") > 2; }));
  EXPECT_TRUE(loop_.Run(mounter_->Unpublish(Undo(Request("v1", "web")), Soon())).ok());
  plugin_.ClearFaults();
  ASSERT_TRUE(loop_.RunUntil([&] { return publish->has_value(); }));
  ASSERT_TRUE((*publish)->ok()) << (*publish)->status();
  EXPECT_TRUE(IsMounted(***publish));
}

TEST_F(MounterForceTest, Fault56AnExpansionThatFailsEndsTheRequestAndStaysPending) {
  PatientlyOpen();
  ASSERT_TRUE(Publish(Request()).ok());
  plugin_.FailNext("NodeExpandVolume", grpc::StatusCode::INTERNAL, Effect::kNone, 1000);
  ::csi::v1::CapacityRange range;
  range.set_required_bytes(1 << 20);
  const auto expanded = loop_.Run(mounter_->NodeExpand("hp", "v1", range, {}, Soon()));
  EXPECT_EQ(expanded.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(plugin_.Calls("NodeExpandVolume"), 1);
  EXPECT_EQ(View().pending_expansion_bytes, 1 << 20);
  EXPECT_TRUE(loop_.Run(mounter_->Publish(Request("v1", "db"), Soon())).ok()) << "nothing waits for it";
  plugin_.ClearFaults();
  EXPECT_TRUE(loop_.RunUntil([this] { return View().pending_expansion_bytes == 0; }));
}

TEST_F(MounterForceTest, Fault57AStepThatThePluginDoesNotHaveAnyMoreIsDoneByBerthd) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugin_.FailNext("NodeUnstageVolume", grpc::StatusCode::UNIMPLEMENTED, Effect::kNone, 1000);
  const auto refused = loop_.Start(mounter_->Unpublish(Undo(Request()), Shortly()));
  ASSERT_TRUE(loop_.RunUntil([&] { return refused->has_value(); }));
  EXPECT_FALSE((*refused)->ok()) << "its capabilities name it";
  plugins_.facts.node_capabilities.erase(::csi::v1::NodeServiceCapability::RPC::STAGE_UNSTAGE_VOLUME);
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
  EXPECT_THAT(EventTypes(), Contains("volume.undone_without_plugin"));
}

class MounterWithoutPluginTest : public MounterForceTest {
 protected:
  absl::StatusOr<UnpublishResult> Force(const PublishRequest& request) {
    UnpublishRequest forced = Forced(request);
    forced.requested_by = "uid 7";
    return loop_.Run(mounter_->Unpublish(forced, Soon()));
  }
};

TEST_F(MounterWithoutPluginTest, Fault57AVolumeWhosePluginIsGoneIsReleasedOnRequestAndPendingWithIt) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  plugins_.removed = true;
  const auto refused = loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_TRUE(View().plugin_missing);
  EXPECT_TRUE(IsMounted(*target));
  const std::string staging = View().staging_path;
  const auto forced = Force(Request());
  ASSERT_TRUE(forced.ok()) << forced.status();
  EXPECT_TRUE(forced->without_plugin);
  EXPECT_FALSE(forced->still_in_use);
  EXPECT_FALSE(IsMounted(*target));
  EXPECT_FALSE(IsMounted(staging));
  ASSERT_TRUE(View().without_plugin.has_value());
  EXPECT_EQ(View().without_plugin->requested_by, "uid 7");
  EXPECT_THAT(EventTypes(), Contains("volume.released_without_plugin"));
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0);
  // Without force it is not reported as free; with force it may be repeated.
  EXPECT_FALSE(Unpublish(Request()).ok());
  EXPECT_TRUE(Force(Request())->without_plugin);
  // It is remembered, and undone with the plugin once that is back.
  Close();
  Open();
  ASSERT_TRUE(View().without_plugin.has_value());
  EXPECT_EQ(View().without_plugin->requested_by, "uid 7");
  plugins_.removed = false;
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 1);
  EXPECT_EQ(plugin_.Calls("NodeUnstageVolume"), 1);
}

TEST_F(MounterWithoutPluginTest, Fault57APluginThatAlwaysRefusesIsGotPastByForceAlone) {
  PublishRequest request = Request();
  const auto target = Publish(request);
  ASSERT_TRUE(target.ok()) << target.status();
  for (const char* rpc : {"NodeUnpublishVolume", "NodeUnstageVolume"}) {
    plugin_.FailNext(rpc, grpc::StatusCode::INTERNAL, Effect::kNone, 1000);
  }
  EXPECT_FALSE(loop_.Run(mounter_->Unpublish(Undo(request), Shortly())).ok());
  EXPECT_TRUE(IsMounted(*target));
  EXPECT_TRUE(loop_.RunUntil([this] { return View().plugin_refuses; }));
  const auto forced = Force(request);
  ASSERT_TRUE(forced.ok()) << forced.status();
  EXPECT_TRUE(forced->without_plugin);
  EXPECT_FALSE(IsMounted(*target));
  EXPECT_TRUE(View().without_plugin.has_value());
  const int asked = plugin_.Calls("NodeUnpublishVolume");
  EXPECT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeUnpublishVolume") > asked; }))
      << "still to be done";
  plugin_.ClearFaults();
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
}

TEST_F(MounterWithoutPluginTest, Fault57OnlyTheStagingIsLeftAndThePluginRefusesThat) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugin_.FailNext("NodeUnstageVolume", grpc::StatusCode::FAILED_PRECONDITION, Effect::kNone, 1000);
  EXPECT_FALSE(loop_.Run(mounter_->Unpublish(Undo(Request()), Shortly())).ok());
  EXPECT_THAT(View().publications, IsEmpty());
  const std::string staging = View().staging_path;
  EXPECT_TRUE(IsMounted(staging));
  const auto forced = Force(Request("v1", "none"));
  ASSERT_TRUE(forced.ok()) << forced.status();
  EXPECT_TRUE(forced->without_plugin);
  EXPECT_FALSE(IsMounted(staging));
}

TEST_F(MounterWithoutPluginTest, Fault57AnotherUseOfTheVolumeStaysAsItIs) {
  const auto web = Publish(Request());
  const auto db = Publish(Request("v1", "db"));
  ASSERT_TRUE(web.ok() && db.ok());
  plugins_.removed = true;
  const auto forced = Force(Request());
  ASSERT_TRUE(forced.ok()) << forced.status();
  EXPECT_FALSE(IsMounted(*web));
  EXPECT_TRUE(IsMounted(*db));
  EXPECT_TRUE(IsMounted(View().staging_path));
  EXPECT_FALSE(View().without_plugin.has_value()) << "it is not released";
  plugins_.removed = false;
  EXPECT_TRUE(loop_.RunUntil([this] { return View().publications.size() == 1; }));
  EXPECT_TRUE(Unpublish(Request("v1", "db")).ok());
  EXPECT_TRUE(Gone());
}

TEST_F(MounterWithoutPluginTest, Fault57WhoUsesTheMountIsNotForcedOutByThat) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  UniqueFd held(open(target->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  plugins_.removed = true;
  const auto busy = Force(Request());
  EXPECT_FALSE(busy.ok());
  EXPECT_THAT(MessageOf(busy.status()), HasSubstr("kept busy by"));
  EXPECT_TRUE(IsMounted(*target));
  EXPECT_FALSE(View().without_plugin.has_value());
  held.Reset();
  EXPECT_TRUE(Force(Request())->without_plugin);
}

TEST_F(MounterWithoutPluginTest, Fault57APublishAfterwardsComesOnceThePluginHasUndoneItsPart) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugins_.removed = true;
  ASSERT_TRUE(Force(Request()).ok());
  EXPECT_FALSE(Publish(Request("v1", "db")).ok());
  plugins_.removed = false;
  const auto again = Publish(Request("v1", "db"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(IsMounted(*again));
  EXPECT_FALSE(View().without_plugin.has_value());
  EXPECT_TRUE(Unpublish(Request("v1", "db")).ok());
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
}

TEST_F(MounterWithoutPluginTest, Fault57WhatIsRefusedForDaysIsToldRarelyWithItsNumber) {
  Close();
  options_.rpc_timeout = std::chrono::seconds(2);
  Open();
  ASSERT_TRUE(Publish(Request()).ok());
  plugin_.FailNext("NodeUnpublishVolume", grpc::StatusCode::INTERNAL, Effect::kNone, 1000);
  EXPECT_FALSE(loop_.Run(mounter_->Unpublish(Undo(Request()), Shortly())).ok());
  ASSERT_TRUE(loop_.RunUntil([this] { return View().failures > 20; }));
  const auto late = loop_.Run(mounter_->Unpublish(Undo(Request()), Shortly()));
  EXPECT_THAT(MessageOf(late.status()), AllOf(HasSubstr("failed "), HasSubstr(" times, last: ")));
  const std::vector<std::string> types = EventTypes();
  EXPECT_LE(std::ranges::count(types, "volume.uncertain") + std::ranges::count(types, "volume.failed"), 2);
  plugin_.ClearFaults();
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << View().last_error;
}

TEST_F(MounterForceTest, Fault56WhatIsOnlyReadIsNotGrown) {
  PublishRequest reader = Request();
  reader.readonly = true;
  reader.use.access_mode = ::csi::v1::VolumeCapability::AccessMode::MULTI_NODE_READER_ONLY;
  ASSERT_TRUE(Publish(reader).ok());
  ::csi::v1::CapacityRange range;
  range.set_required_bytes(1 << 20);
  EXPECT_TRUE(absl::IsNotFound(loop_.Run(mounter_->NodeExpand("hp", "v1", range, {}, Soon())).status()));
  EXPECT_EQ(View().pending_expansion_bytes, 1 << 20);
  EXPECT_FALSE(loop_.RunUntil([&] { return plugin_.Calls("NodeExpandVolume") > 0; }, kAWhile));
}

TEST_F(MounterForceTest, AForcedUnpublishGetsPastAnExpansionThatHangs) {
  PatientlyOpen();
  ASSERT_TRUE(Publish(Request()).ok());
  plugin_.HangNext("NodeExpandVolume", Effect::kNone);
  ::csi::v1::CapacityRange range;
  range.set_required_bytes(1 << 20);
  const auto expand =
      loop_.Start(mounter_->NodeExpand("hp", "v1", range, {}, Clock::now() + std::chrono::hours(1)));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeExpandVolume") == 1; }));
  const auto forced = loop_.Run(mounter_->Unpublish(Forced(Request()), Soon()));
  EXPECT_TRUE(forced.ok()) << forced.status();
  ASSERT_TRUE(loop_.RunUntil([&] { return expand->has_value(); }));
  EXPECT_FALSE((*expand)->ok());
  EXPECT_TRUE(Gone());
}

TEST_F(MounterForceTest, WhatWasDetachedLazilyIsToldByEachLaterTry) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  UniqueFd held(open(target->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  plugin_.FailNext("NodeUnstageVolume", grpc::StatusCode::INTERNAL, Effect::kNone, 1000);
  UnpublishRequest lazy = Undo(Request());
  lazy.lazy = true;
  const auto cut = loop_.Start(mounter_->Unpublish(lazy, Shortly()));
  ASSERT_TRUE(loop_.RunUntil([&] { return cut->has_value(); }));
  EXPECT_FALSE((*cut)->ok());
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeUnstageVolume") > 0; }));
  // Not even the end of berthd makes it forgotten.
  Close();
  Open();
  plugin_.ClearFaults();
  for (const char* time : {"second", "third", "fourth"}) {
    const auto later = loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()));
    ASSERT_TRUE(later.ok()) << later.status();
    EXPECT_TRUE(later->still_in_use) << time;
    EXPECT_THAT(later->used_by, HasSubstr(fmt::format("pid {}", getpid())));
    EXPECT_TRUE(View().still_in_use) << "the node still has it";
    Close();
    Open();
  }
  // Nor does a use of it that comes to nothing.
  plugin_.FailNext("NodeStageVolume", grpc::StatusCode::INVALID_ARGUMENT, Effect::kNone);
  EXPECT_FALSE(Publish(Request()).ok());
  EXPECT_TRUE(loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()))->still_in_use);
  ASSERT_TRUE(Publish(Request()).ok());
  const auto other = loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(other->still_in_use) << "the first user is there still";
  held.Reset();
  EXPECT_TRUE(loop_.RunUntil([this] { return Gone(); })) << "it is released by itself";
}

TEST_F(MounterForceTest, AnUnpublishEndsThePublishesOfTheSameThatHaveNotBegun) {
  ASSERT_TRUE(Publish(Request("v1", "db")).ok());
  plugin_.HangNext("NodePublishVolume", Effect::kDone);
  const auto first = loop_.Start(mounter_->Publish(Request("v1", "other"), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") == 2; }));
  const auto queued = loop_.Start(mounter_->Publish(Request(), Soon()));
  const auto undo = loop_.Start(mounter_->Unpublish(Undo(Request()), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return queued->has_value(); }));
  EXPECT_EQ((*queued)->status().code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(first->has_value()) << "what runs for others is not touched";
  plugin_.Release();
  ASSERT_TRUE(loop_.RunUntil([&] { return undo->has_value() && first->has_value(); }));
  EXPECT_TRUE((*first)->ok());
}

TEST_F(MounterForceTest, WorkInTheBackgroundThatWaitsForAPluginMakesWayForARequest) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  ASSERT_TRUE(Publish(Request("v1", "db")).ok());
  plugins_.SetUsable(false);
  EXPECT_FALSE(loop_.Run(mounter_->Unpublish(Undo(Request("v1", "db")), Shortly())).ok());
  Close();
  Open();
  // In the background it waits for the plugin; that this is published the kernel alone can say.
  EXPECT_EQ(*Publish(Request()), *target);
}

TEST_F(MounterForceTest, AForcedUnpublishGetsPastAPublishThatHangs) {
  ASSERT_TRUE(Publish(Request("v1", "db")).ok());
  plugin_.HangNext("NodePublishVolume", Effect::kNone);
  const auto publish = loop_.Start(mounter_->Publish(Request(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") == 2; }));
  const auto queued = loop_.Start(mounter_->Publish(Request("v1", "third"), Soon()));
  const auto forced = loop_.Run(mounter_->Unpublish(Forced(Request()), Soon()));
  ASSERT_TRUE(forced.ok()) << forced.status();
  ASSERT_TRUE(loop_.RunUntil([&] { return publish->has_value() && queued->has_value(); }));
  EXPECT_FALSE((*publish)->ok());
  EXPECT_TRUE((*queued)->ok()) << "what waits has its turn after it: " << (*queued)->status();
  EXPECT_EQ(View().publications.size(), 2U);
  EXPECT_EQ(plugin_.PublishedCount(), 2U);
}

TEST_F(MounterForceTest, AForcedUnpublishGetsPastAnUnpublishThatHangs) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugin_.HangNext("NodeUnpublishVolume", Effect::kNone);
  const auto first = loop_.Start(mounter_->Unpublish(Undo(Request()), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeUnpublishVolume") == 1; }));
  const auto forced = loop_.Run(mounter_->Unpublish(Forced(Request()), Soon()));
  ASSERT_TRUE(forced.ok()) << forced.status();
  ASSERT_TRUE(loop_.RunUntil([&] { return first->has_value(); }));
  EXPECT_TRUE(Gone());
  EXPECT_EQ(plugin_.StagedCount() + plugin_.PublishedCount(), 0U);
}

TEST_F(MounterForceTest, ACallThatDoesNotComeBackIsShownAsStuckAndCostsItsVolumeAlone) {
  Close();
  options_.rpc_timeout = std::chrono::milliseconds(500);
  Open();
  ASSERT_TRUE(Publish(Request()).ok());
  for (int i = 0; i < 50; ++i) plugin_.HangNext("NodeUnpublishVolume", Effect::kNone);
  const auto undo = loop_.Run(mounter_->Unpublish(Undo(Request()), Soon()));
  EXPECT_FALSE(undo.ok());
  ASSERT_TRUE(View().stuck.has_value());
  EXPECT_THAT(View().stuck->on, HasSubstr("NodeUnpublishVolume"));
  EXPECT_THAT(EventTypes(), Contains("volume.stuck"));
  EXPECT_TRUE(Publish(Request("v2")).ok()) << "another volume goes on";
  EXPECT_FALSE(View("v2").stuck.has_value());
  plugin_.ClearFaults();
  plugin_.Release();
  EXPECT_TRUE(loop_.RunUntil([&] { return View().volume_id.empty(); })) << "it ends once the plugin answers";
}

// As a driver that keeps its own lock: nothing comes back before it is restarted.
class MounterHungPluginTest : public MounterForceTest {
 protected:
  void SetUp() override {
    options_.rpc_timeout = std::chrono::seconds(2);
    MounterForceTest::SetUp();
    ASSERT_TRUE(Publish(Request()).ok());
    for (int i = 0; i < 50; ++i) plugin_.HangNext("NodeUnpublishVolume", Effect::kNone);
    plugins_.on_restart = [this] {
      Restart();
      return absl::OkStatus();
    };
  }
  void Restart() {
    plugin_.ClearFaults();
    plugin_.Release();
  }
  [[nodiscard]] bool PluginHangs() { return View().stuck.has_value() && View().stuck->plugin_hangs; }
};

TEST_F(MounterHungPluginTest, LazyDetachesAndSaysSoAndWhatStillRuns) {
  UnpublishRequest lazy = Undo(Request());
  lazy.lazy = true;
  const auto undo = loop_.Start(mounter_->Unpublish(lazy, Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return View().detached_at.has_value(); }));
  EXPECT_FALSE(undo->has_value()) << "while the plugin's call runs";
  ASSERT_TRUE(loop_.RunUntil([&] { return undo->has_value(); }));
  EXPECT_THAT(MessageOf((*undo)->status()),
              AllOf(HasSubstr("a mount of it was detached"), HasSubstr("NodeUnpublishVolume")));
  EXPECT_TRUE(loop_.RunUntil([&] { return PluginHangs(); }));
  EXPECT_EQ(plugins_.restarts, 0) << "its file does not ask for it";
  Restart();
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); })) << "also what is left to be done is forced still";
}

// Seen with NFS: the detach of the last mount waits for its server, and was not reported.
TEST_F(MounterHungPluginTest, ADetachWhoseEndIsWaitedForIsADetach) {
  Close();
  const std::string script = NewTestDirectory() + "/helper";
  std::ofstream(script) << fmt::format(R"(#!/bin/sh
{} "$@"
status=$?
case "$*" in *--lazy*) exec sleep 1000 ;; esac
exit $status
)",
                                       BERTH_MOUNT_HELPER);
  ASSERT_EQ(chmod(script.c_str(), 0755), 0);
  options_.helper_path = script;
  options_.rpc_timeout = std::chrono::seconds(4);
  Open();
  UnpublishRequest lazy = Undo(Request());
  lazy.lazy = true;
  const auto undo = loop_.Run(mounter_->Unpublish(lazy, Soon()));
  EXPECT_THAT(MessageOf(undo.status()), HasSubstr("a mount of it was detached"));
  EXPECT_TRUE(View().detached_at.has_value());
  EXPECT_TRUE(View().still_in_use) << "a volume that was detached is not free";
  Restart();
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); }, std::chrono::seconds(60)));
}

TEST_F(MounterHungPluginTest, ACallerWhoseTimeIsOverIsToldWhatWasDone) {
  Close();
  options_.rpc_timeout = std::chrono::seconds(10);
  Open();
  UnpublishRequest both = Forced(Request());
  both.lazy = true;
  const auto undo = loop_.Start(mounter_->Unpublish(both, Clock::now() + std::chrono::seconds(2)));
  ASSERT_TRUE(loop_.RunUntil([&] { return undo->has_value(); }));
  EXPECT_EQ((*undo)->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(MessageOf((*undo)->status()),
              AllOf(HasSubstr("its file system was aborted"), HasSubstr("NodeUnpublishVolume has run for")));
  Restart();
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); }));
}

TEST_F(MounterHungPluginTest, WithoutALeverNobodyIsBlamedAndNothingIsRestarted) {
  plugins_.restart_after = std::chrono::milliseconds(100);
  EXPECT_FALSE(loop_.Run(mounter_->Unpublish(Undo(Request()), Soon())).ok());
  ASSERT_TRUE(View().stuck.has_value());
  EXPECT_FALSE(View().stuck->plugin_hangs) << "it is mounted: its server may be what does not answer";
  EXPECT_EQ(plugins_.restarts, 0);
  EXPECT_FALSE(View().aborted_at || View().detached_at);
}

TEST_F(MounterHungPluginTest, ItIsRestartedOnceItsTimeIsOverWhereItsFileAllowsThat) {
  plugins_.restart_after = std::chrono::milliseconds(1500);
  const auto undo = loop_.Start(mounter_->Unpublish(Forced(Request()), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return plugins_.restarts > 0; }));
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); }));
  EXPECT_EQ(plugins_.restarts, 1);
  EXPECT_THAT(EventTypes(), Contains("plugin.hung"));
  ASSERT_TRUE(loop_.RunUntil([&] { return undo->has_value(); }));
}

TEST_F(MounterHungPluginTest, ARestartThatIsRefusedIsShownWithTheReason) {
  plugins_.restart_after = std::chrono::milliseconds(500);
  plugins_.on_restart = [] { return absl::FailedPreconditionError("it serves its mounts itself"); };
  EXPECT_FALSE(loop_.Run(mounter_->Unpublish(Forced(Request()), Soon())).ok());
  EXPECT_TRUE(PluginHangs());
  EXPECT_THAT(View().last_error, HasSubstr("it serves its mounts itself"));
  EXPECT_THAT(EventTypes(), Not(Contains("plugin.hung")));
}

TEST_F(MounterHungPluginTest, WhatRefusesBecauseOfItsHungCallHangsToo) {
  plugin_.ClearFaults();
  plugin_.HangNext("NodeUnpublishVolume", Effect::kNone);
  plugin_.FailNext("NodeUnpublishVolume", grpc::StatusCode::ABORTED, Effect::kNone, 1000);
  plugins_.restart_after = std::chrono::seconds(3);
  const auto undo = loop_.Start(mounter_->Unpublish(Forced(Request()), Soon()));
  EXPECT_TRUE(loop_.RunUntil([&] { return plugins_.restarts > 0; }, std::chrono::seconds(60)));
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); }, std::chrono::seconds(60)));
  ASSERT_TRUE(loop_.RunUntil([&] { return undo->has_value(); }));
}

TEST_F(MounterForceTest, TheLastCallsAreKeptWithTheirCodes) {
  plugin_.FailNext("NodeStageVolume", grpc::StatusCode::ABORTED, Effect::kNone);
  ASSERT_TRUE(Publish(Request()).ok());
  const auto explained = loop_.Run(mounter_->Explain("hp", "v1", Soon()));
  ASSERT_TRUE(explained.ok()) << explained.status();
  ASSERT_EQ(explained->rpcs.size(), 3U);
  EXPECT_EQ(explained->rpcs[0].code, absl::StatusCode::kAborted);
  EXPECT_EQ(explained->rpcs[2].rpc, "NodePublishVolume");
}

}  // namespace
}  // namespace berth
