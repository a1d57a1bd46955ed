#include "mounter/consumer_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

#include "base/status.h"
#include "mounter/volume_rpcs.h"
#include "mounter/volume_types.h"

namespace berth {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

const BootTime kCame{seconds(1000)};
const WallTime kWall{seconds(1'700'000'000)};
const WantedToken kVault{.audience = "vault", .name = "vault-token"};
const WantedToken kS3{
    .audience = "s3", .name = "s3-token", .place = WantedToken::Place::kVolumeContext, .republish = true};

ConsumerToken TokenFor(const std::string& audience, Duration lifetime = seconds(100)) {
  return {.audience = audience, .token = "hunter2-" + audience, .lifetime = lifetime};
}

TEST(ConsumerTokensTest, EachGoesWhereThePluginWantsItInPlaceOfWhatStoodThere) {
  const auto tokens =
      ForPlugin({kVault, kS3}, {TokenFor("s3"), TokenFor("vault"), TokenFor("more")}, kCame, kWall);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  ::csi::v1::NodePublishVolumeRequest request;
  (*request.mutable_volume_context())["s3-token"] = "old";
  (*request.mutable_volume_context())["other"] = "as it is";
  PassTo(*tokens, &request);
  EXPECT_THAT(request.secrets(), ElementsAre(Pair("vault-token", "hunter2-vault")));
  EXPECT_THAT(request.volume_context(),
              ::testing::UnorderedElementsAre(Pair("s3-token", "hunter2-s3"), Pair("other", "as it is")));
}

TEST(ConsumerTokensTest, DriversWrittenForKubernetesGetOneMapOfAllTokens) {
  WantedToken sts{.audience = "sts.example.com", .name = std::string(kKubernetesTokens), .kubernetes = true};
  WantedToken none = sts;
  none.audience = "";
  // Plugins get times in UTC, in any time zone of the node.
  setenv("TZ", "EST5", 1);
  tzset();
  const auto tokens = ForPlugin({sts, none}, {TokenFor("sts.example.com"), TokenFor("")}, kCame, kWall);
  unsetenv("TZ");
  tzset();
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->secrets,
              ElementsAre(Pair("csi.storage.k8s.io/serviceAccount.tokens",
                               R"({"":{"expirationTimestamp":"2023-11-14T22:15:00Z","token":"hunter2-"},)"
                               R"("sts.example.com":{"expirationTimestamp":"2023-11-14T22:15:00Z",)"
                               R"("token":"hunter2-sts.example.com"}})")));
  EXPECT_THAT(TokensIn(*tokens), ::testing::IsSupersetOf({"hunter2-sts.example.com", "hunter2-"}))
      << "each is kept out of logs, not only the map";
}

TEST(ConsumerTokensTest, TheShortestLifeOfThoseThatAreRenewedCounts) {
  const WantedToken other{.audience = "other", .name = "other", .republish = true};
  const auto tokens =
      ForPlugin({kVault, kS3, other},
                {TokenFor("vault", seconds(1)), TokenFor("s3", seconds(60)), TokenFor("other", seconds(50))},
                kCame, kWall);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  ASSERT_TRUE(tokens->life.has_value());
  EXPECT_EQ(tokens->life->since, kCame);
  EXPECT_EQ(tokens->life->lifetime, seconds(50));
  EXPECT_FALSE(ForPlugin({kVault}, {TokenFor("vault")}, kCame, kWall)->life.has_value());
  EXPECT_TRUE(WantsRenewal({kVault, kS3}));
  EXPECT_FALSE(WantsRenewal({kVault}));
}

TEST(ConsumerTokensTest, AnAnswerThatIsNotWhatWasAskedForIsRefusedWithoutShowingIt) {
  ConsumerToken empty = TokenFor("vault");
  empty.token.clear();
  ConsumerToken huge = TokenFor("vault");
  huge.token = "hunter2" + std::string(65 << 10, 'x');
  for (const ConsumerToken& wrong : {TokenFor("s3"), empty, huge, TokenFor("vault", seconds(0))}) {
    const auto tokens = ForPlugin({kVault}, {wrong}, kCame, kWall);
    ASSERT_EQ(tokens.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(MessageOf(tokens.status())), HasSubstr("vault"));
    EXPECT_THAT(std::string(MessageOf(tokens.status())), Not(HasSubstr("hunter2")));
  }
}

TEST(ConsumerTokensTest, OnlyTheSchedulersOwnPublicationsHaveSomebodyToAsk) {
  EXPECT_EQ(MayHaveTokens(Origin::kScheduler, "hp"), absl::OkStatus());
  for (const Origin origin : {Origin::kCaller, Origin::kDeclared}) {
    EXPECT_EQ(MayHaveTokens(origin, "hp").code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(ConsumerTokensTest, ASchedulerThatIsAwayIsAskedAgainAndOneThatRefusesIsNot) {
  EXPECT_EQ(ClassifyNoTokens(absl::StatusCode::kUnavailable), CallOutcome::kRetry);
  EXPECT_EQ(ClassifyNoTokens(absl::StatusCode::kDeadlineExceeded), CallOutcome::kRetry);
  EXPECT_EQ(ClassifyNoTokens(absl::StatusCode::kResourceExhausted), CallOutcome::kRetry);
  EXPECT_EQ(ClassifyNoTokens(absl::StatusCode::kPermissionDenied), CallOutcome::kFinal);
  EXPECT_EQ(ClassifyNoTokens(absl::StatusCode::kNotFound), CallOutcome::kFinal);
  // Nothing was sent to the plugin, whatever the code.
  for (int code = 1; code <= 16; ++code) {
    const CallOutcome outcome = ClassifyNoTokens(static_cast<absl::StatusCode>(code));
    EXPECT_TRUE(outcome == CallOutcome::kRetry || outcome == CallOutcome::kFinal) << code;
  }
}

}  // namespace
}  // namespace berth
