#include "supervisor/external_lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace berth {
namespace {

using Type = ExternalEvent::Type;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::map<std::string, ExternalEvent> kEvents = {
    {"start", {.type = Type::kStartRequested}},
    {"disabled", {.type = Type::kDisabled, .text = "disabled"}},
    {"drain", {.type = Type::kDrainRequested, .holders = {"volume v by c"}}},
    {"drain of nothing", {.type = Type::kDrainRequested}},
    {"fewer holders", {.type = Type::kHoldersChanged, .holders = {"volume w by c"}}},
    {"no holders", {.type = Type::kHoldersChanged}},
    {"waiting", {.type = Type::kWaiting, .text = "there is no /x"}},
    {"served", {.type = Type::kServed}},
    {"gone", {.type = Type::kGone, .text = "process 7 has gone"}},
    {"ok", {.type = Type::kProbeOk}},
    {"not ready", {.type = Type::kProbeNotReady, .failures = 3}},
    {"failed once", {.type = Type::kProbeFailed, .text = "UNAVAILABLE", .failures = 1}},
    {"failed", {.type = Type::kProbeFailed, .text = "UNAVAILABLE", .failures = 3}},
    {"lost", {.type = Type::kSocketLost, .text = "its socket was removed"}},
    {"no tree", {.type = Type::kTreeLooked, .text = "it does not see the tree"}},
    {"tree", {.type = Type::kTreeLooked}},
};

class ExternalLifecycleTest : public ::testing::Test {
 protected:
  std::vector<ExternalAction> Feed(const std::string& event) { return lifecycle_.Handle(kEvents.at(event)); }
  // A life that has had these events.
  static ExternalLifecycle After(const std::vector<std::string>& events) {
    ExternalLifecycle lifecycle(3);
    for (const std::string& event : events) {
      [[maybe_unused]] const auto actions = lifecycle.Handle(kEvents.at(event));
    }
    return lifecycle;
  }

  ExternalLifecycle lifecycle_{3};
};

std::string Show(const ExternalLifecycle& lifecycle, const std::vector<ExternalAction>& actions) {
  std::string text(PluginStateName(lifecycle.state()));
  if (lifecycle.served()) text += " served";
  for (const ExternalAction action : actions) {
    text += action == ExternalAction::kAnnounce ? " +announce" : " +retire";
  }
  return text;
}

// Every event in every state. What is not named leaves everything as it is.
TEST_F(ExternalLifecycleTest, EveryEventInEveryState) {
  struct Row {
    std::string name;
    std::vector<std::string> history;
    std::map<std::string, std::string> changes;
  };
  const std::vector<Row> rows = {
      {"stopped", {}, {{"start", "starting"}}},
      {"drained", {"start", "served", "ok", "drain of nothing"}, {{"start", "starting"}}},
      {"absent",
       {"start", "waiting"},
       {{"disabled", "stopped"},
        {"drain", "draining"},
        {"drain of nothing", "stopped"},
        {"served", "starting served +announce"}}},
      {"served",
       {"start", "served"},
       {{"disabled", "stopped +retire"},
        {"drain", "draining served"},
        {"drain of nothing", "stopped +retire"},
        {"served", "starting served +retire +announce"},
        {"gone", "starting +retire"},
        {"ok", "ready served"}}},
      {"ready",
       {"start", "served", "ok"},
       {{"disabled", "stopped +retire"},
        {"drain", "draining served"},
        {"drain of nothing", "stopped +retire"},
        {"served", "starting served +retire +announce"},
        {"gone", "starting +retire"},
        {"not ready", "unhealthy served"},
        {"lost", "unhealthy served"},
        {"no tree", "starting served"},
        {"failed", "unhealthy served"}}},
      {"without the tree",
       {"start", "served", "ok", "no tree"},
       {{"disabled", "stopped +retire"},
        {"drain", "draining served"},
        {"drain of nothing", "stopped +retire"},
        {"served", "starting served +retire +announce"},
        {"gone", "starting +retire"},
        {"not ready", "unhealthy served"},
        {"lost", "unhealthy served"},
        {"failed", "unhealthy served"},
        {"tree", "ready served"}}},
      {"unhealthy",
       {"start", "served", "ok", "failed"},
       {{"disabled", "stopped +retire"},
        {"drain", "draining served"},
        {"drain of nothing", "stopped +retire"},
        {"served", "starting served +retire +announce"},
        {"gone", "starting +retire"},
        {"ok", "ready served"}}},
      {"draining",
       {"start", "served", "ok", "drain"},
       {{"start", "ready served"},
        {"disabled", "stopped +retire"},
        {"drain of nothing", "stopped +retire"},
        {"no holders", "stopped +retire"},
        {"served", "draining served +retire +announce"},
        {"gone", "draining +retire"}}},
      {"draining and absent",
       {"start", "served", "ok", "drain", "gone"},
       {{"start", "starting"},
        {"disabled", "stopped"},
        {"drain of nothing", "stopped"},
        {"no holders", "stopped"},
        {"served", "draining served +announce"}}},
  };
  for (const Row& row : rows) {
    const std::string before = Show(After(row.history), {});
    for (const auto& [name, event] : kEvents) {
      ExternalLifecycle lifecycle = After(row.history);
      const std::vector<ExternalAction> actions = lifecycle.Handle(event);
      const auto change = row.changes.find(name);
      EXPECT_EQ(Show(lifecycle, actions), change == row.changes.end() ? before : change->second)
          << row.name << ", " << name;
    }
  }
}

TEST_F(ExternalLifecycleTest, TheReasonSaysWhatIsWaitedFor) {
  Feed("start");
  EXPECT_EQ(lifecycle_.reason(), "waits for its socket");
  EXPECT_FALSE(lifecycle_.absent()) << "it was not looked at yet";
  Feed("waiting");
  EXPECT_EQ(lifecycle_.reason(), "waits for its socket: there is no /x");
  EXPECT_TRUE(lifecycle_.absent());
  Feed("served");
  Feed("not ready");
  EXPECT_EQ(lifecycle_.reason(), "it says that it is not ready");
  Feed("ok");
  EXPECT_EQ(lifecycle_.reason(), "");
  Feed("failed once");
  EXPECT_EQ(lifecycle_.state(), PluginState::kReady);
  EXPECT_EQ(lifecycle_.reason(), "");
  Feed("failed");
  EXPECT_EQ(lifecycle_.reason(), "Probe: UNAVAILABLE");
  Feed("gone");
  EXPECT_EQ(lifecycle_.reason(), "waits for its socket: process 7 has gone");
}

TEST_F(ExternalLifecycleTest, WithoutTheTreeOfVolumesItIsNotReadyAndSaysWhy) {
  for (const char* event : {"start", "served", "no tree", "ok"}) Feed(event);
  EXPECT_EQ(lifecycle_.state(), PluginState::kStarting);
  EXPECT_FALSE(lifecycle_.ready());
  EXPECT_EQ(lifecycle_.reason(), "it does not see the tree");
  // The next server is examined from the start.
  Feed("served");
  EXPECT_EQ(lifecycle_.no_tree_because(), "");
  Feed("ok");
  EXPECT_TRUE(lifecycle_.ready());
}

TEST_F(ExternalLifecycleTest, ADrainShowsWhoHoldsAndThatItIsIll) {
  for (const char* event : {"start", "served", "ok", "drain"}) Feed(event);
  EXPECT_THAT(lifecycle_.reason(), HasSubstr("until volumes have left: volume v by c"));
  EXPECT_THAT(lifecycle_.holders(), ElementsAre("volume v by c"));
  Feed("fewer holders");
  EXPECT_THAT(lifecycle_.holders(), ElementsAre("volume w by c"));
  Feed("failed");
  EXPECT_THAT(lifecycle_.reason(), HasSubstr("volume w by c; Probe: UNAVAILABLE"));
  EXPECT_FALSE(lifecycle_.ready());
  Feed("ok");
  Feed("no holders");
  EXPECT_FALSE(lifecycle_.watching());
  EXPECT_THAT(lifecycle_.holders(), IsEmpty());
  EXPECT_THAT(lifecycle_.reason(), HasSubstr("drained"));
}

}  // namespace
}  // namespace berth
