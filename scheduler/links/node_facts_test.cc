#include "scheduler/links/node_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Pair;

// Writes State messages.
class Says {
 public:
  Says& Full() {
    state_.set_full(true);
    return *this;
  }
  Says& Synced() {
    state_.set_synced(true);
    return *this;
  }
  Says& Plugin(const std::string& id, v1::PluginState state = v1::READY) {
    v1::Plugin& plugin = *state_.add_objects()->mutable_plugin();
    plugin.set_id(id);
    plugin.set_state(state);
    return *this;
  }
  Says& Volume(const std::string& id, int own = 0, int others = 0) {
    v1::Volume& volume = *state_.add_objects()->mutable_volume();
    volume.set_plugin_id("p");
    volume.set_volume_id(id);
    for (int i = 0; i < own; ++i) volume.add_publications()->set_origin(v1::SCHEDULER);
    for (int i = 0; i < others; ++i) volume.add_publications()->set_origin(v1::DECLARED);
    return *this;
  }
  Says& Removed(const std::string& volume) {
    v1::VolumeName& name = *state_.add_objects()->mutable_removed()->mutable_volume();
    name.set_plugin_id("p");
    name.set_volume_id(volume);
    return *this;
  }
  Says& RemovedPlugin(const std::string& id) {
    state_.add_objects()->mutable_removed()->set_plugin_id(id);
    return *this;
  }
  operator const v1::State&() const { return state_; }

 private:
  v1::State state_;
};

class NodeFactsTest : public ::testing::Test {
 protected:
  void Hear(const v1::State& state) { EXPECT_TRUE(facts_.Apply(state).ok()); }
  std::vector<std::string> Volumes() {
    std::vector<std::string> ids;
    for (const auto& [key, volume] : facts_.volumes()) ids.push_back(key.second);
    return ids;
  }
  NodeFacts facts_;
};

TEST_F(NodeFactsTest, IsCompleteOnceItIsSynced) {
  EXPECT_FALSE(facts_.synced());
  Hear(Says().Full().Plugin("p").Volume("a"));
  EXPECT_FALSE(facts_.synced());
  Hear(Says().Volume("b").Synced());
  EXPECT_TRUE(facts_.synced());
  EXPECT_THAT(facts_.plugins(), ElementsAre(Key("p")));
  EXPECT_THAT(Volumes(), ElementsAre("a", "b"));
}

TEST_F(NodeFactsTest, TheNewestOfEachObjectCounts) {
  Hear(Says().Full().Plugin("p", v1::STARTING).Volume("a").Synced());
  Hear(Says().Plugin("p", v1::READY).Volume("a", 2, 1).Synced());
  EXPECT_EQ(facts_.plugins().at("p").state(), v1::READY);
  EXPECT_EQ(facts_.OwnPublications(), 2U);
}

TEST_F(NodeFactsTest, WhatIsRemovedIsGone) {
  Hear(Says().Full().Plugin("p").Plugin("q").Volume("a").Volume("b").Synced());
  Hear(Says().Removed("a").RemovedPlugin("q").Synced());
  EXPECT_THAT(Volumes(), ElementsAre("b"));
  EXPECT_THAT(facts_.plugins(), ElementsAre(Key("p")));
  Hear(Says().Removed("never").RemovedPlugin("never").Synced());
  EXPECT_TRUE(facts_.synced());
}

// The node sends everything again on the same stream, as after an overflow.
TEST_F(NodeFactsTest, WhatACompleteListLeavesOutIsGoneOnceItIsComplete) {
  Hear(Says().Full().Plugin("p").Plugin("q").Volume("a").Volume("b").Synced());
  Hear(Says().Full().Plugin("p").Volume("b"));
  EXPECT_FALSE(facts_.synced());
  EXPECT_THAT(Volumes(), ElementsAre("a", "b")) << "it may come still";
  Hear(Says().Volume("c").Synced());
  EXPECT_THAT(Volumes(), ElementsAre("b", "c"));
  EXPECT_THAT(facts_.plugins(), ElementsAre(Key("p")));
}

TEST_F(NodeFactsTest, NoticesAreKeptByTheirNumbers) {
  v1::State state;
  state.add_objects()->mutable_ended_consumer()->set_number(4);
  state.add_objects()->mutable_ended_consumer()->set_number(4);
  v1::ForcedRelease& forced = *state.add_objects()->mutable_forced_release();
  forced.set_number(9);
  forced.set_progress(v1::ForcedRelease::RELEASED);
  Hear(state);
  EXPECT_THAT(facts_.ended_consumers(), ElementsAre(Key(4U)));
  EXPECT_THAT(facts_.forced_releases(), ElementsAre(Pair(9U, testing::_)));
}

TEST_F(NodeFactsTest, OnlySoMuchIsTaken) {
  Says says;
  for (size_t i = 0; i < kMostPlugins; ++i) says.Plugin(std::to_string(i));
  Hear(says);
  EXPECT_TRUE(absl::IsResourceExhausted(facts_.Apply(Says().Plugin("one more"))));
  v1::State unknown;
  unknown.add_objects();
  NodeFacts other;
  EXPECT_TRUE(other.Apply(unknown).ok()) << "a kind of object that is not known yet";
  EXPECT_THAT(other.volumes(), IsEmpty());
}

}  // namespace
}  // namespace berth::scheduler
