#include "fingerprint/fingerprint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/run_on.h"
#include "csi/testing/fake_plugin.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;
using ControllerCapability = csi::ControllerServiceCapability::RPC;
using NodeCapability = csi::NodeServiceCapability::RPC;
using PluginService = csi::PluginCapability::Service;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A Fingerprinter, a fake plugin for it, and all reports to its sink.
class FingerprinterTest : public testing::Test {
 protected:
  FingerprinterTest() : events_(loop_.get_executor(), 1000, 1), reported_(loop_.get_executor()) {
    char name[] = "/tmp/berth-fingerprint-XXXXXX";
    directory_ = ::mkdtemp(name);
    plugin_ = std::make_unique<FakePlugin>(directory_ + "/csi.sock");
    options_.plugin_id = "p";
    options_.interval = milliseconds(20);
    options_.timeout = seconds(10);
    options_.fingerprint_interval = hours(1);

    csi::GetPluginInfoResponse info;
    info.set_name("csi.example.com");
    info.set_vendor_version("1.0");
    plugin_->Answer("GetPluginInfo", info);
    SetReady(std::nullopt);
    SetServices({});
    SetNodeCapabilities({NodeCapability::STAGE_UNSTAGE_VOLUME});
    SetNodeId("node-1");
  }
  ~FingerprinterTest() override {
    Stop();
    plugin_.reset();
    EXPECT_EQ(::rmdir(directory_.c_str()), 0) << directory_;
  }

  void SetReady(std::optional<bool> ready) {
    csi::ProbeResponse probe;
    if (ready) probe.mutable_ready()->set_value(*ready);
    plugin_->Answer("Probe", probe);
  }
  void SetServices(const std::vector<PluginService::Type>& types) {
    csi::GetPluginCapabilitiesResponse response;
    for (const auto type : types) response.add_capabilities()->mutable_service()->set_type(type);
    plugin_->Answer("GetPluginCapabilities", response);
  }
  void SetControllerCapabilities(const std::vector<ControllerCapability::Type>& types) {
    csi::ControllerGetCapabilitiesResponse response;
    for (const auto type : types) response.add_capabilities()->mutable_rpc()->set_type(type);
    plugin_->Answer("ControllerGetCapabilities", response);
  }
  void SetNodeCapabilities(const std::vector<NodeCapability::Type>& types) {
    csi::NodeGetCapabilitiesResponse response;
    for (const auto type : types) response.add_capabilities()->mutable_rpc()->set_type(type);
    plugin_->Answer("NodeGetCapabilities", response);
  }
  void SetNodeId(const std::string& id) {
    csi::NodeGetInfoResponse response;
    response.set_node_id(id);
    plugin_->Answer("NodeGetInfo", response);
  }

  // Begins a new instance.
  void Begin() {
    Stop();
    FingerprintSink sink{
        .on_probe =
            [this](const ProbeResult& result) {
              probes_.push_back(result);
              reported_.NotifyAll();
            },
        .on_facts =
            [this](absl::StatusOr<PluginFacts> facts, const std::string& computed_class) {
              facts_.push_back(std::move(facts));
              classes_.push_back(computed_class);
              reported_.NotifyAll();
            },
        .holds_volumes = [this] { return holds_volumes_; },
    };
    fingerprinter_ = std::make_unique<Fingerprinter>(
        loop_.get_executor(), options_, CsiClient::Connect(plugin_->socket_path()), std::move(sink), events_);
  }

  void Stop() {
    if (!fingerprinter_) return;
    RunOn(loop_, fingerprinter_->Stop());
    fingerprinter_.reset();
    probes_.clear();
    facts_.clear();
    classes_.clear();
  }

  // Runs the loop until `predicate()` holds; false at the bound.
  [[nodiscard]] bool Until(std::function<bool()> predicate) {
    return RunOn(loop_, reported_.WaitUntil(std::move(predicate), Clock::now() + seconds(20)));
  }
  [[nodiscard]] bool UntilProbes(size_t count) {
    return Until([this, count] { return probes_.size() >= count; });
  }
  [[nodiscard]] bool UntilFacts(size_t count) {
    return Until([this, count] { return facts_.size() >= count; });
  }
  // Waits for a probe that began after now and ended so.
  [[nodiscard]] bool UntilLater(bool ok) {
    const size_t before = probes_.size();
    return Until([this, before, ok] { return probes_.size() > before + 1 && probes_.back().ok == ok; });
  }

  [[nodiscard]] std::vector<std::string> Events(const std::string& type) const {
    std::vector<std::string> messages;
    for (const Event& event : events_.After(0, 1000).events) {
      EXPECT_EQ(event.plugin_id, "p");
      if (event.type == type) messages.push_back(event.message);
    }
    return messages;
  }

  asio::io_context loop_;
  EventLog events_;
  Condition reported_;
  std::string directory_;
  std::unique_ptr<FakePlugin> plugin_;
  FingerprintOptions options_;
  bool holds_volumes_ = false;
  std::unique_ptr<Fingerprinter> fingerprinter_;
  std::vector<ProbeResult> probes_;
  std::vector<absl::StatusOr<PluginFacts>> facts_;
  std::vector<std::string> classes_;
};

TEST_F(FingerprinterTest, ReadsWhatAPluginIsAtItsFirstProbe) {
  SetServices({PluginService::CONTROLLER_SERVICE});
  SetControllerCapabilities({ControllerCapability::PUBLISH_UNPUBLISH_VOLUME});
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  ASSERT_EQ(probes_.size(), 1U);
  EXPECT_TRUE(probes_[0].ok);
  EXPECT_TRUE(probes_[0].answered);
  EXPECT_EQ(probes_[0].error, "");
  EXPECT_GT(probes_[0].latency, Duration::zero());
  ASSERT_TRUE(facts_[0].ok()) << facts_[0].status();
  EXPECT_EQ(facts_[0]->name, "csi.example.com");
  EXPECT_EQ(facts_[0]->node_id, "node-1");
  EXPECT_TRUE(facts_[0]->Stages());
  EXPECT_TRUE(facts_[0]->NeedsAttach());
  EXPECT_EQ(classes_[0], ComputedClass(*facts_[0]));
  EXPECT_THAT(Events("plugin.fingerprinted"),
              ElementsAre("driver csi.example.com version 1.0, node id node-1, services: CONTROLLER_SERVICE, "
                          "controller: PUBLISH_UNPUBLISH_VOLUME, node: STAGE_UNSTAGE_VOLUME"));
}

TEST_F(FingerprinterTest, ReadsTheFactsOnceWhileNothingHappens) {
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilProbes(4));
  EXPECT_EQ(plugin_->Calls("GetPluginInfo"), 1);
  EXPECT_EQ(facts_.size(), 1U);
}

TEST_F(FingerprinterTest, FactsAreReadAgainOnRequestWithoutWaitingForTheNextProbe) {
  options_.interval = seconds(60);
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  csi::NodeGetInfoResponse response;
  response.set_node_id("node-1");
  response.set_max_volumes_per_node(3);
  plugin_->Answer("NodeGetInfo", response);
  const int read = plugin_->Calls("NodeGetInfo");
  for (int i = 0; i < 10; ++i) fingerprinter_->ReadAgain();
  ASSERT_TRUE(UntilFacts(2));
  EXPECT_EQ(facts_.back()->max_volumes_per_node, 3);
  EXPECT_EQ(plugin_->Calls("NodeGetInfo"), read + 1) << "once for all";
}

// gRPC's shortest backoff, csi/client.cc's 100 ms with gRPC's jitter. By the time that the plugin serves, ten
// failures have made it longer.
constexpr auto kShortestBackoff = milliseconds(80);

// No fixed sleep and no backoff lies between a plugin's being able to answer and its OK. A busy machine may
// spoil a try; a backoff would spoil all of them.
TEST_F(FingerprinterTest, NoBackoffLiesBetweenAPluginsServingAndItsFirstOk) {
  Duration best = hours(1);
  for (int attempt = 0; attempt < 20 && best >= kShortestBackoff; ++attempt) {
    Begin();
    ASSERT_TRUE(UntilProbes(10)) << "it is looked for before it serves";
    ASSERT_FALSE(probes_.back().ok);
    plugin_->Start();
    const TimePoint serving = Clock::now();
    ASSERT_TRUE(Until([this] { return probes_.back().ok; }));
    best = std::min(best, Clock::now() - serving);
    plugin_->Stop();
  }
  EXPECT_LT(best, kShortestBackoff);
}

TEST_F(FingerprinterTest, APluginThatIsNotReadyHasAnsweredAndIsNotRead) {
  SetReady(false);
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilProbes(3));
  for (const ProbeResult& probe : probes_) {
    EXPECT_FALSE(probe.ok);
    EXPECT_TRUE(probe.answered);
    EXPECT_EQ(probe.error, "not ready");
  }
  EXPECT_EQ(plugin_->Calls("GetPluginInfo"), 0);

  SetReady(true);
  ASSERT_TRUE(UntilFacts(1));
  EXPECT_TRUE(probes_.back().ok);
  EXPECT_TRUE(facts_[0].ok());
}

TEST_F(FingerprinterTest, AProbeThatHangsEndsAtItsTimeout) {
  plugin_->Hang("Probe");
  plugin_->Start();
  options_.timeout = milliseconds(100);
  Begin();
  ASSERT_TRUE(UntilProbes(1));
  EXPECT_FALSE(probes_[0].ok);
  EXPECT_FALSE(probes_[0].answered);
  EXPECT_THAT(probes_[0].error, testing::StartsWith("DEADLINE_EXCEEDED: "));
  EXPECT_GE(probes_[0].latency, milliseconds(90));  // gRPC rounds deadlines.
}

TEST_F(FingerprinterTest, AnUnhealthyPluginSaysWhy) {
  plugin_->Fail("Probe", grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "no /dev/fuse"));
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilProbes(1));
  EXPECT_FALSE(probes_[0].answered);
  EXPECT_EQ(probes_[0].error, "FAILED_PRECONDITION: no /dev/fuse");
}

TEST_F(FingerprinterTest, FactsThatCannotBeReadMakeTheProbeFailAndAreAskedForAgain) {
  plugin_->Fail("NodeGetInfo", grpc::Status(grpc::StatusCode::UNAVAILABLE, "metadata service is away"));
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilProbes(3));
  EXPECT_THAT(facts_, IsEmpty());
  for (const ProbeResult& probe : probes_) {
    EXPECT_FALSE(probe.ok);
    EXPECT_EQ(probe.error, "NodeGetInfo: UNAVAILABLE: metadata service is away");
  }
  SetNodeId("node-1");
  ASSERT_TRUE(UntilFacts(1));
  EXPECT_TRUE(facts_[0].ok());
  EXPECT_TRUE(probes_.back().ok);
}

TEST_F(FingerprinterTest, AHangingRpcOfTheFactsEndsAtItsTimeout) {
  plugin_->Hang("NodeGetCapabilities");
  plugin_->Start();
  options_.timeout = milliseconds(200);
  Begin();
  ASSERT_TRUE(UntilProbes(1));
  EXPECT_FALSE(probes_[0].ok);
  EXPECT_THAT(probes_[0].error, HasSubstr("NodeGetCapabilities: DEADLINE_EXCEEDED"));
}

TEST_F(FingerprinterTest, AControllerAloneIsAskedNothingOfNode) {
  options_.expect_node = false;
  SetServices({PluginService::CONTROLLER_SERVICE});
  SetControllerCapabilities({ControllerCapability::CREATE_DELETE_VOLUME});
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  ASSERT_TRUE(facts_[0].ok()) << facts_[0].status();
  EXPECT_FALSE(facts_[0]->has_node_service);
  EXPECT_EQ(plugin_->Calls("NodeGetCapabilities"), 0);
  EXPECT_EQ(plugin_->Calls("NodeGetInfo"), 0);
}

TEST_F(FingerprinterTest, AMonolithWithoutAControllerIsAskedNothingOfController) {
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  EXPECT_TRUE(facts_[0].ok());
  EXPECT_EQ(plugin_->Calls("ControllerGetCapabilities"), 0);
}

TEST_F(FingerprinterTest, AGroupControllerIsAskedWhatItCan) {
  csi::GroupControllerGetCapabilitiesResponse groups;
  using GroupRpc = csi::GroupControllerServiceCapability::RPC;
  groups.add_capabilities()->mutable_rpc()->set_type(GroupRpc::CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT);
  plugin_->Answer("GroupControllerGetCapabilities", groups);
  SetServices({PluginService::CONTROLLER_SERVICE, PluginService::GROUP_CONTROLLER_SERVICE});
  SetControllerCapabilities({});
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  ASSERT_TRUE(facts_[0].ok()) << facts_[0].status();
  EXPECT_TRUE(facts_[0]->GroupControllerCan(GroupRpc::CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT));
}

TEST_F(FingerprinterTest, APluginThatPromisesGroupsAndHasNoneIsTakenForTheRest) {
  SetServices({PluginService::CONTROLLER_SERVICE, PluginService::GROUP_CONTROLLER_SERVICE});
  SetControllerCapabilities({ControllerCapability::CREATE_DELETE_VOLUME});
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  ASSERT_TRUE(facts_[0].ok()) << facts_[0].status();
  EXPECT_EQ(plugin_->Calls("GroupControllerGetCapabilities"), 1);
  EXPECT_TRUE(facts_[0]->group_capabilities.empty());
  EXPECT_TRUE(facts_[0]->ControllerCan(ControllerCapability::CREATE_DELETE_VOLUME));
}

TEST_F(FingerprinterTest, ANodeWhoseControllerRunsElsewhereMayDeclineToSpeakForIt) {
  options_.expect_controller = false;
  SetServices({PluginService::CONTROLLER_SERVICE});
  plugin_->Fail("ControllerGetCapabilities", grpc::Status(grpc::StatusCode::INTERNAL, "node mode"));
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  ASSERT_TRUE(facts_[0].ok()) << facts_[0].status();
  EXPECT_TRUE(facts_[0]->HasController());
  EXPECT_FALSE(facts_[0]->NeedsAttach());
}

TEST_F(FingerprinterTest, ANodeThatSpeaksForItsControllerTellsWhetherToAttach) {
  options_.expect_controller = false;
  SetServices({PluginService::CONTROLLER_SERVICE});
  SetControllerCapabilities({ControllerCapability::PUBLISH_UNPUBLISH_VOLUME});
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  ASSERT_TRUE(facts_[0].ok()) << facts_[0].status();
  EXPECT_TRUE(facts_[0]->NeedsAttach());
}

TEST_F(FingerprinterTest, AChangeIsFoundAtTheInterval) {
  options_.fingerprint_interval = milliseconds(30);
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(2));
  EXPECT_THAT(Events("plugin.changed"), IsEmpty());

  SetNodeCapabilities({NodeCapability::STAGE_UNSTAGE_VOLUME, NodeCapability::EXPAND_VOLUME});
  ASSERT_TRUE(Until([this] { return facts_.back()->NodeCan(NodeCapability::EXPAND_VOLUME); }));
  EXPECT_THAT(Events("plugin.changed"), ElementsAre("node capability EXPAND_VOLUME gained"));
  EXPECT_NE(classes_.front(), classes_.back());
  EXPECT_THAT(Events("plugin.fingerprinted"), testing::SizeIs(1));
}

TEST_F(FingerprinterTest, FactsAreReadAgainAfterARecovery) {
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  plugin_->Fail("Probe", grpc::Status(grpc::StatusCode::INTERNAL, "ill"));
  ASSERT_TRUE(UntilLater(false));
  SetNodeCapabilities({});
  SetReady(true);
  ASSERT_TRUE(UntilFacts(2));
  EXPECT_THAT(facts_[1]->node_capabilities, IsEmpty());
  EXPECT_THAT(Events("plugin.changed"), ElementsAre("node capability STAGE_UNSTAGE_VOLUME lost"));
}

TEST_F(FingerprinterTest, APluginThatServesAnewAtTheSameSocketIsFoundAndReadAgain) {
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  plugin_->Stop();
  ASSERT_TRUE(UntilLater(false));
  EXPECT_THAT(probes_.back().error, testing::StartsWith("UNAVAILABLE: "));
  SetNodeId("node-2");
  plugin_->Start();
  ASSERT_TRUE(UntilFacts(2));
  EXPECT_EQ(facts_[1]->node_id, "node-2");
}

TEST_F(FingerprinterTest, AnotherDriverInTheNextInstanceIsRefused) {
  options_.known = PluginFacts{.name = "other.example.com", .node_id = "node-1"};
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  EXPECT_EQ(facts_[0].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(probes_.back().ok) << "it is well, and not welcome";
  ASSERT_TRUE(UntilFacts(3));
  EXPECT_THAT(Events("plugin.refused"), ElementsAre(HasSubstr("the driver's name changed")));
  EXPECT_THAT(Events("plugin.changed"), IsEmpty());
}

TEST_F(FingerprinterTest, AnotherNodeIdIsRefusedUntilTheVolumesAreGone) {
  options_.known = PluginFacts{.name = "csi.example.com",
                               .vendor_version = "1.0",
                               .node_capabilities = {NodeCapability::STAGE_UNSTAGE_VOLUME},
                               .has_node_service = true,
                               .node_id = "node-0"};
  holds_volumes_ = true;
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(2));
  EXPECT_FALSE(facts_.back().ok());
  EXPECT_THAT(Events("plugin.refused"),
              ElementsAre(HasSubstr("from \"node-0\" to \"node-1\" while volumes")));

  holds_volumes_ = false;
  ASSERT_TRUE(Until([this] { return facts_.back().ok(); }));
  EXPECT_EQ(facts_.back()->node_id, "node-1");
  EXPECT_THAT(Events("plugin.changed"), ElementsAre("node id changed from \"node-0\" to \"node-1\""));
}

TEST_F(FingerprinterTest, FaultyAnswersRefuseThePluginInPlainWords) {
  plugin_->Answer("NodeGetInfo", csi::NodeGetInfoResponse());
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  EXPECT_THAT(std::string(facts_[0].status().message()), HasSubstr("the plugin gives no node_id"));
}

TEST_F(FingerprinterTest, AnswersThatAreNoMessagesAreErrorsOfTheProbe) {
  plugin_->AnswerBytes("GetPluginInfo", "\xff\xff\xff");
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilProbes(2));
  EXPECT_THAT(probes_.back().error, HasSubstr("GetPluginInfo: INTERNAL"));
  EXPECT_THAT(facts_, IsEmpty());
}

TEST_F(FingerprinterTest, AnRpcThatIsRefusedForGoodRefusesThePlugin) {
  plugin_->Fail("GetPluginInfo", grpc::Status(grpc::StatusCode::UNIMPLEMENTED, ""));
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  EXPECT_THAT(std::string(facts_[0].status().message()), HasSubstr("GetPluginInfo: UNIMPLEMENTED"));
}

TEST_F(FingerprinterTest, AWarningIsAnEventOnce) {
  options_.fingerprint_interval = milliseconds(20);
  csi::GetPluginInfoResponse info;
  info.set_name("csi.example.com");
  plugin_->Answer("GetPluginInfo", info);
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(3));
  EXPECT_TRUE(facts_.back().ok());
  EXPECT_THAT(Events("plugin.warning"), ElementsAre("GetPluginInfo: vendor_version is empty"));
}

TEST_F(FingerprinterTest, BoundsTheEventsOfAPluginThatChangesEverything) {
  options_.fingerprint_interval = milliseconds(20);
  plugin_->Start();
  Begin();
  ASSERT_TRUE(UntilFacts(1));
  csi::GetPluginInfoResponse info;
  info.set_name("csi.example.com");
  info.set_vendor_version("1.0");
  for (int i = 0; i < 300; ++i) (*info.mutable_manifest())[fmt::format("k{}", i)] = "v";
  plugin_->Answer("GetPluginInfo", info);
  ASSERT_TRUE(Until([this] { return facts_.back()->manifest.size() == 300; }));
  EXPECT_THAT(Events("plugin.changed"), testing::SizeIs(21));
  EXPECT_THAT(Events("plugin.changed"), Contains("and 280 more differences"));
}

TEST_F(FingerprinterTest, StopCancelsTheCallAndSilencesTheSink) {
  plugin_->Hang("Probe");
  plugin_->Start();
  Begin();
  loop_.poll();
  ASSERT_TRUE(plugin_->WaitForCalls("Probe", 1));
  const TimePoint start = Clock::now();
  RunOn(loop_, fingerprinter_->Stop());
  EXPECT_LT(Clock::now() - start, seconds(5)) << "the timeout is 10 s";
  EXPECT_THAT(probes_, IsEmpty());
  EXPECT_TRUE(plugin_->WaitForCancelled("Probe", 1));
}

Awaitable<void> StopAndRecord(Fingerprinter& fingerprinter, bool& stopped) {
  co_await fingerprinter.Stop();
  stopped = true;
}

TEST_F(FingerprinterTest, ASinkMayBeginToStopIt) {
  plugin_->Start();
  TaskScope ending(loop_.get_executor(), "test");
  bool stopped = false;
  int probes = 0;
  std::unique_ptr<Fingerprinter> fingerprinter;
  FingerprintSink sink{
      .on_probe =
          [&](const ProbeResult&) {
            ++probes;
            ending.Spawn("stop", StopAndRecord(*fingerprinter, stopped));
          },
      .on_facts = [&](const absl::StatusOr<PluginFacts>&, const std::string&) {},
      .holds_volumes = [] { return false; },
  };
  fingerprinter = std::make_unique<Fingerprinter>(
      loop_.get_executor(), options_, CsiClient::Connect(plugin_->socket_path()), std::move(sink), events_);
  const TimePoint deadline = Clock::now() + seconds(20);
  while (!stopped && Clock::now() < deadline) loop_.run_one_until(deadline);
  EXPECT_TRUE(stopped);
  EXPECT_EQ(probes, 1);
}

TEST_F(FingerprinterTest, StorageIsAskedForItsHealthWhereThePluginCanSayIt) {
  SetNodeCapabilities({NodeCapability::STAGE_UNSTAGE_VOLUME, NodeCapability::GET_STORAGE_HEALTH});
  csi::NodeGetStorageHealthResponse health;
  health.add_backend_health()->set_status(csi::STORAGE_DEGRADED);
  health.mutable_backend_health(0)->set_reason("OnePath");
  plugin_->Answer("NodeGetStorageHealth", health);
  plugin_->Start();
  Begin();
  ASSERT_TRUE(Until([this] { return !probes_.empty() && !probes_.back().storage.empty(); }));
  EXPECT_EQ(probes_.back().storage[0].type, "STORAGE_DEGRADED");
  EXPECT_EQ(probes_.back().storage[0].reason, "OnePath");
  const size_t probed = probes_.size();
  ASSERT_TRUE(Until([this, probed] { return probes_.size() > probed + 2; }));
  EXPECT_EQ(plugin_->Calls("NodeGetStorageHealth"), 1) << "once a minute";
  EXPECT_FALSE(probes_.back().storage.empty()) << "what it said last counts";
  EXPECT_THAT(Events("plugin.storage_abnormal"), Contains(HasSubstr("STORAGE_DEGRADED (OnePath)")));
}

}  // namespace
}  // namespace berth
