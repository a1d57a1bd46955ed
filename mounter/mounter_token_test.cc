// Tokens that speak for a consumer: what the plugin is given, and when it is given new ones.
#include <sys/mount.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/file.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_types.h"
#include "mounts/testing/fuse_server.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

// A scheduler that makes tokens out: hunter2-AUDIENCE-1, -2 and so on, or refuses, or says nothing.
class FakeTokens final : public TokenSource {
 public:
  explicit FakeTokens(asio::any_io_executor executor) : changed_(std::move(executor)) {}

  Awaitable<absl::StatusOr<std::vector<ConsumerToken>>> Get(TokenQuery query, TimePoint deadline) override {
    queries.push_back(query);
    if (!co_await changed_.WaitUntil([this] { return !silent_; }, deadline)) {
      co_return absl::DeadlineExceededError("the scheduler has not answered in time");
    }
    if (!status.ok()) co_return status;
    ++made;
    std::vector<ConsumerToken> tokens;
    for (const std::string& audience : query.audiences) {
      tokens.push_back({.audience = audience,
                        .token = fmt::format("hunter2-{}-{}", audience, made),
                        .lifetime = lifetime});
    }
    co_return tokens;
  }
  void SetSilent(bool silent) {
    silent_ = silent;
    changed_.NotifyAll();
  }

  std::vector<TokenQuery> queries;
  absl::Status status;
  Duration lifetime = std::chrono::hours(1);
  int made = 0;

 private:
  Condition changed_;
  bool silent_ = false;
};

class MounterTokenTest : public MounterTestBase {
 protected:
  MounterTokenTest() {
    options_.tokens = &tokens_;
    plugins_.tokens = {{.audience = "vault", .name = "vault-token"},
                       {.audience = "s3",
                        .name = "s3-token",
                        .place = WantedToken::Place::kVolumeContext,
                        .republish = true}};
  }
  void TearDown() override {
    tokens_.SetSilent(false);
    MounterTestBase::TearDown();
    ExpectNoTokenAnywhere();
  }

  static PublishRequest Scheduled(const std::string& volume = "v1") {
    PublishRequest request = Request(volume, "jobs/web");
    request.origin = Origin::kScheduler;
    request.volume_context = {{"share", "exports"}};
    return request;
  }
  // Renewed as soon as may be: when a second is over.
  void RenewSoon() { tokens_.lifetime = std::chrono::milliseconds(100); }
  [[nodiscard]] bool Called(int times) {
    return loop_.RunUntil([this, times] { return plugin_.Calls("NodePublishVolume") >= times; });
  }
  [[nodiscard]] size_t Told(const std::string& type) const {
    return static_cast<size_t>(std::ranges::count(EventTypes(), type));
  }
  [[nodiscard]] bool WaitTold(const std::string& type, size_t times = 1) {
    return loop_.RunUntil([&] { return Told(type) >= times; });
  }
  [[nodiscard]] PublicationView Published() {
    const VolumeView view = View();
    return view.publications.empty() ? PublicationView{} : view.publications[0];
  }
  [[nodiscard]] std::string Target() { return Published().target_path; }
  // Everything that berthd has written and reported.
  void ExpectNoTokenAnywhere() {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(options_.state_dir)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      std::stringstream text;
      text << file.rdbuf();
      EXPECT_EQ(text.str().find("hunter2"), std::string::npos) << "a token is in " << entry.path();
    }
    for (const Event& event : events_.After(0, 10'000).events) {
      EXPECT_THAT(event.message, Not(HasSubstr("hunter2"))) << event.type;
    }
  }

  FakeTokens tokens_{loop_.executor()};
};

TEST_F(MounterTokenTest, ThePluginIsGivenThemWhereItWantsThemAndNobodyElse) {
  ASSERT_TRUE(Publish(Scheduled()).ok());
  ASSERT_EQ(tokens_.queries.size(), 1U);
  EXPECT_EQ(tokens_.queries[0].consumer, "jobs/web");
  EXPECT_EQ(tokens_.queries[0].volume_id, "v1");
  EXPECT_THAT(tokens_.queries[0].audiences, ElementsAre("vault", "s3"));
  EXPECT_THAT(plugin_.LastPublish().secrets(), ElementsAre(Pair("vault-token", "hunter2-vault-1")));
  EXPECT_THAT(plugin_.LastPublish().volume_context(), Contains(Pair("s3-token", "hunter2-s3-1")));
  EXPECT_THAT(plugin_.LastPublish().volume_context(), Contains(Pair("share", "exports")));
  EXPECT_THAT(plugin_.LastStage().secrets(), IsEmpty());
  EXPECT_THAT(plugin_.LastStage().volume_context(), ElementsAre(Pair("share", "exports")));
  EXPECT_FALSE(View().awaiting_secrets);
  ExpectNoTokenAnywhere();
}

TEST_F(MounterTokenTest, WhoeverIsNotTheSchedulerIsToldThatThereIsNobodyToAsk) {
  for (const Origin origin : {Origin::kCaller, Origin::kDeclared}) {
    PublishRequest request = Request();
    request.origin = origin;
    const auto refused = Publish(request);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(MessageOf(refused.status())), HasSubstr("none can be issued"));
  }
  EXPECT_THAT(tokens_.queries, IsEmpty());
  EXPECT_THAT(plugin_.Log(), IsEmpty());
  EXPECT_TRUE(Gone());
}

TEST_F(MounterTokenTest, WhileTheSchedulerIsSilentThePublishWaitsAndSaysForWhat) {
  options_.tokens_within = std::chrono::seconds(1);
  Close();
  Open();
  tokens_.SetSilent(true);
  const auto waiting =
      loop_.Run(mounter_->Publish(Scheduled(), Clock::now() + std::chrono::milliseconds(500)));
  EXPECT_TRUE(absl::IsUnavailable(waiting.status())) << waiting.status();
  EXPECT_THAT(std::string(MessageOf(waiting.status())), HasSubstr("awaiting tokens"));
  // Asked again and again; the volume is not in doubt, for nothing was sent.
  ASSERT_TRUE(loop_.RunUntil([&] { return tokens_.queries.size() >= 3; }));
  EXPECT_THAT(Published().last_error, HasSubstr("awaiting tokens: the scheduler has not answered"));
  EXPECT_FALSE(Published().uncertain);
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 0);
  tokens_.SetSilent(false);
  EXPECT_TRUE(loop_.RunUntil([&] { return Published().state == PublicationState::kPublished; }));
}

TEST_F(MounterTokenTest, AnUnpublishDoesNotWaitForTheScheduler) {
  tokens_.SetSilent(true);
  const auto publish = loop_.Start(mounter_->Publish(Scheduled(), Soon()));
  ASSERT_TRUE(loop_.RunUntil([&] { return tokens_.queries.size() == 1; }));
  ASSERT_TRUE(Unpublish(Scheduled()).ok());
  EXPECT_TRUE(publish->has_value());
  EXPECT_TRUE(Gone());
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 0);
}

TEST_F(MounterTokenTest, ARefusalEndsThePublish) {
  tokens_.status = absl::PermissionDeniedError("the scheduler: not for this one");
  const auto refused = Publish(Scheduled());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kPermissionDenied) << refused.status();
  EXPECT_THAT(std::string(MessageOf(refused.status())), HasSubstr("not for this one"));
  EXPECT_TRUE(loop_.RunUntil([&] { return Gone(); }));
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 0);
}

TEST_F(MounterTokenTest, ARepeatAfterARestartAsksAnewAndAwaitsNoSecrets) {
  plugin_.HangNext("NodePublishVolume", Effect::kNone);
  const auto cut_off = loop_.Start(mounter_->Publish(Scheduled(), Soon()));
  ASSERT_TRUE(Called(1));
  loop_.RunVoid(mounter_->Shutdown(Clock::now()));
  mounter_.reset();
  plugin_.Release();
  Open();
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  EXPECT_FALSE(View().awaiting_secrets);
  ASSERT_TRUE(loop_.RunUntil([&] { return Published().state == PublicationState::kPublished; }));
  EXPECT_THAT(plugin_.LastPublish().secrets(), ElementsAre(Pair("vault-token", "hunter2-vault-2")));
}

TEST_F(MounterTokenTest, NewOnesArePassedWithTheSameArgumentsBeforeTheOldOnesEnd) {
  RenewSoon();
  PublishRequest request = Scheduled();
  request.secrets = {{"password", "hunter2-own"}};
  ASSERT_TRUE(Publish(request).ok());
  const auto first = plugin_.LastPublish();
  ASSERT_TRUE(Called(2));
  auto second = plugin_.LastPublish();
  EXPECT_EQ(second.secrets().at("vault-token"), "hunter2-vault-2");
  EXPECT_EQ(second.volume_context().at("s3-token"), "hunter2-s3-2");
  *second.mutable_secrets() = first.secrets();
  *second.mutable_volume_context() = first.volume_context();
  EXPECT_EQ(second.DebugString(), first.DebugString());
  ASSERT_TRUE(Called(3)) << "and so on";
  EXPECT_EQ(plugin_.LastPublish().secrets().at("password"), "hunter2-own");
  EXPECT_EQ(Published().state, PublicationState::kPublished);
  EXPECT_THAT(Published().last_error, IsEmpty());
  EXPECT_EQ(Told("volume.published"), 1U);
  EXPECT_EQ(Told("volume.token_failed") + Told("volume.token_renewed"), 0U);
}

TEST_F(MounterTokenTest, WhatThePluginDoesNotTakeAgainIsPassedOnce) {
  plugins_.tokens[1].republish = false;
  RenewSoon();
  ASSERT_TRUE(Publish(Scheduled()).ok());
  plugins_.tokens[1].republish = true;
  ASSERT_TRUE(Publish(Scheduled("v2")).ok());
  const auto of = [this](const std::string& call) { return std::ranges::count(plugin_.Log(), call); };
  ASSERT_TRUE(loop_.RunUntil([&] { return of("NodePublishVolume v2") >= 2; }));
  EXPECT_EQ(of("NodePublishVolume v1"), 1);
  // Until its file says otherwise.
  mounter_->OnTokensWantedChanged();
  EXPECT_TRUE(loop_.RunUntil([&] { return of("NodePublishVolume v1") >= 2; }));
}

TEST_F(MounterTokenTest, WhatIsWantedAnewReachesWhatIsRenewedAlready) {
  ASSERT_TRUE(Publish(Scheduled()).ok());
  mounter_->OnTokensWantedChanged();
  ASSERT_TRUE(Publish(Scheduled("v2")).ok());
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 2) << "its file was read again, and says the same";
  plugins_.tokens[0].name = "vault-token-2";
  mounter_->OnTokensWantedChanged();
  ASSERT_TRUE(Called(4));
  EXPECT_THAT(plugin_.LastPublish().secrets(),
              ElementsAre(Pair("vault-token-2", HasSubstr("hunter2-vault-"))));
  ASSERT_TRUE(Publish(Scheduled("v3")).ok());
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 5) << "once";
}

// A file that was broken when the publish came, say.
TEST_F(MounterTokenTest, WhatIsWantedWhenTheCallLeavesCounts) {
  const std::vector<WantedToken> wanted = std::exchange(plugins_.tokens, {});
  plugins_.on_find = [&] {
    if (plugin_.Calls("NodeStageVolume") > 0) plugins_.tokens = wanted;
  };
  ASSERT_TRUE(Publish(Scheduled()).ok());
  plugins_.on_find = nullptr;
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
  EXPECT_THAT(plugin_.LastPublish().secrets(), ElementsAre(Pair("vault-token", HasSubstr("hunter2-vault-"))));
}

TEST_F(MounterTokenTest, AFailureIsToldOnceAndCostsTheMountNothing) {
  RenewSoon();
  ASSERT_TRUE(Publish(Scheduled()).ok());
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::INTERNAL, Effect::kNone, 3);
  ASSERT_TRUE(Called(4));
  EXPECT_EQ(Told("volume.token_failed"), 1U);
  EXPECT_EQ(Published().state, PublicationState::kPublished);
  EXPECT_FALSE(Published().uncertain);
  EXPECT_THAT(Published().last_error, HasSubstr("its tokens are not renewed"));
  EXPECT_THAT(View().last_error, HasSubstr("as scripted"));
  EXPECT_TRUE(IsMounted(Target()));
  ASSERT_TRUE(WaitTold("volume.token_renewed"));
  EXPECT_THAT(Published().last_error, IsEmpty());
  EXPECT_EQ(Told("volume.failed") + Told("volume.uncertain") + Told("volume.lost"), 0U);
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0);
}

TEST_F(MounterTokenTest, ASchedulerThatIsAwayCostsTheMountNothing) {
  RenewSoon();
  ASSERT_TRUE(Publish(Scheduled()).ok());
  tokens_.status = absl::PermissionDeniedError("the scheduler: not any more");
  ASSERT_TRUE(WaitTold("volume.token_failed"));
  EXPECT_THAT(Published().last_error, HasSubstr("not any more"));
  EXPECT_EQ(Published().state, PublicationState::kPublished);
  EXPECT_TRUE(IsMounted(Target()));
  tokens_.status = absl::OkStatus();
  EXPECT_TRUE(Called(2));
}

TEST_F(MounterTokenTest, AnUnpublishEndsItWhateverItWaitsFor) {
  RenewSoon();
  ASSERT_TRUE(Publish(Scheduled()).ok());
  tokens_.SetSilent(true);
  ASSERT_TRUE(loop_.RunUntil([&] { return tokens_.queries.size() >= 2; }));
  EXPECT_EQ(*Unpublish(Scheduled()), true);
  EXPECT_TRUE(Gone());
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
  EXPECT_EQ(Told("volume.token_failed"), 0U);
}

TEST_F(MounterTokenTest, AfterARestartTheyAreRenewedAtOnceWhenTheSchedulerIsHeard) {
  ASSERT_TRUE(Publish(Scheduled()).ok());
  Close();
  Open();
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1);
  EXPECT_EQ(tokens_.queries.size(), 1U);
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  ASSERT_TRUE(Called(2));
  EXPECT_EQ(plugin_.LastPublish().secrets().at("vault-token"), "hunter2-vault-2");
  EXPECT_EQ(Published().state, PublicationState::kPublished);
}

TEST_F(MounterTokenTest, WithoutALeaseNoneAreAskedFor) {
  RenewSoon();
  ASSERT_TRUE(Publish(Scheduled()).ok());
  mounter_->BlockForward(Origin::kScheduler, "no valid lease");
  const auto asked = tokens_.queries.size();
  // Longer than until they are due: another volume's are renewed meanwhile.
  ASSERT_TRUE(Publish(Scheduled("v2")).ok());
  const auto of_v2 = [this] { return std::ranges::count(plugin_.Log(), "NodePublishVolume v2"); };
  ASSERT_TRUE(loop_.RunUntil([&] { return of_v2() >= 2; }));
  EXPECT_EQ(std::ranges::count(tokens_.queries, "v1", &TokenQuery::volume_id),
            static_cast<std::ptrdiff_t>(asked));
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  EXPECT_TRUE(
      loop_.RunUntil([this] { return std::ranges::count(plugin_.Log(), "NodePublishVolume v1") >= 2; }));
}

TEST_F(MounterTokenTest, WhatWasPublishedWithSecretsWaitsForThemAfterARestart) {
  PublishRequest request = Scheduled();
  request.secrets = {{"password", "hunter2-own"}};
  ASSERT_TRUE(Publish(request).ok());
  Close();
  Open();
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  ASSERT_TRUE(WaitTold("volume.token_failed"));
  EXPECT_THAT(Published().last_error, HasSubstr("repeat the publish with them"));
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 1) << "never without them";
  ASSERT_TRUE(Publish(request).ok());
  ASSERT_TRUE(Called(2));
  EXPECT_EQ(plugin_.LastPublish().secrets().at("password"), "hunter2-own");
  EXPECT_TRUE(WaitTold("volume.token_renewed"));
}

TEST_F(MounterTokenTest, WhatIsMountedAgainTakesTheSecretsThatAreKeptForTheTokens) {
  PublishRequest request = Scheduled();
  request.secrets = {{"password", "hunter2-own"}};
  request.remount = true;
  ASSERT_TRUE(Publish(request).ok());
  ASSERT_EQ(umount2(Target().c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(WaitTold("volume.remounted"));
  EXPECT_EQ(Told("volume.awaiting_secrets"), 0U);
  EXPECT_EQ(plugin_.LastPublish().secrets().at("password"), "hunter2-own");
  // They are kept for nothing else.
  plugins_.tokens[1].republish = false;
  mounter_->OnTokensWantedChanged();
  ASSERT_EQ(umount2(Target().c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_TRUE(WaitTold("volume.awaiting_secrets"));
  EXPECT_EQ(plugin_.Calls("NodePublishVolume"), 2);
  ASSERT_TRUE(Publish(request).ok());
}

TEST_F(MounterTokenTest, AMountThatThePluginMakesAnewIsThePublicationsOwn) {
  RenewSoon();
  ASSERT_TRUE(Publish(Scheduled()).ok());
  const std::string target = Target();
  const uint64_t before = LookAt(target)->mount_id;
  plugin_.MountAgain(true);
  plugin_.HangNext("NodePublishVolume", Effect::kDone);
  ASSERT_TRUE(Called(2));
  // The kernel is looked at while the call still runs, as whenever a scheduler is heard again.
  mounter_->BlockForward(Origin::kScheduler, "no valid lease");
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  EXPECT_EQ(Told("volume.overmounted"), 0U);
  plugin_.Release();
  ASSERT_TRUE(WaitTold("volume.remounted"));
  plugin_.MountAgain(false);
  EXPECT_NE(LookAt(target)->mount_id, before);
  EXPECT_EQ(Published().state, PublicationState::kPublished);
  EXPECT_FALSE(Published().uncertain);
  EXPECT_EQ(Told("volume.overmounted") + Told("volume.lost"), 0U);
  EXPECT_EQ(*Unpublish(Scheduled()), true);
  EXPECT_TRUE(Gone());
  EXPECT_FALSE(IsMounted(target));
}

TEST_F(MounterTokenTest, AMountThatIsMadeAnewIsThePublicationsOwnThoughTheRenewalFails) {
  RenewSoon();
  ASSERT_TRUE(Publish(Scheduled()).ok());
  const uint64_t before = LookAt(Target())->mount_id;
  plugin_.MountAgain(true);
  plugin_.FailNext("NodePublishVolume", grpc::StatusCode::INTERNAL, Effect::kDone);
  tokens_.lifetime = std::chrono::hours(1);
  ASSERT_TRUE(WaitTold("volume.token_renewed"));
  plugin_.MountAgain(false);
  EXPECT_NE(LookAt(Target())->mount_id, before);
  EXPECT_EQ(Told("volume.remounted"), 2U) << "its consumer is notified each time";
  // The kernel is looked at, as whenever a scheduler is heard again.
  mounter_->BlockForward(Origin::kScheduler, "no valid lease");
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  ASSERT_TRUE(Publish(Scheduled()).ok());
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0) << "not taken from under its consumer";
  EXPECT_EQ(Told("volume.overmounted") + Told("volume.lost"), 0U);
}

TEST_F(MounterTokenTest, AMountThatIsMadeAnewWhileBerthdEndsIsThePublicationsOwn) {
  RenewSoon();
  ASSERT_TRUE(Publish(Scheduled()).ok());
  const std::string target = Target();
  const uint64_t before = LookAt(target)->mount_id;
  plugin_.MountAgain(true);
  plugin_.HangNext("NodePublishVolume", Effect::kDone);
  ASSERT_TRUE(loop_.RunUntil([&] {
    const auto facts = LookAt(target);
    return facts.ok() && facts->mount_root && facts->mount_id != before;
  }));
  loop_.RunVoid(mounter_->Shutdown(Clock::now()));
  mounter_.reset();
  plugin_.Release();
  plugin_.MountAgain(false);
  tokens_.lifetime = std::chrono::hours(1);
  Open();
  mounter_->UnblockForward(Origin::kScheduler, BootTime{});
  ASSERT_TRUE(Called(3)) << "renewed at once";
  ASSERT_TRUE(Publish(Scheduled()).ok());
  EXPECT_EQ(plugin_.Calls("NodeUnpublishVolume"), 0);
  EXPECT_EQ(Told("volume.overmounted") + Told("volume.lost"), 0U);
}

TEST_F(MounterTokenTest, AFileSystemThatDiesDuringARenewalIsMountedAgainAfterwards) {
  options_.health_interval = std::chrono::milliseconds(50);
  Close();
  Open();
  ASSERT_TRUE(std::filesystem::create_directory(plugin_.DataPath("v1")));
  auto fuse = FuseServer::Mount(plugin_.DataPath("v1"));
  ASSERT_TRUE(fuse.ok()) << fuse.status();
  RenewSoon();
  PublishRequest request = Scheduled();
  request.remount = true;
  ASSERT_TRUE(Publish(request).ok());
  tokens_.lifetime = std::chrono::hours(1);
  plugin_.HangNext("NodePublishVolume", Effect::kNone);
  ASSERT_TRUE(Called(2));
  (*fuse)->Die();
  ASSERT_TRUE(WaitTold("volume.dead"));
  fuse->reset();
  fuse = FuseServer::Mount(plugin_.DataPath("v1"));
  ASSERT_TRUE(fuse.ok()) << fuse.status();
  EXPECT_EQ(plugin_.Calls("NodeUnstageVolume"), 0) << "not in the middle of a step";
  plugin_.Release();
  ASSERT_TRUE(WaitTold("volume.remounted"));
  EXPECT_EQ(*ReadFile(Target() + "/hello", 100), "hello\n");
  ASSERT_TRUE(Unpublish(Scheduled()).ok());
}

TEST_F(MounterTokenTest, APluginThatTakesItsMountAwayIsFoundOutByTheKernel) {
  RenewSoon();
  ASSERT_TRUE(Publish(Scheduled()).ok());
  const std::string target = Target();
  plugin_.HangNext("NodePublishVolume", Effect::kNone);
  ASSERT_TRUE(Called(2));
  ASSERT_EQ(umount2(target.c_str(), MNT_DETACH), 0);
  plugin_.Release();
  ASSERT_TRUE(WaitTold("volume.lost"));
  EXPECT_EQ(Told("plugin.lied"), 1U);
  EXPECT_EQ(Published().state, PublicationState::kPublished);
  EXPECT_TRUE(Published().uncertain) << "what the kernel shows, as always";
}

}  // namespace
}  // namespace berth
