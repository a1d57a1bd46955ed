#include "rpc/uplink/uplink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rpc/testing/node_api_fixture.h"
#include "rpc/uplink/link.pb.h"
#include "rpc/uplink/testing/fake_link.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::SizeIs;
using Message = v1::NodeMessage;

// Plugins whose changes are told as the registry tells them: to whoever waits by then, and to nobody else.
class ChangingPlugins final : public ControllerDirectory {
 public:
  explicit ChangingPlugins(asio::any_io_executor executor) : changed_(std::move(executor)) {}

  void Change() {
    ++version_;
    changed_.NotifyAll();
  }
  [[nodiscard]] std::shared_ptr<CsiClient> ClientOf(const std::string& /*plugin_id*/) override { return {}; }
  [[nodiscard]] Awaitable<void> WaitChange(TimePoint deadline) override {
    co_await changed_.WaitUntil([this, seen = version_] { return version_ != seen; }, deadline);
  }

 private:
  int version_ = 0;
  Condition changed_;
};

// A node, and the test for its scheduler.
class UplinkTest : public NodeApiTest {
 protected:
  ~UplinkTest() override { Stop(); }

  UplinkOptions Options() {
    UplinkOptions options{.addresses = {"one:1", "two:2"}, .node_id = "n1", .version = "0.1.0"};
    options.dial = {.initial_backoff = std::chrono::milliseconds(1),
                    .max_backoff = std::chrono::milliseconds(5)};
    options.times.state_every = std::chrono::milliseconds(1);
    options.node_state_every = std::chrono::milliseconds(1);
    return options;
  }

  void Start(UplinkOptions options) {
    // Nothing of the plugins changes but what the test changes.
    controllers_.on_wait = nullptr;
    UplinkParts parts{.dialer = dialer_,
                      .lease = lease_,
                      .rows = rows_,
                      .api = api_,
                      .plugins = control_,
                      .controllers = *directory_,
                      .mounter = mounter_,
                      .events = events_,
                      .controller = [this](v1::ControllerCall call, TimePoint deadline) {
                        return Controller(std::move(call), deadline);
                      }};
    uplink_ =
        std::make_unique<Uplink>(loop_.get_executor(), std::move(options), std::move(parts), rows_.rows);
    uplink_->Start();
  }
  void Start() { Start(Options()); }
  void Stop() {
    if (!uplink_) return;
    RunOn(loop_, uplink_->Shutdown());
    uplink_.reset();
  }

  Awaitable<ControllerCalls::Result> Controller(v1::ControllerCall call, TimePoint deadline) {
    controller_calls_.push_back(std::move(call));
    controller_deadline_ = deadline;
    co_return controller_result_;
  }

  // Runs the loop until `there` says so.
  template <class Predicate>
  void Until(Predicate there, const std::string& what) {
    const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
    loop_.restart();
    while (!there() && Clock::now() < deadline) loop_.run_one_until(deadline);
    ASSERT_TRUE(there()) << "waited for " << what;
  }

  FakeWire& wire() { return *dialer_.wires.back(); }

  // The `n`-th wire is there (from 1), and the node has said Hello on it.
  void AwaitHello(size_t n = 1) {
    Until([&] { return dialer_.wires.size() >= n && !dialer_.wires[n - 1]->sent.empty(); }, "Hello");
    ASSERT_EQ(wire().sent.front().message_case(), Message::kHello);
  }
  static v1::Welcome MakeWelcome() {
    v1::Welcome welcome;
    welcome.mutable_protocol()->set_major(1);
    welcome.set_cluster_id("c");
    welcome.mutable_heartbeat_interval()->set_seconds(1);
    return welcome;
  }
  void Say(const v1::Welcome& welcome) {
    v1::SchedulerMessage message;
    *message.mutable_welcome() = welcome;
    wire().Say(std::move(message));
  }
  void Say(const v1::Operation& operation) {
    v1::SchedulerMessage message;
    *message.mutable_operation() = operation;
    wire().Say(std::move(message));
  }
  void SayAcknowledged(const std::vector<uint64_t>& ids, uint64_t settled_below = 0) {
    v1::SchedulerMessage message;
    for (const uint64_t id : ids) message.mutable_acknowledge()->add_operation_ids(id);
    message.mutable_acknowledge()->set_settled_below(settled_below);
    wire().Say(std::move(message));
  }
  // Greets the node and waits until it has told everything.
  void Greet(size_t n = 1, const v1::Welcome& welcome = MakeWelcome()) {
    AwaitHello(n);
    Say(welcome);
    Until([this] { return Last(Message::kState) != nullptr && Last(Message::kState)->state().synced(); },
          "state");
  }

  // The last message of a kind on the present wire; null: there was none.
  const Message* Last(Message::MessageCase kind) {
    const auto& sent = wire().sent;
    const auto found =
        std::find_if(sent.rbegin(), sent.rend(), [&](const Message& m) { return m.message_case() == kind; });
    return found == sent.rend() ? nullptr : &*found;
  }
  size_t Count(Message::MessageCase kind) {
    return std::ranges::count_if(wire().sent, [&](const Message& m) { return m.message_case() == kind; });
  }
  const v1::OperationResult* ResultOf(uint64_t id) {
    const v1::OperationResult* result = nullptr;
    for (const Message& message : wire().sent) {
      if (message.has_result() && message.result().id() == id) result = &message.result();
    }
    return result;
  }
  v1::OperationResult AwaitResult(uint64_t id) {
    Until([&] { return ResultOf(id) != nullptr; }, "a result");
    return *ResultOf(id);
  }
  // Every object of all State messages of the present wire, in order.
  std::vector<v1::Object> Objects() {
    std::vector<v1::Object> objects;
    for (const Message& message : wire().sent) {
      objects.insert(objects.end(), message.state().objects().begin(), message.state().objects().end());
    }
    return objects;
  }
  size_t ObjectsOf(v1::Object::ObjectCase kind) {
    return std::ranges::count_if(Objects(), [&](const v1::Object& o) { return o.object_case() == kind; });
  }

  static v1::Operation Publish(uint64_t id, const std::string& volume = "v") {
    v1::Operation operation;
    operation.set_id(id);
    operation.set_lease_epoch(1);
    operation.mutable_publish()->set_namespace_("jobs");
    v1::PublishVolumeRequest& request = *operation.mutable_publish()->mutable_request();
    request.set_plugin_id("p");
    request.set_volume_id(volume);
    request.set_consumer("web");
    (*request.mutable_secrets())["password"] = "hunter22";
    return operation;
  }

  static v1::Operation Attach(uint64_t id) {
    v1::Operation operation;
    operation.set_id(id);
    operation.set_lease_epoch(1);
    operation.mutable_controller()->set_plugin_id("p");
    auto& attach = *operation.mutable_controller()->mutable_attach();
    attach.set_volume_id("v");
    attach.set_node_id("storage-1");
    attach.mutable_volume_capability()->mutable_mount();
    attach.mutable_volume_capability()->mutable_access_mode()->set_mode(
        ::csi::v1::VolumeCapability::AccessMode::SINGLE_NODE_WRITER);
    return operation;
  }

  std::vector<std::string> EventTypes() {
    std::vector<std::string> types;
    for (const Event& event : events_.After(0, 100).events) types.push_back(event.type);
    return types;
  }

  FakeLinkDialer dialer_{loop_.get_executor()};
  ControllerDirectory* directory_ = &controllers_;
  FakeLinkLease lease_;
  FakeLinkRows rows_;
  std::vector<v1::ControllerCall> controller_calls_;
  TimePoint controller_deadline_;  // of the last one
  ControllerCalls::Result controller_result_{
      .status = absl::OkStatus(), .outcome = v1::OUTCOME_DONE, .answer = {}};
  std::unique_ptr<Uplink> uplink_;
};

TEST_F(UplinkTest, ANodeSaysWhoItIsAndHowEverythingOnItStands) {
  control_.Add("p");
  mounter_.Add("p", "v", "jobs/web");
  Start();
  AwaitHello();
  const v1::Hello hello = wire().sent.front().hello();
  EXPECT_EQ(hello.node_id(), "n1");
  EXPECT_EQ(hello.protocol().major(), 1U);
  EXPECT_THAT(hello.instance_id(), SizeIs(32));
  EXPECT_EQ(hello.lease_epoch(), 1U);
  Greet();
  EXPECT_TRUE(wire().sent[1].state().full() || wire().sent[2].state().full());
  EXPECT_EQ(ObjectsOf(v1::Object::kNode), 1U);
  EXPECT_EQ(ObjectsOf(v1::Object::kPlugin), 1U);
  EXPECT_EQ(ObjectsOf(v1::Object::kVolume), 1U);
  EXPECT_EQ(uplink_->Status()->state(), v1::LinkStatus::SYNCED);
  EXPECT_EQ(uplink_->Status()->peer(), "scheduler.test");
  EXPECT_THAT(EventTypes(), Contains("scheduler.connected"));
}

TEST_F(UplinkTest, ANodesRuntimesAreToldAndUsedByTheirNames) {
  control_.Add("p");
  api_.SetRuntimes({{.name = "podman"}, {.name = "vm", .mount = false, .fs_types = {"ext4"}}});
  Start();
  Greet();
  const auto objects = Objects();
  const auto node = std::ranges::find_if(objects, [](const v1::Object& o) { return o.has_node(); });
  ASSERT_EQ(node->node().runtimes_size(), 2);
  EXPECT_EQ(node->node().runtimes(0).name(), "podman");
  EXPECT_TRUE(node->node().runtimes(0).mount());
  EXPECT_EQ(node->node().runtimes(1).name(), "vm");
  EXPECT_FALSE(node->node().runtimes(1).mount());
  EXPECT_EQ(node->node().runtimes(1).fs_types(0), "ext4");

  v1::Operation known = Publish(1);
  known.mutable_publish()->set_runtime("vm");
  Say(known);
  EXPECT_EQ(AwaitResult(1).outcome(), v1::OUTCOME_DONE);
  const RuntimeAbility vm{.name = "vm", .mount = false, .fs_types = {"ext4"}};
  EXPECT_EQ(mounter_.last_runtime, vm);

  v1::Operation unknown = Publish(2, "w");
  unknown.mutable_publish()->set_runtime("docker");
  Say(unknown);
  EXPECT_EQ(AwaitResult(2).outcome(), v1::OUTCOME_REFUSED);
  EXPECT_EQ(ResultOf(2)->message(), "publish.runtime: no runtime of this node is called docker");
  EXPECT_THAT(mounter_.volumes, SizeIs(1));
}

TEST_F(UplinkTest, WhatChangesIsToldOnceItLooksDifferent) {
  mounter_.Add("p", "v", "jobs/web");
  Start();
  Greet();
  const size_t before = Count(Message::kState);
  uplink_->OnVolumeChanged("p", "v", true);  // as it was
  mounter_.Add("p", "w", "jobs/db");
  uplink_->OnVolumeChanged("p", "w", true);
  Until([this] { return ObjectsOf(v1::Object::kVolume) == 2; }, "the new volume");
  mounter_.volumes.erase(mounter_.volumes.begin());
  uplink_->OnVolumeChanged("p", "v", false);
  Until([this] { return ObjectsOf(v1::Object::kRemoved) == 1; }, "the removal");
  EXPECT_GT(Count(Message::kState), before);
  const auto objects = Objects();
  const auto removed = std::ranges::find_if(objects, [](const v1::Object& o) { return o.has_removed(); });
  EXPECT_EQ(removed->removed().volume().volume_id(), "v");
  EXPECT_EQ(ObjectsOf(v1::Object::kVolume), 2U);
}

TEST_F(UplinkTest, APluginThatIsReadyBeforeItWasLookedAtTwiceIsToldAtOnce) {
  ChangingPlugins plugins(loop_.get_executor());
  directory_ = &plugins;
  control_.Add("p").state = PluginState::kStarting;
  Start();
  Greet();
  control_.Add("p");
  plugins.Change();
  Until([this] { return ObjectsOf(v1::Object::kPlugin) == 2; }, "the plugin to be told as ready");
  EXPECT_EQ(Objects().back().plugin().state(), v1::READY);
  Stop();
}

TEST_F(UplinkTest, AfterABreakOnlyWhatChangedIsToldAgain) {
  mounter_.Add("p", "v", "jobs/web");
  mounter_.Add("p", "w", "jobs/db");
  Start();
  Greet();
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_have()->set_run_id(wire().sent.front().hello().run_id());
  welcome.mutable_have()->set_revision(Last(Message::kState)->state().revision());
  wire().Break(absl::UnavailableError("cut"));
  AwaitHello(2);
  for (int i = 0; i < 100; ++i) uplink_->OnVolumeChanged("p", "w", true);
  Greet(2, welcome);
  EXPECT_FALSE(Last(Message::kState)->state().full());
  EXPECT_EQ(ObjectsOf(v1::Object::kVolume), 1U);
  EXPECT_THAT(EventTypes(), Contains("scheduler.lost"));
}

TEST_F(UplinkTest, APublishIsDoneForTheSchedulerAndItsResultIsWrittenDownBeforeItIsTold) {
  control_.Add("p");
  Start();
  Greet();
  rows_.fails = absl::UnavailableError("the disk");
  Say(Publish(7));
  Until([this] { return rows_.failed > 0; }, "an attempt to write it down");
  EXPECT_EQ(ResultOf(7), nullptr);
  EXPECT_EQ(uplink_->Status()->operations_running(), 1);
  rows_.fails = absl::OkStatus();
  const v1::OperationResult result = AwaitResult(7);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
  EXPECT_EQ(result.publish().target_path(), "/volumes/v");
  EXPECT_EQ(mounter_.volumes.back().publications[0].consumer, "jobs/web");
  ASSERT_THAT(rows_.rows, Contains(Key("result/7")));
  for (const auto& [key, row] : rows_.rows) EXPECT_THAT(row, Not(HasSubstr("hunter22"))) << key;
}

TEST_F(UplinkTest, ARepeatedOperationHasItsFirstResultAlsoAfterARestart) {
  control_.Add("p");
  Start();
  Greet();
  Say(Publish(7));
  AwaitResult(7);
  Say(Publish(7));
  Until([this] { return Count(Message::kResult) == 2; }, "the result again");
  EXPECT_THAT(mounter_.volumes, SizeIs(1));
  Stop();
  Start();
  Greet(2);
  EXPECT_EQ(AwaitResult(7).publish().target_path(), "/volumes/v");
  Say(Publish(7));
  Until([this] { return Count(Message::kResult) == 2; }, "the result once more");
  EXPECT_THAT(mounter_.volumes, SizeIs(1));
}

TEST_F(UplinkTest, AnAcknowledgedOperationIsNotRunAgainNotEvenAfterARestart) {
  control_.Add("p");
  Start();
  Greet();
  Say(Publish(7));
  AwaitResult(7);
  SayAcknowledged({7});
  Until([this] { return !rows_.rows.contains("result/7"); }, "the row to go");
  Stop();
  Start();
  Greet(2);
  Say(Publish(7));
  const v1::OperationResult result = AwaitResult(7);
  EXPECT_EQ(result.refusal(), v1::SETTLED);
  EXPECT_THAT(mounter_.volumes, SizeIs(1));
  SayAcknowledged({}, 8);
  Until([this] { return rows_.rows.contains("settled"); }, "the row");
  EXPECT_THAT(rows_.rows, Not(Contains(Key("acknowledged/7"))));
}

TEST_F(UplinkTest, AnOperationThatIsSettledWhileItRunsLeavesNoResultOnTheDisk) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  Say(Publish(7));
  Until([this] { return mounter_.publishing == 1; }, "the publish");
  SayAcknowledged({}, 8);
  Until([this] { return rows_.rows.contains("settled"); }, "the row");
  mounter_.Release();
  Until([this] { return uplink_->Status()->operations_running() == 0; }, "its end");
  EXPECT_THAT(rows_.rows, Not(Contains(Key("result/7"))));
  EXPECT_EQ(ResultOf(7), nullptr);
}

TEST_F(UplinkTest, AnOperationOfAnOlderEpochIsRefusedAndMayComeAgain) {
  control_.Add("p");
  lease_.current_epoch = 2;
  Start();
  Greet();
  Say(Publish(7));
  const v1::OperationResult refused = AwaitResult(7);
  EXPECT_EQ(refused.refusal(), v1::LEASE_EPOCH);
  EXPECT_THAT(refused.message(), HasSubstr("epoch 1, and the node's is 2"));
  EXPECT_THAT(mounter_.volumes, IsEmpty());
  v1::Operation again = Publish(7);
  again.set_lease_epoch(2);
  Say(again);
  Until([this] { return ResultOf(7)->outcome() == v1::OUTCOME_DONE; }, "the result");
}

TEST_F(UplinkTest, WithoutAValidLeaseNothingIsPublishedAndWhatIsHereMayLeave) {
  control_.Add("p");
  mounter_.Add("p", "v", "jobs/web");
  lease_.now = v1::LEASE_EXPIRED;
  Start();
  Greet();
  Say(Publish(1, "w"));
  EXPECT_EQ(AwaitResult(1).refusal(), v1::LEASE_NOT_VALID);
  v1::Operation unpublish;
  unpublish.set_id(2);
  unpublish.set_lease_epoch(1);
  unpublish.mutable_unpublish()->set_namespace_("jobs");
  unpublish.mutable_unpublish()->mutable_request()->set_plugin_id("p");
  unpublish.mutable_unpublish()->mutable_request()->set_volume_id("v");
  unpublish.mutable_unpublish()->mutable_request()->set_consumer("web");
  Say(unpublish);
  EXPECT_TRUE(AwaitResult(2).unpublish().was_published());
}

// "Nothing was begun" would be a lie.
TEST_F(UplinkTest, ARepeatIsAnsweredUnderWhateverEpochItWasFirstAskedFor) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  Say(Publish(7));
  Until([this] { return mounter_.publishing == 1; }, "the publish");
  lease_.current_epoch = 2;
  Say(Publish(7));
  v1::Operation other = Publish(8, "w");
  Say(other);
  EXPECT_EQ(AwaitResult(8).refusal(), v1::LEASE_EPOCH);
  EXPECT_EQ(ResultOf(7), nullptr);
  mounter_.Release();
  EXPECT_EQ(AwaitResult(7).outcome(), v1::OUTCOME_DONE);
}

TEST_F(UplinkTest, AResultThatWasSettledWhenBerthdWasKilledDoesNotComeBack) {
  control_.Add("p");
  Start();
  Greet();
  Say(Publish(7));
  AwaitResult(7);
  Stop();
  rows_.rows["settled"] = "8";
  rows_.rows["acknowledged/6"] = "1";
  Start();
  Greet(2);
  EXPECT_EQ(ResultOf(7), nullptr);
  EXPECT_THAT(rows_.rows, Not(Contains(Key("result/7"))));
  EXPECT_THAT(rows_.rows, Not(Contains(Key("acknowledged/6"))));
  Say(Publish(7));
  EXPECT_EQ(AwaitResult(7).refusal(), v1::SETTLED);
}

// It would end this stream and every one after it.
TEST_F(UplinkTest, AResultThatFitsIntoNoMessageIsToldWithoutItsAnswer) {
  Start();
  Greet();
  (*controller_result_.answer.mutable_attach()->mutable_publish_context())["k"] = std::string(5 << 20, 'x');
  Say(Attach(3));
  const v1::OperationResult result = AwaitResult(3);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_UNCERTAIN);
  EXPECT_THAT(result.message(), HasSubstr("done, but the answer has 5242"));
}

TEST_F(UplinkTest, WithoutAValidLeaseARepeatedOperationStillHasItsResult) {
  control_.Add("p");
  Start();
  Greet();
  Say(Publish(7));
  AwaitResult(7);
  lease_.now = v1::LEASE_EXPIRED;
  Say(Publish(7));
  Until([this] { return Count(Message::kResult) == 2; }, "the result again");
  EXPECT_EQ(ResultOf(7)->outcome(), v1::OUTCOME_DONE);
}

TEST_F(UplinkTest, AVolumeThatIsBeingGivenUpIsNotPublishedAnew) {
  control_.Add("p");
  lease_.gives_up = true;
  Start();
  Greet();
  Say(Publish(1));
  EXPECT_EQ(AwaitResult(1).outcome(), v1::OUTCOME_RETRY);
  EXPECT_THAT(mounter_.volumes, IsEmpty());
}

// Ten thousand changes while nobody listens: of fifty volumes that stay, and of thousands that come and go.
TEST_F(UplinkTest, ANodeThatWasAwayForAWeekComesBackWithOneStateOfEachObject) {
  control_.Add("p");
  for (int i = 0; i < 50; ++i) mounter_.Add("p", "v" + std::to_string(i), "jobs/web");
  Start();
  Greet();
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_have()->set_run_id(wire().sent.front().hello().run_id());
  welcome.mutable_have()->set_revision(Last(Message::kState)->state().revision());
  dialer_.next.assign(3, absl::UnavailableError("nobody there"));
  wire().Break(absl::UnavailableError("cut"));
  Until([this] { return dialer_.next.size() < 3; }, "the link to be gone");
  for (int i = 0; i < 10'000; ++i) {
    uplink_->OnVolumeChanged("p", "v" + std::to_string(i % 50), true);
    uplink_->OnVolumeChanged("p", "short-lived" + std::to_string(i), true);
    uplink_->OnVolumeChanged("p", "short-lived" + std::to_string(i), false);
    uplink_->OnConsumerEnded("jobs/" + std::to_string(i), "its process has ended", Origin::kScheduler);
  }
  Greet(2, welcome);
  EXPECT_TRUE(wire().sent[1].state().full() || wire().sent[2].state().full());
  EXPECT_EQ(ObjectsOf(v1::Object::kVolume), 50U);
  EXPECT_EQ(ObjectsOf(v1::Object::kRemoved), 0U);
  EXPECT_LE(ObjectsOf(v1::Object::kEndedConsumer), 4096U);
  EXPECT_LE(rows_.rows.size(), 4096U + 10);
  EXPECT_EQ(std::ranges::count(EventTypes(), "scheduler.untold"), 1);
}

// It would be taken for free otherwise.
TEST_F(UplinkTest, AVolumeWhoseFileSystemMayLiveOnIsToldAsSuchAlsoToWhoBeginsAnew) {
  mounter_.Add("p", "v", "jobs/web");
  Start();
  Greet();
  mounter_.volumes.clear();
  mounter_.living_on = {{.plugin_id = "p", .volume_id = "v"}};
  uplink_->OnVolumeChanged("p", "v", false);
  Until([this] { return ObjectsOf(v1::Object::kRemoved) == 1; }, "the removal");
  const auto told_of_it = [this] {
    const auto objects = Objects();
    const auto removed = std::ranges::find_if(objects, [](const v1::Object& o) { return o.has_removed(); });
    return removed != objects.end() && removed->removed().volume().volume_id() == "v" &&
           removed->removed().may_live_on();
  };
  EXPECT_TRUE(told_of_it());
  wire().Break(absl::UnavailableError("cut"));
  Greet(2);
  ASSERT_EQ(ObjectsOf(v1::Object::kRemoved), 1U);
  Stop();
  Start();
  Greet(3);
  ASSERT_EQ(ObjectsOf(v1::Object::kRemoved), 1U);
  EXPECT_TRUE(told_of_it());
}

TEST_F(UplinkTest, EveryMistakeOfARequestIsNamed) {
  control_.Add("p");
  Start();
  Greet();
  v1::Operation operation = Publish(1);
  operation.mutable_publish()->set_namespace_("a/b");
  operation.mutable_publish()->mutable_request()->clear_volume_id();
  operation.mutable_publish()->set_runtime("podman");
  operation.mutable_timeout()->set_seconds(-1);
  Say(operation);
  const v1::OperationResult result = AwaitResult(1);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_REFUSED);
  EXPECT_EQ(result.code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  for (const char* mistake :
       {"publish.namespace: must not hold a slash", "publish.request.volume_id: must not be empty",
        "publish.runtime: no runtime", "timeout: "}) {
    EXPECT_THAT(result.message(), HasSubstr(mistake));
  }
}

TEST_F(UplinkTest, EveryMistakeOfAControllersCallIsNamedToo) {
  Start();
  Greet();
  v1::Operation operation = Attach(1);
  operation.mutable_timeout()->set_seconds(-1);
  operation.mutable_controller()->mutable_attach()->clear_volume_id();
  operation.mutable_controller()->mutable_attach()->clear_node_id();
  Say(operation);
  const v1::OperationResult result = AwaitResult(1);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_REFUSED);
  for (const char* mistake : {"timeout: ", "controller.attach.volume_id: ", "controller.attach.node_id: "}) {
    EXPECT_THAT(result.message(), HasSubstr(mistake));
  }
  EXPECT_THAT(controller_calls_, IsEmpty());
}

TEST_F(UplinkTest, AnOperationsTimeoutEndsTheWaitAndANewIdWaitsOn) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  v1::Operation hasty = Publish(1);
  hasty.mutable_timeout()->set_nanos(50'000'000);
  const TimePoint began = Clock::now();
  Say(hasty);
  const v1::OperationResult result = AwaitResult(1);
  EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(50));
  EXPECT_EQ(result.code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(result.outcome(), v1::OUTCOME_UNCERTAIN);
  EXPECT_EQ(result.answer_case(), v1::OperationResult::ANSWER_NOT_SET);
  EXPECT_EQ(mounter_.cancelled, 0) << "the wait has ended, and nothing was called off";
  // The same id would have the same result.
  Say(Publish(2));
  Until([this] { return mounter_.publishing == 1; }, "the publish again");
  EXPECT_EQ(ResultOf(2), nullptr);
  mounter_.Release();
  EXPECT_EQ(AwaitResult(2).outcome(), v1::OUTCOME_DONE);
  EXPECT_THAT(mounter_.volumes, SizeIs(1));
}

TEST_F(UplinkTest, AnOperationHasTenMinutesWhereItSaysNothing) {
  control_.Add("p");
  Start();
  Greet();
  const TimePoint before = Clock::now();
  Say(Publish(1));
  AwaitResult(1);
  EXPECT_GE(mounter_.last_deadline, before + std::chrono::minutes(10));
  EXPECT_LE(mounter_.last_deadline, Clock::now() + std::chrono::minutes(10));
}

TEST_F(UplinkTest, ATimeoutBeyondADayIsRefusedBeforeAnythingIsDone) {
  control_.Add("p");
  Start();
  Greet();
  v1::Operation operation = Publish(1);
  operation.mutable_timeout()->set_seconds(24 * 3600 + 1);
  Say(operation);
  const v1::OperationResult result = AwaitResult(1);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_REFUSED);
  EXPECT_EQ(result.message(), "timeout: must be above zero, and 24 h at most");
  EXPECT_THAT(mounter_.volumes, IsEmpty());
}

TEST_F(UplinkTest, AnOperationThatIsCancelledIsUncertain) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  Say(Publish(1));
  Until([this] { return mounter_.publishing == 1; }, "the publish");
  v1::SchedulerMessage cancel;
  cancel.mutable_cancel()->set_operation_id(1);
  wire().Say(cancel);
  const v1::OperationResult result = AwaitResult(1);
  EXPECT_EQ(result.code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_EQ(result.outcome(), v1::OUTCOME_UNCERTAIN);
}

TEST_F(UplinkTest, AnOperationGoesOnWhileTheLinkIsDown) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  Say(Publish(1));
  Until([this] { return mounter_.publishing == 1; }, "the publish");
  wire().Break(absl::UnavailableError("cut"));
  AwaitHello(2);
  mounter_.Release();
  Greet(2);
  EXPECT_EQ(AwaitResult(1).outcome(), v1::OUTCOME_DONE);
}

TEST_F(UplinkTest, ANodeThatEndsWhileAnOperationRunsEndsInOrder) {
  control_.Add("p");
  mounter_.hang = true;
  Start();
  Greet();
  Say(Publish(1));
  Until([this] { return mounter_.publishing == 1; }, "the publish");
  Stop();
  EXPECT_EQ(mounter_.publishing, 0);
  EXPECT_THAT(rows_.rows, Not(Contains(Key("result/1")))) << "nothing is known of it";
}

TEST_F(UplinkTest, ALinkThatBreaksWhileALogIsFollowedBeginsAnew) {
  control_.Add("p");
  int reading = 0;
  control_.read_log = [&reading](std::string, LogQuery query,
                                 TimePoint deadline) -> Awaitable<absl::StatusOr<LogBatch>> {
    return [](int* count, LogQuery asked, TimePoint until) -> Awaitable<absl::StatusOr<LogBatch>> {
      ++*count;
      const LogCursor next{.position = 0, .number = 0};
      if (!asked.after) co_return LogBatch{.next = next, .at_end = true};
      co_await SleepUntil(until);
      co_return LogBatch{.next = next, .at_end = true};
    }(&reading, std::move(query), deadline);
  };
  Start();
  Greet();
  v1::SchedulerMessage follow;
  follow.mutable_log_request()->set_number(1);
  follow.mutable_log_request()->mutable_plugin()->set_id("p");
  follow.mutable_log_request()->mutable_plugin()->set_follow(true);
  follow.mutable_log_request()->set_credit(10);
  wire().Say(follow);
  Until([&] { return reading == 2; }, "the reader to wait for lines");
  wire().Break(absl::UnavailableError("cut"));
  Greet(2);
  EXPECT_EQ(Count(Message::kLogLines), 0U) << "a stream's logs end with it";
}

TEST_F(UplinkTest, AControllersCallIsHandedOnWithItsSecrets) {
  Start();
  Greet();
  controller_result_.answer.mutable_attach();
  v1::Operation operation = Attach(3);
  (*operation.mutable_controller()->mutable_attach()->mutable_secrets())["password"] = "hunter22";
  Say(operation);
  EXPECT_TRUE(AwaitResult(3).controller().has_attach());
  ASSERT_THAT(controller_calls_, SizeIs(1));
  EXPECT_EQ(controller_calls_[0].attach().secrets().at("password"), "hunter22");
  for (const auto& [key, row] : rows_.rows) EXPECT_THAT(row, Not(HasSubstr("hunter22"))) << key;
}

TEST_F(UplinkTest, AControllersCallHasTheDeadlineOfItsOperation) {
  Start();
  Greet();
  v1::Operation operation;
  operation.set_lease_epoch(1);
  operation.mutable_controller()->set_plugin_id("p");
  operation.mutable_controller()->mutable_list();
  const std::vector<std::pair<int64_t, Duration>> timeouts = {{3, std::chrono::seconds(3)},
                                                              {24 * 3600, std::chrono::hours(24)}};
  for (const auto& [seconds, timeout] : timeouts) {
    operation.set_id(operation.id() + 1);
    operation.mutable_timeout()->set_seconds(seconds);
    const TimePoint before = Clock::now();
    Say(operation);
    AwaitResult(operation.id());
    EXPECT_GE(controller_deadline_, before + timeout);
    EXPECT_LE(controller_deadline_, Clock::now() + timeout);
  }
}

TEST_F(UplinkTest, AnOperationOfAnUnknownKindIsUnimplemented) {
  Start();
  Greet();
  v1::Operation operation;
  operation.set_id(3);
  operation.set_lease_epoch(1);
  Say(operation);
  EXPECT_EQ(AwaitResult(3).code(), static_cast<int>(absl::StatusCode::kUnimplemented));
}

TEST_F(UplinkTest, AnEndedConsumerIsToldUntilItIsAcknowledged) {
  Start();
  Greet();
  uplink_->OnConsumerEnded("somebody else's", "its process has ended", Origin::kCaller);
  uplink_->OnConsumerEnded("jobs/web", "its process has ended", Origin::kScheduler);
  Until([this] { return ObjectsOf(v1::Object::kEndedConsumer) == 1; }, "the consumer");
  Stop();
  Start();
  Greet(2);
  ASSERT_EQ(ObjectsOf(v1::Object::kEndedConsumer), 1U);
  const auto objects = Objects();
  const v1::EndedConsumer ended = std::ranges::find_if(objects, [](const v1::Object& o) {
                                    return o.has_ended_consumer();
                                  })->ended_consumer();
  EXPECT_EQ(ended.namespace_(), "jobs");
  EXPECT_EQ(ended.consumer(), "web");
  EXPECT_EQ(ended.cause(), "its process has ended");
  v1::SchedulerMessage acknowledge;
  acknowledge.mutable_acknowledge()->add_ended_consumers(ended.number());
  wire().Say(acknowledge);
  Until([this] { return !rows_.rows.contains("ended/1"); }, "the row to go");
  wire().Break(absl::UnavailableError("cut"));
  Greet(3);
  EXPECT_EQ(ObjectsOf(v1::Object::kEndedConsumer), 0U);
}

TEST_F(UplinkTest, WhatWasGivenUpIsToldAsItChangesUntilItIsAcknowledged) {
  Start();
  Greet();
  v1::GivenUp given_up;
  given_up.set_number(1);
  lease_.gave_up = {given_up};
  uplink_->OnGivenUpChanged();
  Until([this] { return ObjectsOf(v1::Object::kGivenUp) == 1; }, "it to be told");
  lease_.gave_up[0].set_progress(v1::GivenUp::RELEASED);
  uplink_->OnGivenUpChanged();
  Until([this] { return ObjectsOf(v1::Object::kGivenUp) == 2; }, "its change to be told");
  uplink_->OnGivenUpChanged();  // as it was
  v1::SchedulerMessage acknowledge;
  acknowledge.mutable_acknowledge()->add_given_up(1);
  wire().Say(acknowledge);
  Until([this] { return lease_.gave_up.empty(); }, "the acknowledgement");
  uplink_->OnGivenUpChanged();
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_have()->set_run_id(wire().sent.front().hello().run_id());
  EXPECT_EQ(ObjectsOf(v1::Object::kGivenUp), 2U);
  wire().Break(absl::UnavailableError("cut"));
  Greet(2, welcome);
  EXPECT_EQ(ObjectsOf(v1::Object::kGivenUp), 0U);
}

// Whoever took the message and died before it did anything about it.
TEST_F(UplinkTest, WhatIsNotAcknowledgedIsToldAgainOnAStreamThatGoesOn) {
  Start();
  Greet();
  v1::GivenUp given_up;
  given_up.set_number(1);
  lease_.gave_up = {given_up};
  uplink_->OnGivenUpChanged();
  uplink_->OnConsumerEnded("jobs/web", "its process has ended", Origin::kScheduler);
  Until([this] { return ObjectsOf(v1::Object::kEndedConsumer) + ObjectsOf(v1::Object::kGivenUp) == 2; },
        "both");
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_have()->set_run_id(wire().sent.front().hello().run_id());
  welcome.mutable_have()->set_revision(Last(Message::kState)->state().revision());
  wire().Break(absl::UnavailableError("cut"));
  Greet(2, welcome);
  EXPECT_FALSE(Last(Message::kState)->state().full());
  EXPECT_EQ(ObjectsOf(v1::Object::kEndedConsumer), 1U);
  EXPECT_EQ(ObjectsOf(v1::Object::kGivenUp), 1U);
}

TEST_F(UplinkTest, AClaimWaitsForTheSchedulersAnswerAcrossABreak) {
  Start();
  Greet();
  std::optional<absl::StatusOr<v1::ClaimAnswer>> answer;
  v1::ClaimAsk ask;
  ask.set_namespace_("jobs");
  ask.set_volume("data");
  asio::co_spawn(loop_, uplink_->Claim(ask, true, Clock::now() + std::chrono::seconds(20)),
                 [&](std::exception_ptr, absl::StatusOr<v1::ClaimAnswer> came) { answer = std::move(came); });
  Until([this] { return Last(Message::kAsk) != nullptr; }, "the ask");
  wire().Break(absl::UnavailableError("cut"));
  Greet(2);
  Until([this] { return Last(Message::kAsk) != nullptr; }, "the ask again");
  v1::SchedulerMessage message;
  message.mutable_answer()->set_number(Last(Message::kAsk)->ask().number());
  message.mutable_answer()->mutable_claim()->set_volume_id("vol-1");
  wire().Say(message);
  Until([&] { return answer.has_value(); }, "the answer");
  ASSERT_TRUE(answer->ok()) << answer->status();
  EXPECT_EQ((*answer)->volume_id(), "vol-1");
}

TEST_F(UplinkTest, AClaimIsRefusedInTheSchedulersWords) {
  Start();
  Greet();
  std::optional<absl::StatusOr<v1::ClaimAnswer>> answer;
  asio::co_spawn(loop_, uplink_->Claim({}, false, Clock::now() + std::chrono::seconds(20)),
                 [&](std::exception_ptr, absl::StatusOr<v1::ClaimAnswer> came) { answer = std::move(came); });
  Until([this] { return Last(Message::kAsk) != nullptr; }, "the ask");
  v1::SchedulerMessage message;
  message.mutable_answer()->set_number(Last(Message::kAsk)->ask().number());
  message.mutable_answer()->set_code(static_cast<int>(absl::StatusCode::kPermissionDenied));
  message.mutable_answer()->set_message("not for you");
  wire().Say(message);
  Until([&] { return answer.has_value(); }, "the answer");
  EXPECT_EQ(answer->status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(berth::Message(answer->status()), HasSubstr("not for you"));
}

TEST_F(UplinkTest, AClaimIsRefusedAtOnceWhereNobodyIsConnectedAndNobodyWaits) {
  dialer_.next = {absl::UnavailableError("nobody there"), absl::UnavailableError("nobody there")};
  Start();
  const auto answer = RunOn(loop_, uplink_->Claim({}, false, Clock::now() + std::chrono::seconds(20)));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(UplinkTest, ASilentSchedulerIsTakenForDead) {
  UplinkOptions options = Options();
  options.times.least_silence = std::chrono::milliseconds(50);
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_heartbeat_interval()->set_seconds(0);
  welcome.mutable_heartbeat_interval()->set_nanos(100'000'000);
  Start(options);
  AwaitHello();
  Say(welcome);
  AwaitHello(2);
  EXPECT_TRUE(dialer_.wires[0]->closed);
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("has not been heard"));
  EXPECT_GE(lease_.heartbeats.size(), 2U);
}

TEST_F(UplinkTest, ASchedulerThatDoesNotGreetIsLeft) {
  UplinkOptions options = Options();
  options.times.greet_within = std::chrono::milliseconds(20);
  Start(options);
  AwaitHello(3);
  EXPECT_THAT(dialer_.dialled, ElementsAre("one:1", "two:2", "one:1"));
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("did not say Welcome"));
}

TEST_F(UplinkTest, ItIsAwaySinceTheLastLinkHoweverOftenAStreamIsTakenAndNotGreeted) {
  UplinkOptions options = Options();
  options.times.greet_within = std::chrono::milliseconds(200);
  Start(options);
  Greet();
  const auto since = [this] {
    const auto status = uplink_->Status();
    return std::pair(status->since().seconds(), status->since().nanos());
  };
  const auto linked = since();
  wire().Break(absl::UnavailableError("cut"));
  Until([this] { return uplink_->Status()->state() == v1::LinkStatus::DIALLING; }, "the loss of the link");
  const auto lost = since();
  EXPECT_GT(lost, linked);
  AwaitHello(4);
  EXPECT_EQ(since(), lost);
  Greet(4);
  EXPECT_GT(since(), lost);
}

TEST_F(UplinkTest, ASchedulerOfAnotherClusterIsRefusedAndToldOnce) {
  Start();
  Greet();
  wire().Break(absl::UnavailableError("cut"));
  for (size_t n = 2; n <= 4; ++n) {
    AwaitHello(n);
    v1::Welcome other = MakeWelcome();
    other.set_cluster_id("other");
    Say(other);
    Until([&] { return dialer_.wires.size() > n; }, "another attempt");
  }
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("belongs to cluster \"c\""));
  EXPECT_EQ(std::ranges::count(EventTypes(), "scheduler.lost"), 1);
  EXPECT_LE(std::ranges::count(EventTypes(), "scheduler.refused"), 2);  // of each address
}

TEST_F(UplinkTest, ASchedulerThatIsRefusedFromTheBeginningIsToldOnce) {
  for (int i = 0; i < 6; ++i) dialer_.next.push_back(absl::UnauthenticatedError("not believed"));
  Start();
  Greet();
  EXPECT_EQ(std::ranges::count(EventTypes(), "scheduler.refused"), 2);  // of each address
  EXPECT_EQ(std::ranges::count(EventTypes(), "scheduler.lost"), 0);
}

TEST_F(UplinkTest, ASchedulerThatAnotherOneHasTakenOverFromIsRefused) {
  lease_.current_epoch = 8;
  Start();
  AwaitHello();
  v1::Welcome welcome = MakeWelcome();
  welcome.set_lease_epoch(7);
  Say(welcome);
  AwaitHello(2);
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("of lease epoch 7, and 8 is obeyed"));
  EXPECT_THAT(dialer_.dialled, ElementsAre("one:1", "two:2"));
  EXPECT_EQ(wire().sent.size(), 1U) << "it is told nothing";
  welcome.set_lease_epoch(8);
  Greet(2, welcome);
}

TEST_F(UplinkTest, ASchedulerThatGrantsALeaseOfALowerEpochIsLeft) {
  Start();
  Greet();
  lease_.answered = absl::FailedPreconditionError("overtaken");
  v1::SchedulerMessage answer;
  answer.mutable_heartbeat_answer()->set_number(1);
  wire().Say(answer);
  AwaitHello(2);
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("overtaken"));
}

// Every node of a scheduler that has died would come to the next one at once.
TEST_F(UplinkTest, OnlyASchedulerThatSaysSoIsLeftForTheNextAddressAtOnce) {
  UplinkOptions options = Options();
  options.dial.stable_after = Duration(0);
  Start(options);
  Greet();
  wire().Break(absl::UnavailableError("connection reset"));
  Greet(2);
  wire().said = true;
  wire().Break(absl::UnavailableError("try another"));
  AwaitHello(3);
  EXPECT_THAT(dialer_.dialled, ElementsAre("one:1", "one:1", "two:2"));
}

TEST_F(UplinkTest, ASchedulerOfAnotherProtocolIsRefused) {
  Start();
  AwaitHello();
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_protocol()->set_major(2);
  Say(welcome);
  AwaitHello(2);
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("version 2.0"));
}

TEST_F(UplinkTest, APeerThatIsNotAcceptedAnyMoreIsLeft) {
  UplinkOptions options = Options();
  options.times.recheck_every = std::chrono::milliseconds(10);
  Start(options);
  Greet();
  wire().recheck = absl::UnauthenticatedError("its certificate is revoked");
  AwaitHello(2);
  EXPECT_THAT(uplink_->Status()->last_error(), HasSubstr("revoked"));
}

TEST_F(UplinkTest, WhoIsHeardOftenIsLookedAtOften) {
  Start();
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_heartbeat_interval()->set_seconds(0);
  welcome.mutable_heartbeat_interval()->set_nanos(100'000'000);
  Greet(1, welcome);
  wire().recheck = absl::UnauthenticatedError("its certificate is revoked");
  Until([&] { return uplink_->Status()->last_error().find("revoked") != std::string::npos; }, "its end");
}

TEST_F(UplinkTest, EventsAreToldFromWhereTheSchedulerStands) {
  events_.Append({.type = "one"});
  events_.Append({.type = "two"});
  Start();
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_events()->set_after_sequence(1);
  Greet(1, welcome);
  Until([this] { return Last(Message::kEvents) != nullptr; }, "events");
  EXPECT_EQ(Last(Message::kEvents)->events().events(0).type(), "two");
  events_.Append({.type = "three"});
  Until(
      [this] {
        const auto& told = Last(Message::kEvents)->events().events();
        return told.rbegin()->type() == "three";
      },
      "the new event");
}

TEST_F(UplinkTest, AStreamThatTakesNothingIsLeft) {
  UplinkOptions options = Options();
  options.times.least_silence = std::chrono::milliseconds(50);
  options.times.greet_within = std::chrono::milliseconds(50);
  v1::Welcome welcome = MakeWelcome();
  welcome.mutable_heartbeat_interval()->set_seconds(0);
  welcome.mutable_heartbeat_interval()->set_nanos(100'000'000);
  Start(options);
  Greet(1, welcome);
  wire().takes = false;
  AwaitHello(2);
}

}  // namespace
}  // namespace berth
