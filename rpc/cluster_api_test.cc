// The node as one of a cluster: out of use, and volumes that its workloads ask the scheduler for.
#include <fmt/format.h>
#include <sys/wait.h>

#include "base/process.h"
#include "base/testing/from_text.h"
#include "rpc/testing/node_api_fixture.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class NodeApiClusterTest : public NodeApiTest {
 protected:
  absl::StatusOr<v1::DrainNodeResponse> Drain(const std::string& reason, bool end = false) {
    v1::DrainNodeRequest request;
    request.set_reason(reason);
    request.set_end(end);
    return Call(&ClusterApi::DrainNode, request);
  }
  absl::StatusOr<v1::PublishVolumeResponse> Publish(const std::string& volume, const std::string& consumer) {
    auto request = ForVolume<v1::PublishVolumeRequest>(volume);
    request.set_consumer(consumer);
    return Call(&VolumeApi::PublishVolume, request);
  }
  static v1::ClaimVolumeRequest AClaim() {
    v1::ClaimVolumeRequest request;
    request.set_namespace_("prod");
    request.set_volume("db");
    request.set_consumer("job-7");
    request.set_name("data");
    return request;
  }
  // What the scheduler has published for AClaim.
  void AddMount() {
    mounter_.mounts.push_back({.plugin_id = "p",
                               .volume_id = "vol-9",
                               .consumer = "prod/job-7",
                               .name = "data",
                               .source_path = "/volumes/vol-9",
                               .mount_flags = {"password=hush"}});
    scheduler_.answer.set_plugin_id("p");
    scheduler_.answer.set_volume_id("vol-9");
  }
  absl::StatusOr<v1::ClaimVolumeResponse> Claim(const v1::ClaimVolumeRequest& request,
                                                bool may_change = true) {
    FakeStream<v1::ClaimVolumeResponse> out;
    const CallInfo call{.method = "ClaimVolume",
                        .may_change = may_change,
                        .deadline = Clock::now() + std::chrono::seconds(20),
                        .peer = peer_};
    const absl::Status status = RunOn(loop_, api_.cluster.ClaimVolume(request, call, out));
    progress_.clear();
    for (const v1::ClaimVolumeResponse& message : out.sent) {
      if (message.has_progress()) progress_.push_back(message.progress());
    }
    if (!status.ok()) return status;
    return out.sent.back();
  }
  std::vector<std::string> progress_;  // that the last Claim heard
};

TEST_F(NodeApiClusterTest, ADrainingNodeRefusesWhatIsNewAndConfirmsWhatIsHere) {
  control_.Add("p");
  mounter_.Add("p", "v", "job-1");
  const auto drain = Drain("a new disk");
  ASSERT_TRUE(drain.ok()) << drain.status();
  EXPECT_EQ(drain->drain().reason(), "a new disk");
  EXPECT_EQ(drain->drain().publications_left(), 1);
  EXPECT_GT(drain->drain().since().seconds(), 0);

  const auto refused = Publish("v", "job-2");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused.status()), HasSubstr("a new disk"));
  EXPECT_TRUE(Publish("v", "job-1").ok());

  const auto status = Call(&StatusApi::GetStatus, v1::GetStatusRequest());
  EXPECT_EQ(status->drain().reason(), "a new disk");
  EXPECT_THAT(status->problems(), IsEmpty()) << "it was asked for";
  ASSERT_EQ(status->findings_size(), 1);
  EXPECT_THAT(status->findings(0).text(), HasSubstr("being drained"));

  const auto ended = Drain("", true);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_FALSE(ended->has_drain());
  EXPECT_TRUE(Publish("v", "job-2").ok());
  EXPECT_FALSE(Call(&StatusApi::GetStatus, v1::GetStatusRequest())->has_drain());
}

TEST_F(NodeApiClusterTest, ARuntimeThatTheOperatorDescribedIsTheOneThatCounts) {
  control_.Add("p");
  api_.volumes.SetRuntimes({FromText<RuntimeAbility>("name: 'vm' block: true fs_types: 'xfs'")});
  auto request = ForVolume<v1::PublishVolumeRequest>("v");
  request.set_consumer("c");
  request.mutable_runtime()->set_name("vm");
  request.mutable_runtime()->set_mount(true);
  ASSERT_TRUE(Call(&VolumeApi::PublishVolume, request).ok());
  EXPECT_EQ(mounter_.last_runtime, api_.volumes.runtimes()[0]);

  request.mutable_runtime()->Clear();
  request.mutable_runtime()->set_name("vm");
  EXPECT_TRUE(Call(&VolumeApi::PublishVolume, request).ok()) << "the name alone will do";
  request.mutable_runtime()->set_name("lorry");
  EXPECT_THAT(Message(Call(&VolumeApi::PublishVolume, request).status()),
              HasSubstr("runtime.name: berthd.toml has no [[runtime]] \"lorry\""));
  request.mutable_runtime()->set_mount(true);
  ASSERT_TRUE(Call(&VolumeApi::PublishVolume, request).ok());
  EXPECT_EQ(mounter_.last_runtime->name(), "lorry");
}

TEST_F(NodeApiClusterTest, ADrainsReasonIsChecked) {
  EXPECT_THAT(Message(Drain(std::string(1025, 'x')).status()), HasSubstr("reason: 1025 bytes long"));
  EXPECT_THAT(Message(Drain("a\nb").status()), HasSubstr("reason: must not hold control characters"));
  EXPECT_THAT(Message(Drain("why", true).status()), HasSubstr("reason: not with end"));
}

TEST_F(NodeApiClusterTest, AClaimIsAskedWithItsCallersNameAndAnsweredWithTheMount) {
  AddMount();
  peer_ = PeerCredentials{.pid = 7, .uid = 1000, .gid = 1001};
  v1::ClaimVolumeRequest request = AClaim();
  request.set_readonly(true);
  request.set_wait(true);
  const auto answer = Claim(request, false);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->mount().source_path(), "/volumes/vol-9");
  EXPECT_THAT(answer->mount().mount_flags(), ElementsAre("(hidden)"));
  ASSERT_EQ(scheduler_.asks.size(), 1U);
  const v1::ClaimAsk& ask = scheduler_.asks[0];
  EXPECT_EQ(ask.namespace_(), "prod");
  EXPECT_EQ(ask.volume(), "db");
  EXPECT_EQ(ask.consumer(), "job-7");
  EXPECT_EQ(ask.name(), "data");
  EXPECT_TRUE(ask.readonly());
  EXPECT_EQ(ask.uid(), 1000U);
  EXPECT_EQ(ask.gid(), 1001U);
  EXPECT_TRUE(scheduler_.last_wait);
}

TEST_F(NodeApiClusterTest, AClaimHearsWhatItWaitsFor) {
  AddMount();
  scheduler_.progress = {"the scheduler is not connected", "2 claims are before this one"};
  EXPECT_TRUE(Claim(AClaim())->has_mount());
  EXPECT_THAT(progress_, ElementsAre("the scheduler is not connected", "2 claims are before this one"));
}

TEST_F(NodeApiClusterTest, AReleaseIsAskedWithItsCallersNameToo) {
  peer_ = PeerCredentials{.pid = 7, .uid = 1000, .gid = 1001};
  v1::ReleaseClaimRequest request;
  request.set_namespace_("prod");
  request.set_volume("db");
  EXPECT_THAT(Message(Call(&ClusterApi::ReleaseClaim, request, false).status()),
              HasSubstr("consumer: must not be empty"));
  request.set_consumer("job-7");
  request.set_name("data");
  ASSERT_TRUE(Call(&ClusterApi::ReleaseClaim, request, false).ok());
  ASSERT_EQ(scheduler_.releases.size(), 1U);
  const v1::ReleaseAsk& ask = scheduler_.releases[0];
  EXPECT_EQ(ask.namespace_() + "/" + ask.volume() + " " + ask.consumer() + " " + ask.name(),
            "prod/db job-7 data");
  EXPECT_EQ(ask.uid(), 1000U);
  EXPECT_EQ(ask.gid(), 1001U);
  EXPECT_FALSE(scheduler_.last_wait);
}

TEST_F(NodeApiClusterTest, TheSchedulersRefusalIsTheAnswer) {
  scheduler_.next_error = absl::PermissionDeniedError("job-7 may not have db");
  EXPECT_EQ(Claim(AClaim()).status(), absl::PermissionDeniedError("job-7 may not have db"));
}

TEST_F(NodeApiClusterTest, AGrantWithoutAPublicationHereIsNoMount) {
  scheduler_.answer.set_plugin_id("p");
  scheduler_.answer.set_volume_id("vol-9");
  const auto answer = Claim(AClaim());
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Message(answer.status()), HasSubstr("not published here"));
}

TEST_F(NodeApiClusterTest, EveryMistakeOfAClaimIsNamedAndNobodyIsAsked) {
  v1::ClaimVolumeRequest request;
  request.set_namespace_("a/b");
  request.set_consumer(std::string(1022, 'c'));
  request.set_name("a\nb");
  request.mutable_life()->set_unit("noname");
  EXPECT_THAT(Message(Claim(request).status()),
              AllOf(HasSubstr("namespace: must not hold a slash"), HasSubstr("volume: must not be empty"),
                    HasSubstr("consumer: 1026 bytes long with its namespace"),
                    HasSubstr("name: must not hold control characters"),
                    HasSubstr("life.unit: must be a unit's whole name")));
  EXPECT_THAT(scheduler_.asks, IsEmpty());
}

TEST_F(NodeApiClusterTest, WithoutTheRightToChangeALifeIsAProcessOfTheCallersUser) {
  AddMount();
  const auto claim_with = [this](const std::function<void(v1::ConsumerLife&)>& set, bool may_change) {
    v1::ClaimVolumeRequest request = AClaim();
    set(*request.mutable_life());
    return Claim(request, may_change).status();
  };
  const auto with_pid = [](pid_t pid) { return [pid](v1::ConsumerLife& life) { life.set_pid(pid); }; };
  // A process of another user's, as far as this caller goes; it lives until it is reaped here.
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  // Whatever process connected: its number may be another one's by now.
  peer_ = PeerCredentials{.pid = child, .uid = getuid() + 1, .gid = 1};
  const absl::Status foreign = claim_with(with_pid(child), false);
  EXPECT_EQ(foreign.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(Message(foreign), HasSubstr(fmt::format("process {} is not one of uid", child)));
  EXPECT_TRUE(claim_with(with_pid(child), true).ok());
  peer_->uid = getuid();
  EXPECT_TRUE(claim_with(with_pid(child), false).ok()) << "of the same user";
  // What the scheduler gets, and sends back with the publish, is this process and no later one of its number.
  ASSERT_FALSE(scheduler_.asks.empty());
  const v1::ConsumerLife pinned = scheduler_.asks.back().life();
  EXPECT_EQ(pinned.start_time(), *StartTimeOf(child));
  const auto reused = [child, &pinned](v1::ConsumerLife& life) {
    life.set_pid(child);
    life.set_start_time(pinned.start_time() - 1);
  };
  EXPECT_THAT(Message(claim_with(reused, true)), HasSubstr("is another one by now"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_THAT(Message(claim_with(with_pid(child), false)), HasSubstr("there is no process"));

  const auto unit = [](v1::ConsumerLife& life) { life.set_unit("a.service"); };
  const auto cgroup = [](v1::ConsumerLife& life) { life.set_cgroup("/sys/fs/cgroup/a"); };
  EXPECT_EQ(claim_with(unit, false).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(claim_with(cgroup, false).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(claim_with(unit, true).ok());
}

TEST_F(NodeApiClusterTest, WhoWaitsForADrainIsAnsweredOnceTheLastOneHasLeft) {
  AddPlugin({});
  ASSERT_TRUE(Publish("v", "job-7").ok());
  v1::DrainNodeRequest request;
  request.set_wait(true);
  CallInfo call;
  call.deadline = Clock::now() + std::chrono::seconds(20);
  std::optional<absl::StatusOr<v1::DrainNodeResponse>> answer;
  asio::co_spawn(loop_, api_.cluster.DrainNode(request, call),
                 [&](std::exception_ptr, absl::StatusOr<v1::DrainNodeResponse> came) { answer = came; });
  const auto run_until = [&](auto there) {
    loop_.restart();
    while (!there() && Clock::now() < call.deadline) loop_.run_one_until(call.deadline);
    return there();
  };
  ASSERT_TRUE(run_until([&] { return drainer_.Describe().has_value(); }));
  EXPECT_FALSE(answer.has_value());
  mounter_.volumes.clear();
  drainer_.OnHoldersChanged();
  ASSERT_TRUE(run_until([&] { return answer.has_value(); }));
  ASSERT_TRUE(answer->ok()) << answer->status();
  EXPECT_EQ((*answer)->drain().publications_left(), 0);
  ASSERT_TRUE(Drain("", true).ok());
}

TEST_F(NodeApiClusterTest, TheLinkIsShownAndItsTroubleIsAProblem) {
  v1::LinkStatus& link = scheduler_.link.emplace();
  link.set_state(v1::LinkStatus::SYNCED);
  link.set_address("scheduler:7000");
  link.set_lease(v1::LEASE_VALID);
  const auto problems = [this] { return Call(&StatusApi::GetStatus, v1::GetStatusRequest())->problems(); };
  EXPECT_EQ(Call(&StatusApi::GetStatus, v1::GetStatusRequest())->scheduler().address(), "scheduler:7000");
  EXPECT_THAT(problems(), IsEmpty()) << "since 1970, and up";

  link.set_state(v1::LinkStatus::DIALLING);
  link.set_last_error("connection refused");
  link.mutable_since()->set_seconds(time(nullptr) - 50);
  EXPECT_THAT(problems(), IsEmpty()) << "links come and go";
  link.mutable_since()->set_seconds(time(nullptr) - 150);
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("not been reached for 2 minutes: connection refused")));
  link.set_lease(v1::LEASE_EXPIRED);
  EXPECT_THAT(problems(), Contains(HasSubstr("lease has run out")));
}

}  // namespace
}  // namespace berth
