#include "bench/small_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/simulated_node.h"

namespace berth {
namespace {

using berth::v1::GivenUp;
using berth::v1::NodeMessage;
using StateObject = berth::v1::Object;
using berth::v1::SchedulerMessage;
using std::chrono::seconds;
using testing::ElementsAre;

constexpr size_t kAllObjects = 1 + kSimulatedPlugins + kSimulatedVolumes;

class SmallSchedulerTest : public testing::Test {
 protected:
  // What `link` answers; empty: nothing.
  SchedulerMessage Say(NodeLink& link, NodeMessage message) const {
    SchedulerMessage answer;
    const auto answers = link.Take(message, now_, &answer);
    EXPECT_TRUE(answers.ok()) << answers.status();
    EXPECT_EQ(answers.ok() && *answers, answer.message_case() != SchedulerMessage::MESSAGE_NOT_SET);
    return answer;
  }
  absl::StatusCode CodeOf(NodeLink& link, NodeMessage message) const {
    SchedulerMessage answer;
    return link.Take(message, now_, &answer).status().code();
  }
  [[nodiscard]] size_t Kept() const { return scheduler_.StateOf(SimulatedName(7)).value().size(); }

  // Its newest state but for its objects.
  static NodeMessage Change(uint64_t revision) {
    NodeMessage message;
    message.mutable_state()->set_revision(revision);
    message.mutable_state()->set_synced(true);
    return message;
  }

  const TimePoint now_ = Clock::now();
  SmallScheduler scheduler_{{.lease_epoch = 4, .lease = seconds(30), .heartbeat_interval = seconds(5)}};
};

TEST_F(SmallSchedulerTest, WelcomesANodeAndAsksForAllOfItsState) {
  NodeLink link(scheduler_);
  const auto welcome = Say(link, SimulatedHello(7)).welcome();
  EXPECT_EQ(welcome.protocol().major(), 1U);
  EXPECT_EQ(welcome.heartbeat_interval().seconds(), 5);
  EXPECT_FALSE(welcome.has_have());
}

TEST_F(SmallSchedulerTest, KeepsTheNewestStateOfANode) {
  NodeLink link(scheduler_);
  Say(link, SimulatedHello(7));
  Say(link, SimulatedState(7));
  EXPECT_EQ(Kept(), kAllObjects);

  NodeMessage change = Change(2);
  const auto volume = SimulatedState(7).state().objects(kAllObjects - 1).volume();
  auto* removed = change.mutable_state()->add_objects()->mutable_removed()->mutable_volume();
  removed->set_plugin_id(volume.plugin_id());
  removed->set_volume_id(volume.volume_id());
  Say(link, change);
  EXPECT_EQ(Kept(), kAllObjects - 1);
}

TEST_F(SmallSchedulerTest, AFullStateTakesThePlaceOfAllThatWasOnceItIsWhole) {
  NodeLink link(scheduler_);
  Say(link, SimulatedHello(7));
  Say(link, SimulatedState(7));
  NodeMessage part = SimulatedState(7);
  part.mutable_state()->set_synced(false);
  part.mutable_state()->mutable_objects()->DeleteSubrange(0, kAllObjects - 1);
  Say(link, part);
  EXPECT_EQ(Kept(), kAllObjects);
  Say(link, Change(9));
  EXPECT_EQ(Kept(), 1U);
}

TEST_F(SmallSchedulerTest, TellsANodeThatComesBackWhatItHas) {
  {
    NodeLink link(scheduler_);
    Say(link, SimulatedHello(7));
    Say(link, SimulatedState(7));
    Say(link, Change(12));
  }
  {
    NodeLink again(scheduler_);
    const auto have = Say(again, SimulatedHello(7)).welcome().have();
    EXPECT_EQ(have.revision(), 12U);
    EXPECT_EQ(have.run_id(), SimulatedHello(7).hello().run_id());
  }
  NodeLink another_run(scheduler_);
  NodeMessage hello = SimulatedHello(7);
  hello.mutable_hello()->set_run_id("another");
  EXPECT_FALSE(Say(another_run, hello).welcome().has_have());
}

TEST_F(SmallSchedulerTest, GrantsALeaseWithEachAnswerAndCountsItFromThen) {
  NodeLink link(scheduler_);
  Say(link, SimulatedHello(7));
  EXPECT_FALSE(scheduler_.LeaseMayHold(SimulatedName(7), now_));
  const auto answer = Say(link, SimulatedHeartbeat(3)).heartbeat_answer();
  EXPECT_EQ(answer.number(), 3U);
  EXPECT_EQ(answer.lease().epoch(), 4U);
  EXPECT_EQ(answer.lease().duration().seconds(), 30);
  EXPECT_TRUE(scheduler_.LeaseMayHold(SimulatedName(7), now_ + seconds(29)));
  EXPECT_FALSE(scheduler_.LeaseMayHold(SimulatedName(7), now_ + seconds(30)));
}

TEST_F(SmallSchedulerTest, RefusesAnotherNodeOfANameThatIsConnected) {
  NodeLink link(scheduler_);
  Say(link, SimulatedHello(7));
  NodeLink other(scheduler_);
  NodeMessage hello = SimulatedHello(7);
  hello.mutable_hello()->set_instance_id("another");
  EXPECT_EQ(CodeOf(other, hello), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Say(link, SimulatedHeartbeat(1)).has_heartbeat_answer());
}

TEST_F(SmallSchedulerTest, ANodeThatDialsAnewEndsItsOlderStream) {
  NodeLink older(scheduler_);
  Say(older, SimulatedHello(7));
  NodeLink newer(scheduler_);
  Say(newer, SimulatedHello(7));
  EXPECT_EQ(CodeOf(older, SimulatedHeartbeat(1)), absl::StatusCode::kAborted);
  EXPECT_TRUE(Say(newer, SimulatedHeartbeat(1)).has_heartbeat_answer());
}

TEST_F(SmallSchedulerTest, RefusesWhoDoesNotKeepToTheProtocol) {
  NodeLink silent(scheduler_);
  EXPECT_EQ(CodeOf(silent, SimulatedHeartbeat(1)), absl::StatusCode::kFailedPrecondition);
  NodeLink newer(scheduler_);
  NodeMessage hello = SimulatedHello(7);
  hello.mutable_hello()->mutable_protocol()->set_major(2);
  EXPECT_EQ(CodeOf(newer, hello), absl::StatusCode::kFailedPrecondition);
  NodeLink twice(scheduler_);
  Say(twice, SimulatedHello(7));
  EXPECT_EQ(CodeOf(twice, SimulatedHello(7)), absl::StatusCode::kInvalidArgument);
}

TEST_F(SmallSchedulerTest, AcknowledgesWhatIsRepeatedUntilItIs) {
  NodeLink link(scheduler_);
  Say(link, SimulatedHello(7));
  NodeMessage news = Change(2);
  news.mutable_state()->add_objects()->mutable_ended_consumer()->set_number(5);
  news.mutable_state()->add_objects()->mutable_given_up()->set_number(6);
  auto* released = news.mutable_state()->add_objects()->mutable_given_up();
  released->set_number(7);
  released->set_progress(GivenUp::RELEASED);
  const auto acknowledged = Say(link, news).acknowledge();
  EXPECT_THAT(acknowledged.ended_consumers(), ElementsAre(5));
  EXPECT_THAT(acknowledged.given_up(), ElementsAre(7));

  NodeMessage result;
  result.mutable_result()->set_id(8);
  EXPECT_THAT(Say(link, result).acknowledge().operation_ids(), ElementsAre(8));
}

TEST_F(SmallSchedulerTest, RefusesToDecideAndHearsWhatItDoesNotUse) {
  NodeLink link(scheduler_);
  Say(link, SimulatedHello(7));
  NodeMessage ask;
  ask.mutable_ask()->set_number(2);
  EXPECT_EQ(Say(link, ask).answer().number(), 2U);
  NodeMessage events;
  events.mutable_events();
  EXPECT_EQ(Say(link, events).message_case(), SchedulerMessage::MESSAGE_NOT_SET);
}

TEST(SimulatedNodeTest, IsOfTheSizeThatTheFiguresSay) {
  const auto state = SimulatedState(41).state();
  int plugins = 0;
  int volumes = 0;
  int publications = 0;
  for (const StateObject& object : state.objects()) {
    plugins += object.has_plugin() ? 1 : 0;
    volumes += object.has_volume() ? 1 : 0;
    publications += object.volume().publications_size();
  }
  EXPECT_EQ(plugins, kSimulatedPlugins);
  EXPECT_EQ(volumes, kSimulatedVolumes);
  EXPECT_EQ(publications, 8);
  EXPECT_TRUE(state.full() && state.synced());
  EXPECT_GT(state.ByteSizeLong(), 4000U);
  EXPECT_LT(state.ByteSizeLong(), 16000U);
}

TEST(SimulatedNodeTest, IsAnotherOneForEachNumber) {
  EXPECT_EQ(SimulatedHello(3).SerializeAsString(), SimulatedHello(3).SerializeAsString());
  EXPECT_NE(SimulatedHello(3).hello().node_id(), SimulatedHello(4).hello().node_id());
  EXPECT_NE(SimulatedHello(3).hello().instance_id(), SimulatedHello(4).hello().instance_id());
  EXPECT_NE(SimulatedState(3).state().objects(12).volume().volume_id(),
            SimulatedState(4).state().objects(12).volume().volume_id());
}

}  // namespace
}  // namespace berth
