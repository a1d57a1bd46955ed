// Tokens that speak for a consumer, from the scheduler to the plugin: with a real berthd, a real plugin and
// real mounts. Each test ends with a look for the tokens in every file of the node, its logs at their most
// talkative among them, and in its API's answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "tests/harness/fault_test.h"
#include "tests/harness/scheduler.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TokenTest : public FaultTest {
 protected:
  static constexpr const char* kNode = "node-1";

  static constexpr const char* kTwoTokens = R"([[token]]
audience = "vault"
name = "vault-token"

[[token]]
audience = "s3"
name = "s3-token"
in = "volume_context"
republish = true
)";

  // A node with a scheduler, and a plugin that wants two tokens and takes new ones.
  void StartWanting(const std::string& sections = kTwoTokens) {
    TestScheduler::Options options;
    options.address = "unix:" + node_.dir() + "/scheduler.sock";
    scheduler_ = std::make_unique<TestScheduler>(std::move(options));
    node_.WriteBerthdToml("log_level = \"debug\"\n[scheduler]\naddresses = [\"" + scheduler_->address() +
                          "\"]\n");
    StartReady(sections);
    scheduler_->WaitNode(kNode, "the plugin, and a lease", [](const TestScheduler::Node& node) {
      return node.synced && node.state.lease() == v1::LEASE_VALID && node.plugins.contains("fault") &&
             node.plugins.at("fault").registered();
    });
  }
  // Makes out what is asked for: good for `seconds`.
  void Answer(int64_t seconds) {
    scheduler_->OnAsk([seconds](const v1::Ask& ask) { return AnswerTo(ask, seconds); });
  }
  static std::optional<v1::Answer> AnswerTo(const v1::Ask& ask, int64_t seconds) {
    v1::Answer answer;
    for (const std::string& audience : ask.token().audiences()) {
      v1::Token& token = *answer.mutable_token()->add_tokens();
      token.set_audience(audience);
      // Longer than a line of the log shows of a value.
      token.set_token(kSecret + audience + std::string(500, 'x') + std::to_string(ask.number()));
      token.mutable_expires_after()->set_seconds(seconds);
    }
    return answer;
  }
  v1::Operation Publishing(const std::string& volume) {
    v1::Operation operation;
    operation.mutable_publish()->set_namespace_("jobs");
    v1::PublishVolumeRequest& request = *operation.mutable_publish()->mutable_request();
    request.set_plugin_id("fault");
    request.set_volume_id(volume);
    request.set_consumer("web");
    return operation;
  }
  std::string PublishFromAfar(const std::string& volume) {
    const v1::OperationResult result = scheduler_->Run(kNode, Publishing(volume));
    EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
    return result.publish().target_path();
  }
  void UnpublishFromAfar(const std::string& volume) {
    v1::Operation operation;
    operation.mutable_unpublish()->set_namespace_("jobs");
    v1::UnpublishVolumeRequest& request = *operation.mutable_unpublish()->mutable_request();
    request.set_plugin_id("fault");
    request.set_volume_id(volume);
    request.set_consumer("web");
    const v1::OperationResult result = scheduler_->Run(kNode, operation);
    EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
  }
  void WaitPublishCalls(const std::string& volume, int64_t calls) {
    WaitFor("the plugin is given new tokens", [&] { return Calls("NodePublishVolume", volume) >= calls; });
  }

  std::unique_ptr<TestScheduler> scheduler_;
};

TEST_F(TokenTest, TheSchedulerMakesThemOutThePluginIsGivenThemAndTheyAreWrittenNowhere) {
  StartWanting();
  Answer(1);
  const std::string volume = CreateVolume("tokens");
  const std::string target = PublishFromAfar(volume);
  const TestScheduler::Node asked = *scheduler_->Find(kNode);
  ASSERT_FALSE(asked.asks.empty());
  const v1::TokenAsk& ask = asked.asks.begin()->second.token();
  EXPECT_EQ(ask.namespace_(), "jobs");
  EXPECT_EQ(ask.consumer(), "web");
  EXPECT_EQ(ask.plugin_id(), "fault");
  EXPECT_EQ(ask.volume_id(), volume);
  EXPECT_EQ(std::set<std::string>(ask.audiences().begin(), ask.audiences().end()),
            (std::set<std::string>{"vault", "s3"}));
  // Renewed again and again, and by the next berthd at once.
  WaitPublishCalls(volume, 3);
  EXPECT_EQ(MountsAt(target), 1);
  node_.Kill();
  const int64_t before = Calls("NodePublishVolume", volume);
  node_.Start();
  WaitPublishCalls(volume, before + 1);
  EXPECT_EQ(MountsAt(target), 1);
  UnpublishFromAfar(volume);
  EXPECT_EQ(MountsAt(target), 0);
}

TEST_F(TokenTest, InKubernetesFormTheyAreRenewedTooAndWrittenNowhere) {
  StartWanting(R"([[token]]
audience = "vault"
form = "kubernetes"
in = "volume_context"

[[token]]
audience = "s3"
form = "kubernetes"
in = "volume_context"
republish = true
)");
  // A key of the file's top comes before its tables; a reload takes it over.
  const std::string file = ReadText(fault_.file());
  std::ofstream(fault_.file()) << "pod_info = true\n" << file;
  node_.Reload();
  Answer(1);
  const std::string volume = CreateVolume("tokens");
  v1::Operation publish = Publishing(volume);
  (*publish.mutable_publish()->mutable_request()->mutable_consumer_labels())["pod.uid"] = "uid-of-web-0";
  const v1::OperationResult published = scheduler_->Run(kNode, publish);
  ASSERT_EQ(published.outcome(), v1::OUTCOME_DONE) << published.message();
  EXPECT_EQ(MountsAt(published.publish().target_path()), 1);
  WaitPublishCalls(volume, 2);
  UnpublishFromAfar(volume);
}

TEST_F(TokenTest, APublishWaitsForASchedulerThatDoesNotAnswerAndSaysSo) {
  StartWanting();
  scheduler_->OnAsk([](const v1::Ask&) { return std::nullopt; });
  const std::string volume = CreateVolume("waits");
  const uint64_t id = scheduler_->Ask(kNode, Publishing(volume));
  const auto asked = scheduler_->WaitNode(kNode, "tokens to be asked for",
                                          [](const TestScheduler::Node& node) { return !node.asks.empty(); });
  EXPECT_EQ(Calls("NodePublishVolume", volume), 0);
  v1::SchedulerMessage message;
  *message.mutable_answer() = *AnswerTo(asked.asks.begin()->second, 3600);
  message.mutable_answer()->set_number(asked.asks.begin()->first);
  scheduler_->Send(kNode, message);
  const v1::OperationResult result = scheduler_->WaitResult(kNode, id);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
  UnpublishFromAfar(volume);
}

TEST_F(TokenTest, AProgramOfTheNodesOwnHasNobodyToAsk) {
  StartWanting();
  Answer(3600);
  const std::string volume = CreateVolume("local");
  const grpc::Status status = TryPublish(volume, "web");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("none can be issued"));
  EXPECT_EQ(Calls("NodeStageVolume", volume), 0);
  EXPECT_TRUE(scheduler_->Find(kNode)->asks.empty());
}

TEST_F(TokenTest, WhatIsMountedStaysWhenTheSchedulerRefusesNewOnes) {
  StartWanting();
  Answer(1);
  const std::string volume = CreateVolume("refused");
  const std::string target = PublishFromAfar(volume);
  scheduler_->OnAsk([](const v1::Ask&) {
    v1::Answer answer;
    answer.set_code(static_cast<int>(grpc::StatusCode::PERMISSION_DENIED));
    answer.set_message("it has been moved");
    return std::optional(answer);
  });
  WaitEvent("volume.token_failed", "it has been moved");
  EXPECT_EQ(MountsAt(target), 1);
  scheduler_->WaitNode(kNode, "the error to be reported", [&](const TestScheduler::Node& node) {
    const v1::Volume& told = node.volumes.at({"fault", volume});
    return told.state() == v1::PUBLISHED && told.last_error().find("it has been moved") != std::string::npos;
  });
  Answer(3600);
  WaitEvent("volume.token_renewed");
  UnpublishFromAfar(volume);
}

// The two of one call are more than a plugin's recent secrets hold, so that one of them is always forgotten.
TEST_F(TokenTest, APluginThatQuotesThemInItsErrorsTellsNobody) {
  StartWanting();
  const auto token = [](const std::string& audience) {
    return kSecret + audience + std::string(40'000, audience[0]);
  };
  const auto quote = [&](const std::string& audience) {
    fault_.Play(
        {"rpc = \"NodePublishVolume\"\naction = \"fail\"\ncode = \"UNAUTHENTICATED\"\n"
         "text = \"no such token: " +
         token(audience) + "\""});
    scheduler_->OnAsk([token](const v1::Ask& ask) {
      std::optional<v1::Answer> answer = AnswerTo(ask, 1);
      for (v1::Token& made : *answer->mutable_token()->mutable_tokens()) {
        made.set_token(token(made.audience()));
      }
      return answer;
    });
  };
  // The script has a token in it, too, and of such length the plugin would not take them.
  const auto take = [&] {
    Answer(1);
    fault_.Play();
  };
  // Made without the secret with which the tokens begin: that would be known for itself.
  v1::CreateVolumeRequest create;
  create.set_plugin_id(fault_.id());
  create.set_name("quoted");
  const std::string volume = node_.CreateVolume(create);
  for (const std::string audience : {"vault", "s3"}) {
    quote(audience);
    const v1::OperationResult result = scheduler_->Run(kNode, Publishing(volume));
    EXPECT_NE(result.outcome(), v1::OUTCOME_DONE);
    EXPECT_THAT(result.DebugString(), AllOf(HasSubstr("no such token: ****"), Not(HasSubstr(kSecret))));
  }
  take();
  PublishFromAfar(volume);
  for (const std::string audience : {"vault", "s3"}) {
    quote(audience);
    fault_.WaitActed("NodePublishVolume");
    WaitEvent("volume.token_failed", "no such token: ****");
    scheduler_->WaitNode(kNode, "the error to be reported", [&](const TestScheduler::Node& node) {
      const std::string& told = node.volumes.at({"fault", volume}).last_error();
      EXPECT_THAT(told, Not(HasSubstr(kSecret)));
      return told.find("no such token: ****") != std::string::npos;
    });
  }
  take();
  WaitEvent("volume.token_renewed");
  UnpublishFromAfar(volume);
}

TEST_F(TokenTest, WhatARestartFindsInThePluginsFileHoldsForWhatIsPublished) {
  StartWanting();
  Answer(1);
  // From here on none is passed again.
  constexpr const char* kTokens = "[[token]]\naudience = \"s3\"\nname = \"s3-token\"\n";
  fault_.Write(kTokens);
  v1::ReloadResponse reloaded;
  ASSERT_TRUE(node_.stub().Reload(Node::Context().get(), {}, &reloaded).ok());
  const std::string volume = CreateVolume("restarted");
  const std::string target = PublishFromAfar(volume);
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
  fault_.Write(std::string(kTokens) + "republish = true\n");
  v1::RestartPluginRequest restart;
  restart.set_id(fault_.id());
  v1::Plugin restarted;
  const grpc::Status status = node_.stub().RestartPlugin(Node::Context().get(), restart, &restarted);
  ASSERT_TRUE(status.ok()) << status.error_message();
  WaitPublishCalls(volume, 3);
  EXPECT_EQ(MountsAt(target), 1);
  UnpublishFromAfar(volume);
}

}  // namespace
}  // namespace berth
