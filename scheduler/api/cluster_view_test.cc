#include "scheduler/api/cluster_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <random>
#include <set>

namespace berth::scheduler {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::Plugin Plugin(const std::string& id, const std::string& driver, const std::string& kind = "monolith",
                  bool ready = true) {
  v1::Plugin plugin;
  plugin.set_id(id);
  plugin.set_kind(kind);
  plugin.set_state(ready ? v1::READY : v1::BACKING_OFF);
  plugin.set_registered(ready);
  plugin.mutable_fingerprint()->set_driver_name(driver);
  plugin.mutable_fingerprint()->set_vendor_version("1.0");
  plugin.mutable_fingerprint()->add_plugin_capabilities("CONTROLLER_SERVICE");
  return plugin;
}

class ClusterViewTest : public ::testing::Test {
 protected:
  NodeView Node(const std::string& name, const std::vector<v1::Plugin>& plugins = {}) {
    v1::State state;
    state.set_full(true);
    state.set_synced(true);
    for (const v1::Plugin& plugin : plugins) *state.add_objects()->mutable_plugin() = plugin;
    auto& facts = facts_.emplace_back(std::make_unique<NodeFacts>());
    EXPECT_TRUE(facts->Apply(state).ok());
    return {.name = name,
            .instance_id = "i",
            .boot_id = "b",
            .version = "0.1",
            .connected = true,
            .facts = facts.get()};
  }
  v1::ListNodesResponse List(const std::vector<NodeView>& nodes, int size = 0,
                             const std::string& token = "") {
    v1::ListNodesRequest request;
    request.set_page_size(size);
    request.set_page_token(token);
    auto answer = ListNodes(request, nodes, leases_, now_);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *std::move(answer) : v1::ListNodesResponse();
  }
  static std::vector<std::string> Names(const v1::ListNodesResponse& answer) {
    std::vector<std::string> names;
    for (const v1::ClusterNode& node : answer.nodes()) names.push_back(node.name());
    return names;
  }

  BootTime now_ = BootTime{} + seconds(1000);
  LeaseClock leases_{BootTime{}, seconds(0)};
  std::vector<std::unique_ptr<NodeFacts>> facts_;
};

TEST_F(ClusterViewTest, ANodeIsShownAsItsLinkKnowsIt) {
  leases_.Granted("a", now_ - seconds(1), seconds(100));
  const v1::ClusterNode here =
      ToProto(Node("a", {Plugin("p", "d"), Plugin("q", "e", "node", false)}), leases_, now_);
  EXPECT_EQ(here.connection(), v1::ClusterNode::CONNECTED);
  EXPECT_TRUE(here.synced());
  EXPECT_EQ(here.lease().seconds(), 100);
  EXPECT_EQ(here.plugins(), 2);
  EXPECT_EQ(here.plugins_ready(), 1);
  const v1::ClusterNode away =
      ToProto({.name = "b", .instance_id = "i", .boot_id = "b", .version = ""}, leases_, now_);
  EXPECT_EQ(away.connection(), v1::ClusterNode::AWAY);
  EXPECT_FALSE(away.has_lease());
  EXPECT_FALSE(away.has_since());
  NodeView other = Node("a");
  other.other_machine = true;
  EXPECT_EQ(ToProto(other, leases_, now_).connection(), v1::ClusterNode::OTHER_MACHINE);
  EXPECT_FALSE(ToProto(other, leases_, now_).has_lease()) << "that is the other machine's";
}

TEST_F(ClusterViewTest, PagesGoOnAfterTheLastNameAndKeepOneNameTogether) {
  const std::vector<NodeView> nodes = {Node("a"), Node("b"), Node("b"), Node("c"), Node("d")};
  EXPECT_THAT(Names(List(nodes)), ElementsAre("a", "b", "b", "c", "d"));
  v1::ListNodesResponse page = List(nodes, 2);
  EXPECT_THAT(Names(page), ElementsAre("a", "b", "b"));
  page = List(nodes, 2, page.next_page_token());
  EXPECT_THAT(Names(page), ElementsAre("c", "d"));
  EXPECT_EQ(page.next_page_token(), "");
  EXPECT_THAT(Names(List({})), IsEmpty());
  v1::ListNodesRequest request;
  request.set_page_size(1001);
  EXPECT_TRUE(absl::IsInvalidArgument(ListNodes(request, nodes, leases_, now_).status()));
}

TEST_F(ClusterViewTest, OneNodeIsShownWithItsPluginsAndVolumes) {
  v1::GetNodeRequest request;
  request.set_name("a");
  const auto answer = GetNode(request, {Node("a", {Plugin("p", "d")})}, leases_, now_);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->plugins_size(), 1);
  request.set_name("b");
  EXPECT_TRUE(absl::IsNotFound(GetNode(request, {Node("a")}, leases_, now_).status()));
}

// Counted when it is asked for, so it is what the nodes say now.
TEST_F(ClusterViewTest, ADriverIsWhatTheNodesRunOfItNow) {
  NodeView other = Node("c", {Plugin("p", "d")});
  other.other_machine = true;
  const std::vector<NodeView> nodes = {
      Node("a", {Plugin("p", "d"), Plugin("ctl", "d", "controller"), Plugin("n", "e", "node")}),
      Node("b", {Plugin("p", "d", "monolith", false)}),
      other,
      {.name = "gone", .instance_id = "i", .boot_id = "b", .version = ""}};
  v1::ListClusterPluginsResponse answer = ListPlugins({}, nodes);
  ASSERT_EQ(answer.plugins_size(), 2);
  const v1::ClusterPlugin& d = answer.plugins(0);
  EXPECT_EQ(d.driver(), "d");
  EXPECT_EQ(d.instances_size(), 3);
  EXPECT_EQ(d.controllers(), 3);
  EXPECT_EQ(d.controllers_ready(), 2);
  EXPECT_EQ(d.nodes(), 2);
  EXPECT_EQ(d.nodes_ready(), 1);
  EXPECT_THAT(d.versions(), ElementsAre("1.0"));
  EXPECT_EQ(answer.plugins(1).controllers(), 0) << "a node plugin has none, whatever it says";
  v1::ListClusterPluginsRequest one;
  one.set_driver("e");
  EXPECT_EQ(ListPlugins(one, nodes).plugins_size(), 1);
  one.set_driver("never");
  EXPECT_EQ(ListPlugins(one, nodes).plugins_size(), 0);
}

// Joins, restarts, plugins that come, go, fail and drain, at random: what is listed is what the nodes say
// now.
TEST_F(ClusterViewTest, DriversAreCountedByWhatTheNodesSayNowWhateverHappened) {
  std::mt19937 random(7);
  const auto any = [&random](uint32_t below) { return static_cast<uint32_t>(random() % below); };
  struct Machine {
    std::unique_ptr<NodeFacts> facts;  // null: away
    std::map<std::string, v1::Plugin> plugins;
  };
  std::map<std::string, Machine> machines;
  for (int step = 0; step < 2000; ++step) {
    const std::string name = "n" + std::to_string(any(4));
    Machine& machine = machines[name];
    const std::string id = "p" + std::to_string(any(3));
    v1::State changed;
    switch (any(4)) {
      case 0:  // its stream ends, or begins with everything it has
        if (machine.facts != nullptr) {
          machine.facts = nullptr;
          break;
        }
        machine.facts = std::make_unique<NodeFacts>();
        changed.set_full(true);
        changed.set_synced(true);
        for (const auto& [known, plugin] : machine.plugins) *changed.add_objects()->mutable_plugin() = plugin;
        break;
      case 1:
        machine.plugins.erase(id);
        changed.add_objects()->mutable_removed()->set_plugin_id(id);
        break;
      default: {
        constexpr const char* kKinds[] = {"node", "controller", "monolith"};
        v1::Plugin& plugin = machine.plugins[id];
        plugin = Plugin(id, "driver" + std::to_string(any(2)), kKinds[any(3)], any(3) != 0);
        plugin.set_draining(any(5) == 0);
        *changed.add_objects()->mutable_plugin() = plugin;
      }
    }
    if (machine.facts != nullptr) ASSERT_TRUE(machine.facts->Apply(changed).ok());

    std::vector<NodeView> views;
    std::map<std::string, std::array<std::set<std::string>, 4>> expected;
    for (const auto& [each, its] : machines) {
      views.push_back({.name = each, .connected = its.facts != nullptr, .facts = its.facts.get()});
      if (its.facts == nullptr) continue;
      for (const auto& [plugin_id, plugin] : its.plugins) {
        auto& counts = expected[plugin.fingerprint().driver_name()];
        const bool ready = plugin.state() == v1::READY && !plugin.draining();
        const bool controls = plugin.kind() != "node";
        const bool serves = plugin.kind() != "controller";
        if (controls) counts[0].insert(each + plugin_id);
        if (controls && ready) counts[1].insert(each + plugin_id);
        if (serves) counts[2].insert(each);
        if (serves && ready) counts[3].insert(each);
      }
    }
    const v1::ListClusterPluginsResponse listed = ListPlugins({}, views);
    ASSERT_EQ(static_cast<size_t>(listed.plugins_size()), expected.size());
    for (const v1::ClusterPlugin& driver : listed.plugins()) {
      const auto& counts = expected[driver.driver()];
      ASSERT_EQ(static_cast<size_t>(driver.controllers()), counts[0].size());
      ASSERT_EQ(static_cast<size_t>(driver.controllers_ready()), counts[1].size());
      ASSERT_EQ(static_cast<size_t>(driver.nodes()), counts[2].size());
      ASSERT_EQ(static_cast<size_t>(driver.nodes_ready()), counts[3].size());
    }
  }
}

}  // namespace
}  // namespace berth::scheduler
