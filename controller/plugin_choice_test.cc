#include "controller/plugin_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Service = ::csi::v1::PluginCapability::Service;

enum class Serves { kNode, kController, kBoth };

PluginSnapshot Plugin(const std::string& id, const std::string& driver, Serves serves, bool usable = true) {
  PluginSnapshot plugin;
  plugin.id = id;
  plugin.state = usable ? PluginState::kReady : PluginState::kUnhealthy;
  plugin.ready = plugin.registered = plugin.alive = usable;
  plugin.facts = PluginFacts{.name = driver, .has_node_service = serves != Serves::kController};
  if (serves != Serves::kNode) plugin.facts->plugin_services.insert(Service::CONTROLLER_SERVICE);
  return plugin;
}

PluginMap Map(std::vector<PluginSnapshot> plugins) {
  PluginMap map;
  for (PluginSnapshot& plugin : plugins) {
    const std::string id = plugin.id;
    map[id] = std::move(plugin);
  }
  return map;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(ResolveNodePluginTest, TakesAnIdWhateverItsState) {
  PluginSnapshot broken;
  broken.id = "broken";
  const PluginMap plugins = Map({broken, Plugin("a", "d", Serves::kNode)});
  EXPECT_EQ(ResolveNodePlugin(plugins, "broken").value_or(""), "broken");
  EXPECT_EQ(ResolveNodePlugin(plugins, "a").value_or(""), "a");
}

TEST(ResolveNodePluginTest, TakesADriverNameThatFitsOnePluginWithANode) {
  const PluginMap plugins = Map({Plugin("n", "d", Serves::kNode), Plugin("c", "d", Serves::kController)});
  EXPECT_EQ(ResolveNodePlugin(plugins, "d").value_or(""), "n");
}

TEST(ResolveNodePluginTest, AnIdGoesBeforeADriverName) {
  const PluginMap plugins = Map({Plugin("d", "x", Serves::kNode), Plugin("n", "d", Serves::kNode)});
  EXPECT_EQ(ResolveNodePlugin(plugins, "d").value_or(""), "d");
}

TEST(ResolveNodePluginTest, RefusesADriverNameOfSeveral) {
  const PluginMap plugins = Map({Plugin("n1", "d", Serves::kNode), Plugin("n2", "d", Serves::kBoth)});
  const auto resolved = ResolveNodePlugin(plugins, "d");
  EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(resolved.status()), HasSubstr("n1, n2"));
}

TEST(ResolveNodePluginTest, NamesThePluginsThereAre) {
  const auto resolved =
      ResolveNodePlugin(Map({Plugin("a", "d", Serves::kNode), Plugin("b", "e", Serves::kNode)}), "z\n");
  EXPECT_EQ(resolved.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(resolved.status()), AllOf(HasSubstr("z\\x0a"), HasSubstr("there are a, b")));
  EXPECT_THAT(Message(ResolveNodePlugin({}, "z").status()), HasSubstr("this node has none"));
}

TEST(ChooseControllerTest, PrefersThePluginItself) {
  const PluginMap plugins = Map({Plugin("a", "d", Serves::kBoth), Plugin("m", "d", Serves::kBoth)});
  EXPECT_EQ(ChooseController(plugins, "m").value_or(""), "m");
}

TEST(ChooseControllerTest, TakesAnotherOneOfTheSameDriver) {
  const PluginMap plugins = Map({Plugin("n", "d", Serves::kNode), Plugin("c", "d", Serves::kController),
                                 Plugin("b", "other", Serves::kController)});
  EXPECT_EQ(ChooseController(plugins, "n").value_or(""), "c");
}

TEST(ChooseControllerTest, TakesAnotherOneWhileThePluginItselfIsNotWell) {
  const PluginMap plugins =
      Map({Plugin("m", "d", Serves::kBoth, false), Plugin("z", "d", Serves::kController)});
  EXPECT_EQ(ChooseController(plugins, "m").value_or(""), "z");
}

TEST(ChooseControllerTest, TakesADriverName) {
  const PluginMap plugins =
      Map({Plugin("n", "d", Serves::kNode), Plugin("c1", "d", Serves::kController, false),
           Plugin("c2", "d", Serves::kController)});
  EXPECT_EQ(ChooseController(plugins, "d").value_or(""), "c2");
}

TEST(ChooseControllerTest, SaysThatThereIsNone) {
  const auto chosen = ChooseController(Map({Plugin("n", "d", Serves::kNode)}), "n");
  EXPECT_EQ(chosen.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(chosen.status()), HasSubstr("driver d"));
}

TEST(ChooseControllerTest, SaysWhyThoseThereAreDoNotServe) {
  PluginSnapshot sick = Plugin("c", "d", Serves::kController, false);
  sick.reason = "Probe: no answer";
  const auto chosen = ChooseController(Map({Plugin("n", "d", Serves::kNode), sick}), "n");
  EXPECT_EQ(chosen.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(chosen.status()), HasSubstr("plugin c is unhealthy: Probe: no answer"));
}

TEST(ChooseControllerTest, WaitsForAPluginThatIsNotKnownYet) {
  PluginSnapshot starting;
  starting.id = "new";
  starting.state = PluginState::kStarting;
  EXPECT_EQ(ChooseController(Map({starting}), "new").status().code(), absl::StatusCode::kUnavailable);
}

TEST(ChooseControllerTest, OfNothingKnownIsNotFound) {
  EXPECT_EQ(ChooseController(Map({Plugin("a", "d", Serves::kBoth)}), "x").status().code(),
            absl::StatusCode::kNotFound);
}

PluginSnapshot Held(PluginSnapshot plugin) {
  plugin.paused = true;
  return plugin;
}

PluginSnapshot Draining(PluginSnapshot plugin) {
  plugin.draining = true;
  return plugin;
}

TEST(ChooseControllerTest, NamesOneThatIsHeldOnlyWhereNoneWorksNow) {
  const PluginSnapshot held = Held(Plugin("a", "d", Serves::kBoth));
  EXPECT_EQ(ChooseController(Map({held, Plugin("b", "d", Serves::kBoth)}), "a").value_or(""), "b");
  EXPECT_EQ(ChooseController(Map({held, Plugin("b", "d", Serves::kBoth, false)}), "a").value_or(""), "a");
  EXPECT_EQ(ChooseController(Map({Held(Plugin("a", "d", Serves::kBoth, false))}), "a").value_or(""), "a")
      << "held goes before not ready: it will be in a moment";
}

TEST(ChooseControllerTest, ADrainingPluginServesWhatIsThereButMakesNothingNew) {
  const PluginMap alone = Map({Draining(Plugin("a", "d", Serves::kBoth))});
  EXPECT_EQ(ChooseController(alone, "a").value_or(""), "a");
  const auto refused = ChooseController(alone, "a", ControllerWork::kNewVolume);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused.status()), HasSubstr("plugin a is being drained"));
  const PluginMap two = Map({Draining(Plugin("a", "d", Serves::kBoth)), Plugin("b", "d", Serves::kBoth)});
  EXPECT_EQ(ChooseController(two, "a", ControllerWork::kNewVolume).value_or(""), "b");
}

TEST(SameDriverTest, FindsEveryPluginUnderWhichAVolumeMayBeHeld) {
  PluginSnapshot unknown;
  unknown.id = "u";
  const PluginMap plugins = Map({Plugin("c", "d", Serves::kController), Plugin("n", "d", Serves::kNode),
                                 Plugin("o", "other", Serves::kNode), unknown});
  EXPECT_THAT(SameDriver(plugins, "c"), ElementsAre("c", "n"));
  EXPECT_THAT(SameDriver(plugins, "d"), ElementsAre("d", "c", "n"));
  EXPECT_THAT(SameDriver(plugins, "u"), ElementsAre("u"));
  EXPECT_THAT(SameDriver(plugins, "gone"), ElementsAre("gone"));
}

}  // namespace
}  // namespace berth
