#include "csi/client.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/system/system_error.hpp>
#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/testing/run_on.h"
#include "csi/testing/fake_plugin.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;
using boost::asio::local::stream_protocol;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

TimePoint Soon() { return Clock::now() + seconds(20); }

class CsiClientTest : public testing::Test {
 protected:
  CsiClientTest() {
    char name[] = "/tmp/berth-csi-XXXXXX";
    directory_ = ::mkdtemp(name);
    plugin_ = std::make_unique<FakePlugin>(directory_ + "/csi.sock");
    client_ = CsiClient::Connect(plugin_->socket_path());
  }
  ~CsiClientTest() override {
    plugin_.reset();
    client_.reset();
    EXPECT_EQ(::rmdir(directory_.c_str()), 0) << directory_;
  }

  absl::StatusOr<csi::ProbeResponse> Probe(TimePoint deadline = Soon()) {
    return RunOn(loop_, client_->Probe({}, deadline));
  }

  asio::io_context loop_;
  std::string directory_;
  std::unique_ptr<FakePlugin> plugin_;
  std::shared_ptr<CsiClient> client_;
};

TEST_F(CsiClientTest, SendsTheRequestAndReturnsTheAnswer) {
  csi::NodeGetInfoResponse info;
  info.set_node_id("node-7");
  plugin_->Answer("NodeGetInfo", info);
  plugin_->Answer("NodePublishVolume", csi::NodePublishVolumeResponse());
  plugin_->Start();

  const auto answer = RunOn(loop_, client_->NodeGetInfo({}, Soon()));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->node_id(), "node-7");

  csi::NodePublishVolumeRequest request;
  request.set_volume_id("v");
  request.set_target_path("/some/target");
  EXPECT_TRUE(RunOn(loop_, client_->NodePublishVolume(request, Soon())).ok());
  csi::NodePublishVolumeRequest seen;
  ASSERT_TRUE(plugin_->LastRequest("NodePublishVolume", &seen));
  EXPECT_EQ(seen.SerializeAsString(), request.SerializeAsString());
}

TEST_F(CsiClientTest, EveryRpcReachesItsOwnMethod) {
  plugin_->Start();
  // The fake knows none of them and says which it was asked for.
  const auto asked = [this](auto method, auto request) {
    return std::string(RunOn(loop_, std::invoke(method, *client_, request, Soon())).status().message());
  };
  const auto publish = [](CsiClient& client, csi::NodePublishVolumeRequest request, TimePoint deadline) {
    return client.NodePublishVolume(std::move(request), deadline);
  };
  EXPECT_EQ(asked(&CsiClient::GetPluginInfo, csi::GetPluginInfoRequest()), "unknown method GetPluginInfo");
  EXPECT_EQ(asked(&CsiClient::GetPluginCapabilities, csi::GetPluginCapabilitiesRequest()),
            "unknown method GetPluginCapabilities");
  EXPECT_EQ(asked(&CsiClient::Probe, csi::ProbeRequest()), "unknown method Probe");
  EXPECT_EQ(asked(&CsiClient::CreateVolume, csi::CreateVolumeRequest()), "unknown method CreateVolume");
  EXPECT_EQ(asked(&CsiClient::DeleteVolume, csi::DeleteVolumeRequest()), "unknown method DeleteVolume");
  EXPECT_EQ(asked(&CsiClient::ControllerPublishVolume, csi::ControllerPublishVolumeRequest()),
            "unknown method ControllerPublishVolume");
  EXPECT_EQ(asked(&CsiClient::ControllerUnpublishVolume, csi::ControllerUnpublishVolumeRequest()),
            "unknown method ControllerUnpublishVolume");
  EXPECT_EQ(asked(&CsiClient::ValidateVolumeCapabilities, csi::ValidateVolumeCapabilitiesRequest()),
            "unknown method ValidateVolumeCapabilities");
  EXPECT_EQ(asked(&CsiClient::ListVolumes, csi::ListVolumesRequest()), "unknown method ListVolumes");
  EXPECT_EQ(asked(&CsiClient::GetCapacity, csi::GetCapacityRequest()), "unknown method GetCapacity");
  EXPECT_EQ(asked(&CsiClient::CreateSnapshot, csi::CreateSnapshotRequest()), "unknown method CreateSnapshot");
  EXPECT_EQ(asked(&CsiClient::DeleteSnapshot, csi::DeleteSnapshotRequest()), "unknown method DeleteSnapshot");
  EXPECT_EQ(asked(&CsiClient::ListSnapshots, csi::ListSnapshotsRequest()), "unknown method ListSnapshots");
  EXPECT_EQ(asked(&CsiClient::GetSnapshot, csi::GetSnapshotRequest()), "unknown method GetSnapshot");
  EXPECT_EQ(asked(&CsiClient::ControllerGetVolume, csi::ControllerGetVolumeRequest()),
            "unknown method ControllerGetVolume");
  EXPECT_EQ(asked(&CsiClient::ControllerModifyVolume, csi::ControllerModifyVolumeRequest()),
            "unknown method ControllerModifyVolume");
  EXPECT_EQ(asked(&CsiClient::GroupControllerGetCapabilities, csi::GroupControllerGetCapabilitiesRequest()),
            "unknown method GroupControllerGetCapabilities");
  EXPECT_EQ(asked(&CsiClient::CreateVolumeGroupSnapshot, csi::CreateVolumeGroupSnapshotRequest()),
            "unknown method CreateVolumeGroupSnapshot");
  EXPECT_EQ(asked(&CsiClient::DeleteVolumeGroupSnapshot, csi::DeleteVolumeGroupSnapshotRequest()),
            "unknown method DeleteVolumeGroupSnapshot");
  EXPECT_EQ(asked(&CsiClient::GetVolumeGroupSnapshot, csi::GetVolumeGroupSnapshotRequest()),
            "unknown method GetVolumeGroupSnapshot");
  EXPECT_EQ(asked(&CsiClient::ControllerGetCapabilities, csi::ControllerGetCapabilitiesRequest()),
            "unknown method ControllerGetCapabilities");
  EXPECT_EQ(asked(&CsiClient::ControllerExpandVolume, csi::ControllerExpandVolumeRequest()),
            "unknown method ControllerExpandVolume");
  EXPECT_EQ(asked(&CsiClient::NodeStageVolume, csi::NodeStageVolumeRequest()),
            "unknown method NodeStageVolume");
  EXPECT_EQ(asked(&CsiClient::NodeUnstageVolume, csi::NodeUnstageVolumeRequest()),
            "unknown method NodeUnstageVolume");
  EXPECT_EQ(asked(publish, csi::NodePublishVolumeRequest()), "unknown method NodePublishVolume");
  EXPECT_EQ(asked(&CsiClient::NodeUnpublishVolume, csi::NodeUnpublishVolumeRequest()),
            "unknown method NodeUnpublishVolume");
  EXPECT_EQ(asked(&CsiClient::NodeGetVolumeStats, csi::NodeGetVolumeStatsRequest()),
            "unknown method NodeGetVolumeStats");
  EXPECT_EQ(asked(&CsiClient::NodeExpandVolume, csi::NodeExpandVolumeRequest()),
            "unknown method NodeExpandVolume");
  EXPECT_EQ(asked(&CsiClient::NodeGetCapabilities, csi::NodeGetCapabilitiesRequest()),
            "unknown method NodeGetCapabilities");
  EXPECT_EQ(asked(&CsiClient::NodeGetInfo, csi::NodeGetInfoRequest()), "unknown method NodeGetInfo");
}

TEST_F(CsiClientTest, EndsAtTheDeadlineAndTellsThePlugin) {
  plugin_->Hang("Probe");
  plugin_->Start();
  const TimePoint start = Clock::now();
  EXPECT_EQ(Probe(start + milliseconds(200)).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(Clock::now() - start, milliseconds(190));  // gRPC rounds deadlines.
  EXPECT_TRUE(plugin_->WaitForCancelled("Probe", 1));
}

Awaitable<void> ProbeUntilCancelled(std::shared_ptr<CsiClient> client, bool& aborted) {
  try {
    const auto answer = co_await client->Probe({}, Soon());
    ADD_FAILURE() << "answered: " << answer.status();
  } catch (const boost::system::system_error& error) {
    aborted = error.code() == asio::error::operation_aborted;
    throw;
  }
}

TEST_F(CsiClientTest, ACancelledCoroutineCancelsTheCall) {
  plugin_->Hang("Probe");
  plugin_->Start();
  TaskScope scope(loop_.get_executor(), "test");
  bool aborted = false;
  scope.Spawn("probe", ProbeUntilCancelled(client_, aborted));
  loop_.poll();
  ASSERT_TRUE(plugin_->WaitForCalls("Probe", 1));
  RunOn(loop_, scope.Join());
  EXPECT_TRUE(aborted);
  EXPECT_TRUE(plugin_->WaitForCancelled("Probe", 1));
}

TEST_F(CsiClientTest, ACallOutlivesTheLastOwnerOfItsClient) {
  plugin_->Answer("Probe", csi::ProbeResponse());
  plugin_->Start();
  auto call = client_->Probe({}, Soon());
  client_.reset();
  EXPECT_TRUE(RunOn(loop_, std::move(call)).ok());
}

TEST_F(CsiClientTest, ManyCallsAreInFlightAtOnce) {
  plugin_->Hang("Probe");
  plugin_->Start();
  TaskScope scope(loop_.get_executor(), "test");
  std::array<bool, 100> aborted{};
  for (bool& flag : aborted) scope.Spawn("probe", ProbeUntilCancelled(client_, flag));
  loop_.poll();
  EXPECT_TRUE(plugin_->WaitForCalls("Probe", 100));
  RunOn(loop_, scope.Join());
  EXPECT_THAT(aborted, testing::Each(true));
  EXPECT_TRUE(plugin_->WaitForCancelled("Probe", 100));
}

TEST_F(CsiClientTest, RefusesAnAnswerOfMoreThan4MiB) {
  csi::NodeGetInfoResponse info;
  info.set_node_id(std::string((4 << 20) - 16, 'x'));
  plugin_->Answer("NodeGetInfo", info);
  plugin_->Start();
  EXPECT_TRUE(RunOn(loop_, client_->NodeGetInfo({}, Soon())).ok());

  info.set_node_id(std::string((4 << 20) + 1, 'x'));
  plugin_->Answer("NodeGetInfo", info);
  EXPECT_EQ(RunOn(loop_, client_->NodeGetInfo({}, Soon())).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// gRPC's callback API hands both of these over as OK.
TEST_F(CsiClientTest, AnAnswerThatIsNoMessageIsAnError) {
  plugin_->AnswerBytes("NodeGetInfo", "\xff\xff\xff\xff garbage");
  plugin_->Start();
  const auto answer = RunOn(loop_, client_->NodeGetInfo({}, Soon()));
  EXPECT_EQ(
      answer.status(),
      absl::InternalError("the answer is not a readable csi.v1.NodeGetInfoResponse: malformed, or a text in "
                          "it is not valid UTF-8"));
}

TEST_F(CsiClientTest, AnOkWithoutAMessageIsAnError) {
  plugin_->AnswerNothing("NodePublishVolume");
  plugin_->Start();
  EXPECT_EQ(RunOn(loop_, client_->NodePublishVolume({}, Soon())).status().code(),
            absl::StatusCode::kInternal);
}

TEST_F(CsiClientTest, TextThatIsNotUtf8IsNoMessage) {
  plugin_->AnswerBytes("NodeGetInfo", std::string("\x0a\x02\xff\xfe", 4));  // node_id
  plugin_->Start();
  EXPECT_EQ(RunOn(loop_, client_->NodeGetInfo({}, Soon())).status().code(), absl::StatusCode::kInternal);
}

TEST_F(CsiClientTest, KeepsTheCodeOfAnErrorWithALongMessage) {
  const std::string output(20'000, 'm');  // of a failed mkfs, say
  plugin_->Fail("NodeStageVolume", grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, output));
  plugin_->Start();
  const auto answer = RunOn(loop_, client_->NodeStageVolume({}, Soon()));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("mmmm"));
}

TEST_F(CsiClientTest, BoundsTheMetadataOfAnAnswer) {
  plugin_->Fail("Probe", grpc::Status(grpc::StatusCode::NOT_FOUND, std::string(1 << 20, 'm')));
  plugin_->Start();
  EXPECT_EQ(Probe().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CsiClientTest, TheFirstCallAfterThePluginServesIsAnswered) {
  plugin_->Answer("Probe", csi::ProbeResponse());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Probe().status().code(), absl::StatusCode::kUnavailable);
  plugin_->Start();
  // gRPC alone would fail this one too, since it waits out a backoff first.
  EXPECT_TRUE(Probe().ok());
}

TEST_F(CsiClientTest, FindsAPluginAgainThatServesAnewAtTheSameSocket) {
  plugin_->Answer("Probe", csi::ProbeResponse());
  plugin_->Start();
  ASSERT_TRUE(Probe().ok());
  plugin_->Stop();
  EXPECT_EQ(Probe().status().code(), absl::StatusCode::kUnavailable);
  plugin_->Start();
  EXPECT_TRUE(Probe().ok());
}

TEST_F(CsiClientTest, ASocketPathMayHoldAnyCharacter) {
  plugin_->Answer("Probe", csi::ProbeResponse());
  plugin_->Start();
  const std::string odd = directory_ + "/a b%41?c#d.sock";
  ASSERT_EQ(::rename(plugin_->socket_path().c_str(), odd.c_str()), 0);
  client_ = CsiClient::Connect(odd);
  EXPECT_TRUE(Probe().ok());
  EXPECT_EQ(::rename(odd.c_str(), plugin_->socket_path().c_str()), 0);
}

// A process that was stopped: the kernel accepts for it, and nothing ever comes.
TEST_F(CsiClientTest, TheDeadlineHoldsAgainstASocketThatOnlyAccepts) {
  const stream_protocol::acceptor silent(loop_, stream_protocol::endpoint(plugin_->socket_path()));
  EXPECT_EQ(Probe(Clock::now() + milliseconds(100)).status().code(), absl::StatusCode::kDeadlineExceeded);
  ::unlink(plugin_->socket_path().c_str());
}

// As much of HTTP/2 as a server needs until a call is there; then it dies as a killed process does.
Awaitable<void> AcceptOneCallAndDie(stream_protocol::acceptor& acceptor) {
  stream_protocol::socket socket = co_await acceptor.async_accept(asio::use_awaitable);
  constexpr std::array<char, 9> kEmptySettings{0, 0, 0, 4, 0, 0, 0, 0, 0};
  co_await asio::async_write(socket, asio::buffer(kEmptySettings), asio::use_awaitable);
  std::array<char, 24> preface{};
  co_await asio::async_read(socket, asio::buffer(preface), asio::use_awaitable);
  std::array<unsigned char, 9> header{};
  do {
    co_await asio::async_read(socket, asio::buffer(header), asio::use_awaitable);
    std::string payload((header[0] << 16U) | (header[1] << 8U) | header[2], '\0');
    co_await asio::async_read(socket, asio::buffer(payload), asio::use_awaitable);
  } while (header[3] != 1);  // HEADERS: the call.
}

TEST_F(CsiClientTest, APluginThatDiesInTheMiddleOfACallIsUnavailable) {
  stream_protocol::acceptor acceptor(loop_, stream_protocol::endpoint(plugin_->socket_path()));
  TaskScope scope(loop_.get_executor(), "test");
  scope.Spawn("plugin", AcceptOneCallAndDie(acceptor));
  EXPECT_EQ(Probe().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(scope.size(), 0U) << "the call never arrived";
  RunOn(loop_, scope.Join());
  ::unlink(plugin_->socket_path().c_str());
}

// Runs the loop until `done`, under a bound.
void RunUntil(asio::io_context& loop, const std::function<bool()>& done) {
  const TimePoint deadline = Soon();
  loop.restart();
  while (!done() && Clock::now() < deadline)
    loop.run_one_until(std::min(deadline, Clock::now() + milliseconds(5)));
  ASSERT_TRUE(done());
}

class CallsInFlightTest : public CsiClientTest {
 protected:
  CallsInFlightTest() {
    client_ = CsiClient::Connect(plugin_->socket_path(),
                                 {.secrets = &secrets_, .plugin_id = "p", .on_idle = [this] { ++idle_; }});
    plugin_->Hang("NodeStageVolume");
    plugin_->Hang("NodePublishVolume");
    plugin_->Hang("NodeGetVolumeStats");
    plugin_->Answer("NodeUnstageVolume", csi::NodeUnstageVolumeResponse());
    plugin_->Start();
  }

  Awaitable<void> Stage(TimePoint deadline) {
    csi::NodeStageVolumeRequest request;
    (*request.mutable_secrets())["key"] = "geheimnis";
    stage_ = (co_await client_->NodeStageVolume(std::move(request), deadline)).status();
  }
  Awaitable<void> Publish(TimePoint deadline) {
    publish_ = (co_await client_->NodePublishVolume({}, deadline)).status();
  }
  Awaitable<void> Stats(TimePoint deadline) {
    [[maybe_unused]] const auto answer = co_await client_->NodeGetVolumeStats({}, deadline);
  }

  RecentSecrets secrets_;
  int idle_ = 0;
  absl::Status stage_;
  absl::Status publish_;
  TaskScope scope_{loop_.get_executor(), "calls"};
};

TEST_F(CallsInFlightTest, CallsThatChangeSomethingAreCountedUntilTheLastHasEnded) {
  EXPECT_EQ(client_->busy_until(), std::nullopt);
  const TimePoint soon = Clock::now() + milliseconds(200);
  const TimePoint later = soon + milliseconds(100);
  scope_.Spawn("publish", Publish(later));
  scope_.Spawn("stage", Stage(soon));
  scope_.Spawn("stage", Stage(soon));
  scope_.Spawn("stats", Stats(Soon()));
  const std::vector<std::string> names{"NodePublishVolume", "NodeStageVolume (2)"};
  RunUntil(loop_, [&] { return client_->in_flight() == names; });
  EXPECT_EQ(client_->busy_until(), later);
  RunUntil(loop_, [this] { return !stage_.ok(); });
  EXPECT_EQ(idle_, 0) << "one is still in flight";
  RunUntil(loop_, [this] { return idle_ > 0; });
  EXPECT_EQ(publish_.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(client_->busy_until(), std::nullopt);
  EXPECT_TRUE(client_->in_flight().empty());
  EXPECT_EQ(idle_, 1);
  EXPECT_EQ(scope_.size(), 1U) << "the call that only reads goes on";
  RunOn(loop_, scope_.Join());
}

TEST_F(CallsInFlightTest, ACancelledCallHasEnded) {
  scope_.Spawn("stage", Stage(Soon()));
  RunUntil(loop_, [this] { return client_->busy_until().has_value(); });
  ASSERT_TRUE(plugin_->WaitForCalls("NodeStageVolume", 1));
  RunOn(loop_, scope_.Join());
  EXPECT_EQ(client_->busy_until(), std::nullopt);
  RunUntil(loop_, [this] { return idle_ == 1; });
}

TEST_F(CallsInFlightTest, NobodyIsToldOnceTheClientIsGone) {
  RunOn<bool>(loop_, [](CsiClient* client) -> Awaitable<bool> {
    co_return (co_await client->NodeUnstageVolume({}, Soon())).ok();
  }(client_.get()));
  client_.reset();
  loop_.restart();
  loop_.poll();
  EXPECT_EQ(idle_, 0);
}

TEST_F(CallsInFlightTest, SecretsAreKnownBeforeThePluginCanSayThem) {
  scope_.Spawn("stage", Stage(Soon()));
  ASSERT_TRUE(secrets_.Of("p")->empty());
  RunUntil(loop_, [this] { return client_->busy_until().has_value(); });
  EXPECT_EQ(secrets_.Of("p")->Redacted("with geheimnis"), "with *********");
  EXPECT_TRUE(secrets_.Of("q")->empty());
  RunOn(loop_, scope_.Join());
}

TEST_F(CallsInFlightTest, AnErrorDoesNotRepeatASecret) {
  plugin_->Fail("CreateVolume",
                grpc::Status(grpc::StatusCode::INTERNAL, "mount -o password=geheimnis failed"));
  const absl::Status failed = RunOn<absl::Status>(loop_, [](CsiClient* client) -> Awaitable<absl::Status> {
    csi::CreateVolumeRequest request;
    (*request.mutable_secrets())["key"] = "geheimnis";
    co_return (co_await client->CreateVolume(request, Soon())).status();
  }(client_.get()));
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(MessageOf(failed), "mount -o password=********* failed");
}

TEST_F(CallsInFlightTest, AnErrorDoesNotRepeatAMountFlag) {
  plugin_->Fail("NodeStageVolume",
                grpc::Status(grpc::StatusCode::INTERNAL, "mount -o uid=1000,password=geheimnis failed"));
  const absl::Status failed = RunOn<absl::Status>(loop_, [](CsiClient* client) -> Awaitable<absl::Status> {
    csi::NodeStageVolumeRequest request;
    request.mutable_volume_capability()->mutable_mount()->add_mount_flags("uid=1000");
    request.mutable_volume_capability()->mutable_mount()->add_mount_flags("password=geheimnis");
    co_return (co_await client->NodeStageVolume(request, Soon())).status();
  }(client_.get()));
  EXPECT_EQ(MessageOf(failed), "mount -o uid=1000,password=********* failed");
}

// What is logged meanwhile, at the most talkative level.
class DebugLog {
 public:
  DebugLog() : before_(spdlog::default_logger()) {
    const auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    const auto logger = std::make_shared<spdlog::logger>("debug", sink);
    logger->set_level(spdlog::level::debug);
    spdlog::set_default_logger(logger);
  }
  ~DebugLog() { spdlog::set_default_logger(before_); }
  DebugLog(const DebugLog&) = delete;
  DebugLog& operator=(const DebugLog&) = delete;

  [[nodiscard]] std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_;
};

Awaitable<void> PublishWithTokens(std::shared_ptr<CsiClient> client, int number,
                                  std::vector<std::string>* errors) {
  csi::NodePublishVolumeRequest request;
  std::vector<std::string> confidential{fmt::format("hunter3-{}", number)};
  (*request.mutable_secrets())["vault"] = fmt::format("hunter2-{}", number);
  (*request.mutable_volume_context())["s3"] = confidential[0];
  const auto answer = co_await client->NodePublishVolume(std::move(request), Soon(), confidential);
  errors->emplace_back(MessageOf(answer.status()));
}

// As after a restart of berthd: many publications at once, each with tokens of its own.
TEST_F(CallsInFlightTest, WhatACallCarriesIsBlottedOutToItsEndHoweverMuchIsForgottenMeanwhile) {
  RecentSecrets few({.values = 2, .bytes = 64, .age = std::chrono::hours(1)});
  client_ = CsiClient::Connect(plugin_->socket_path(), {.secrets = &few, .plugin_id = "p", .on_idle = {}});
  const DebugLog log;
  constexpr int kCalls = 5;
  std::vector<std::string> errors;
  for (int i = 0; i < kCalls; ++i) scope_.Spawn("publish", PublishWithTokens(client_, i, &errors));
  const std::vector<std::string> all{fmt::format("NodePublishVolume ({})", kCalls)};
  RunUntil(loop_, [&] { return client_->in_flight() == all; });
  ASSERT_TRUE(plugin_->WaitForCalls("NodePublishVolume", kCalls));
  few.Forget("p");
  plugin_->FailHung("NodePublishVolume", [](const std::string& bytes) {
    csi::NodePublishVolumeRequest request;
    EXPECT_TRUE(request.ParseFromString(bytes));
    return grpc::Status(
        grpc::StatusCode::UNAUTHENTICATED,
        fmt::format("not {}, not {}", request.secrets().at("vault"), request.volume_context().at("s3")));
  });
  RunUntil(loop_, [&] { return errors.size() == kCalls; });
  EXPECT_THAT(errors, testing::Each("not *********, not *********"));
  EXPECT_THAT(log.text(), HasSubstr("volume_context: ***stripped***"));
  EXPECT_THAT(log.text(), testing::Not(HasSubstr("hunter")));
  EXPECT_TRUE(few.Of("p")->empty()) << "the plugin is no more";
}

}  // namespace
}  // namespace berth
