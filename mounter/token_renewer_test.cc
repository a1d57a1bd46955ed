// When a publication's tokens are renewed, and what a renewal's call and its outcome change.
#include "mounter/token_renewer.h"

#include <sys/mount.h>

#include "mounter/testing/context_test_base.h"

namespace berth {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TokenRenewerTest : public ContextTestBase {
 protected:
  void SetUp() override {
    plugins_.tokens = {{.audience = "vault", .name = "token", .republish = true}};
    publication_.origin = Origin::kScheduler;
    publication_.confirmed_at = BootClock::now();
    ContextTestBase::SetUp();
    StageAndPublish();
    context_->recovered = true;
    machine_ = VolumeMachine::Recovered(record_, false);
    machine_.UnblockForward(Origin::kScheduler, *publication_.confirmed_at);
  }
  [[nodiscard]] const PublicationKey& Key() const { return publication_.key; }
  [[nodiscard]] TokenLife Life(Duration lifetime) const {
    return {.since = BootClock::now(), .lifetime = lifetime, .wanted = plugins_.tokens};
  }
  [[nodiscard]] StepReport Renewed() const { return {.tokens = Life(hours(1))}; }
  static StepReport Failed(CallOutcome outcome) {
    return {.outcome = outcome, .error = absl::UnavailableError("the scheduler is away")};
  }
  [[nodiscard]] uint64_t MountId() const { return machine_.record().Find(Key())->mount_id; }

  VolumeMachine machine_ = VolumeMachine::Fresh({});
  std::map<PublicationKey, Secrets> secrets_;
  std::unique_ptr<VolumeReporter> reporter_;
  std::unique_ptr<TokenRenewer> tokens_;

  void Begin() {
    const std::string key = VolumePaths::VolumeKey(record_.plugin_id, record_.volume_id);
    reporter_ = std::make_unique<VolumeReporter>(*context_, machine_, key);
    tokens_ = std::make_unique<TokenRenewer>(*context_, machine_, *reporter_, secrets_, key);
  }
};

TEST_F(TokenRenewerTest, WhatWasPublishedBeforeAStartIsDueOnceTheNodeHasRecovered) {
  Begin();
  context_->recovered = false;
  EXPECT_EQ(tokens_->Next(), BootTime::max());
  context_->recovered = true;
  EXPECT_LE(tokens_->Next(), BootClock::now());
  EXPECT_THAT(tokens_->Due(BootClock::now()), ElementsAre(Key()));
}

TEST_F(TokenRenewerTest, WhatThePluginHasGotIsDueBeforeItEnds) {
  Begin();
  tokens_->OnPublished(Key(), Life(hours(1)));
  const BootTime now = BootClock::now();
  EXPECT_THAT(tokens_->Due(now), IsEmpty());
  EXPECT_GT(tokens_->Next(), now + hours(1) / 2);
  EXPECT_LT(tokens_->Next(), now + hours(1));
  EXPECT_THAT(tokens_->Due(now + hours(1)), ElementsAre(Key()));
}

TEST_F(TokenRenewerTest, OtherTokensThanThePluginHasAreDueAtOnceAndNoneNever) {
  Begin();
  tokens_->OnPublished(Key(), Life(hours(1)));
  plugins_.tokens[0].audience = "other";
  tokens_->OnWantedChanged();
  EXPECT_THAT(tokens_->Due(BootClock::now()), ElementsAre(Key()));
  plugins_.tokens.clear();
  secrets_[Key()] = {{"k", "kept for a renewal"}};
  tokens_->OnWantedChanged();
  EXPECT_EQ(tokens_->Next(), BootTime::max());
  EXPECT_THAT(secrets_, IsEmpty()) << "they were kept for nothing else";
}

TEST_F(TokenRenewerTest, OneWhoseSchedulerHasNoLeaseWaits) {
  Begin();
  machine_.BlockForward(Origin::kScheduler, "no lease");
  EXPECT_EQ(tokens_->Next(), BootTime::max());
  EXPECT_FALSE(tokens_->Renews(Key()));
}

TEST_F(TokenRenewerTest, AFailureAndItsEndAreEachReportedOnce) {
  Begin();
  EXPECT_FALSE(tokens_->OnOutcome(Key(), Failed(CallOutcome::kRetry)));
  EXPECT_FALSE(tokens_->OnOutcome(Key(), Failed(CallOutcome::kRetry)));
  ASSERT_THAT(Events("volume.token_failed"), SizeIs(1));
  EXPECT_THAT(tokens_->ErrorOf(Key()), HasSubstr("the scheduler is away"));
  EXPECT_THAT(tokens_->Due(BootClock::now()), IsEmpty()) << "after a pause";
  EXPECT_FALSE(tokens_->OnOutcome(Key(), Renewed()));
  EXPECT_THAT(Events("volume.token_renewed"), SizeIs(1));
  EXPECT_EQ(tokens_->ErrorOf(Key()), "");
}

TEST_F(TokenRenewerTest, WhereTheKernelDisagreesItIsAskedAgain) {
  Begin();
  EXPECT_TRUE(tokens_->OnOutcome(Key(), Failed(CallOutcome::kFinal)));
}

TEST_F(TokenRenewerTest, WhatThePluginMountsDuringTheCallIsThePublicationsOwn) {
  Begin();
  const uint64_t before = MountId();
  tokens_->BeforeCall(Key());
  machine_.OnSent({StepKind::kRenew, Key()});
  EXPECT_EQ(MountId(), 0U) << "no row names the old mount while the call runs";
  ASSERT_EQ(umount2(Target().c_str(), MNT_DETACH), 0);
  ASSERT_EQ(mount(plugin_.DataPath("v1").c_str(), Target().c_str(), nullptr, MS_BIND, nullptr), 0);
  EXPECT_TRUE(tokens_->AfterCall(Key()));
  EXPECT_NE(MountId(), 0U);
  EXPECT_NE(MountId(), before);
  ASSERT_THAT(Events("volume.remounted"), SizeIs(1));
  EXPECT_THAT(Events("volume.remounted")[0].message, HasSubstr("consumer web"));
}

TEST_F(TokenRenewerTest, ACallThatOnlyRenewsChangesNoMount) {
  Begin();
  const uint64_t before = MountId();
  tokens_->BeforeCall(Key());
  machine_.OnSent({StepKind::kRenew, Key()});
  EXPECT_TRUE(tokens_->AfterCall(Key())) << "the row named none meanwhile";
  EXPECT_EQ(MountId(), before);
  EXPECT_THAT(Events("volume.remounted"), IsEmpty());
  // Nothing was sent: a mount that is made over it is not the plugin's.
  ASSERT_EQ(mount("over", Target().c_str(), "tmpfs", 0, nullptr), 0);
  EXPECT_FALSE(tokens_->AfterCall(Key()));
  EXPECT_EQ(MountId(), before);
}

TEST_F(TokenRenewerTest, SecretsStayWhileARenewalNeedsThem) {
  publication_.had_secrets = true;
  record_.publications = {publication_};
  machine_ = VolumeMachine::Recovered(record_, false);
  machine_.UnblockForward(Origin::kScheduler, *publication_.confirmed_at);
  Begin();
  EXPECT_FALSE(tokens_->OnOutcome(Key(), Failed(CallOutcome::kRetry)));
  PublishRequest request;
  request.consumer = Key().consumer;
  request.secrets = {{"k", "v"}};
  tokens_->KeepSecrets(request);
  EXPECT_THAT(secrets_, SizeIs(1));
  EXPECT_THAT(tokens_->Due(BootClock::now()), ElementsAre(Key())) << "what it lacked has come";
  tokens_->DropSecrets(Key());
  EXPECT_THAT(secrets_, SizeIs(1)) << "the next renewal repeats the call with them";
  machine_.BlockForward(Origin::kScheduler, "no lease");
  tokens_->DropSecrets(Key());
  EXPECT_THAT(secrets_, IsEmpty());
}

}  // namespace
}  // namespace berth
