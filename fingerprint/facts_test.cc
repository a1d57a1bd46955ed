#include "fingerprint/facts.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace berth {
namespace {

namespace csi = ::csi::v1;
using ControllerCapability = csi::ControllerServiceCapability::RPC;
using NodeCapability = csi::NodeServiceCapability::RPC;
using PluginService = csi::PluginCapability::Service;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr ExpectedServices kNode{.node = true, .controller = false};
constexpr ExpectedServices kController{.node = false, .controller = true};
constexpr ExpectedServices kMonolith{.node = true, .controller = true};

// A plugin that keeps all the rules and has a controller and a node.
PluginAnswers Good() {
  PluginAnswers answers;
  answers.info.set_name("csi.example.com");
  answers.info.set_vendor_version("1.2.3");
  (*answers.info.mutable_manifest())["commit"] = "abc";
  answers.plugin_capabilities.emplace();
  answers.plugin_capabilities->add_capabilities()->mutable_service()->set_type(
      PluginService::CONTROLLER_SERVICE);
  answers.plugin_capabilities->add_capabilities()->mutable_service()->set_type(
      PluginService::VOLUME_ACCESSIBILITY_CONSTRAINTS);
  answers.controller_capabilities.emplace();
  answers.controller_capabilities->add_capabilities()->mutable_rpc()->set_type(
      ControllerCapability::CREATE_DELETE_VOLUME);
  answers.node_capabilities.emplace();
  answers.node_capabilities->add_capabilities()->mutable_rpc()->set_type(
      NodeCapability::STAGE_UNSTAGE_VOLUME);
  answers.node_info.emplace();
  answers.node_info->set_node_id("node-1");
  answers.node_info->set_max_volumes_per_node(16);
  (*answers.node_info->mutable_accessible_topology()->mutable_segments())["example.com/zone"] = "z1";
  return answers;
}

PluginFacts Facts(const PluginAnswers& answers = Good(), ExpectedServices expected = kMonolith) {
  const auto checked = CheckAnswers(answers, expected);
  EXPECT_TRUE(checked.ok()) << checked.status();
  return checked.ok() ? checked->facts : PluginFacts();
}

std::vector<std::string> Warnings(const PluginAnswers& answers, ExpectedServices expected = kMonolith) {
  const auto checked = CheckAnswers(answers, expected);
  EXPECT_TRUE(checked.ok()) << checked.status();
  return checked.ok() ? checked->warnings : std::vector<std::string>();
}

std::string Refusal(const PluginAnswers& answers, ExpectedServices expected = kMonolith) {
  const auto checked = CheckAnswers(answers, expected);
  EXPECT_FALSE(checked.ok());
  return std::string(checked.status().message());
}

TEST(CheckAnswersTest, TakesAPluginThatKeepsTheRules) {
  const auto checked = CheckAnswers(Good(), kMonolith);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_THAT(checked->warnings, IsEmpty());
  const PluginFacts expected{
      .name = "csi.example.com",
      .vendor_version = "1.2.3",
      .manifest = {{"commit", "abc"}},
      .plugin_services = {PluginService::CONTROLLER_SERVICE, PluginService::VOLUME_ACCESSIBILITY_CONSTRAINTS},
      .controller_capabilities = {ControllerCapability::CREATE_DELETE_VOLUME},
      .node_capabilities = {NodeCapability::STAGE_UNSTAGE_VOLUME},
      .has_node_service = true,
      .node_id = "node-1",
      .max_volumes_per_node = 16,
      .topology = {{"example.com/zone", "z1"}},
  };
  EXPECT_EQ(checked->facts, expected) << testing::PrintToString(DiffFacts(expected, checked->facts));
}

TEST(CheckAnswersTest, NoMaxVolumesMeansNoLimit) {
  PluginAnswers answers = Good();
  answers.node_info->set_max_volumes_per_node(0);
  EXPECT_EQ(Facts(answers).max_volumes_per_node, std::nullopt);
  answers.node_info->set_max_volumes_per_node(-1);
  EXPECT_EQ(Refusal(answers), "NodeGetInfo: max_volumes_per_node is negative (-1)");
}

TEST(CheckAnswersTest, HoldsTheNameToTheFormOfADomainName) {
  for (const std::string& name : {std::string("a"), std::string("A9"), std::string("nfs.csi.k8s.io"),
                                  std::string("a--b..c"), std::string(63, 'x')}) {
    PluginAnswers answers = Good();
    answers.info.set_name(name);
    EXPECT_EQ(Facts(answers).name, name);
  }
  for (const std::string& name :
       {std::string("-a"), std::string("a."), std::string("a_b"), std::string("a/b"), std::string("a b"),
        std::string("ä"), std::string("a\0b", 3), std::string(64, 'x'), std::string("..")}) {
    PluginAnswers answers = Good();
    answers.info.set_name(name);
    EXPECT_THAT(Refusal(answers), HasSubstr("is not like a domain name")) << name;
  }
  PluginAnswers nameless = Good();
  nameless.info.clear_name();
  EXPECT_EQ(Refusal(nameless), "GetPluginInfo: the plugin gives no name");
}

TEST(CheckAnswersTest, AMissingOrLongVersionIsOnlyAWarning) {
  PluginAnswers answers = Good();
  answers.info.clear_vendor_version();
  EXPECT_THAT(Warnings(answers), ElementsAre("GetPluginInfo: vendor_version is empty"));
  answers.info.set_vendor_version(std::string(129, 'v'));
  EXPECT_THAT(Warnings(answers), ElementsAre("GetPluginInfo: vendor_version has 129 bytes, 128 are allowed"));
  answers.info.set_vendor_version(std::string(1 << 20, 'v'));
  EXPECT_EQ(Refusal(answers), "GetPluginInfo: vendor_version has 1048576 bytes");
}

TEST(CheckAnswersTest, BoundsMaps) {
  PluginAnswers answers = Good();
  (*answers.info.mutable_manifest())["k"] = std::string(5000, 'm');
  EXPECT_THAT(Warnings(answers), ElementsAre("GetPluginInfo: manifest has 5010 bytes, 4096 are allowed"));
  (*answers.info.mutable_manifest())["k"] = std::string(1 << 20, 'm');
  EXPECT_THAT(Refusal(answers), HasSubstr("manifest has 1048586 bytes"));

  answers = Good();
  (*answers.node_info->mutable_accessible_topology()->mutable_segments())["k"] = std::string(1 << 20, 'm');
  EXPECT_THAT(Refusal(answers), HasSubstr("accessible_topology has"));
}

TEST(CheckAnswersTest, TheNodeIdIsRequiredAndBounded) {
  PluginAnswers answers = Good();
  answers.node_info->clear_node_id();
  EXPECT_EQ(Refusal(answers), "NodeGetInfo: the plugin gives no node_id");
  answers.node_info->set_node_id(std::string(257, 'n'));
  EXPECT_EQ(Refusal(answers), "NodeGetInfo: node_id has 257 bytes, 256 are allowed");
  answers.node_info->set_node_id(std::string(256, 'n'));
  EXPECT_EQ(Facts(answers).node_id.size(), 256U);
}

TEST(CheckAnswersTest, KeepsCapabilitiesThatItDoesNotKnow) {
  PluginAnswers answers = Good();
  answers.node_capabilities->add_capabilities()->mutable_rpc()->set_type(
      static_cast<NodeCapability::Type>(77));
  answers.node_capabilities->add_capabilities();  // of a kind that is neither an RPC nor known
  EXPECT_THAT(Facts(answers).node_capabilities, ElementsAre(NodeCapability::STAGE_UNSTAGE_VOLUME, 77));
  EXPECT_THAT(Warnings(answers), IsEmpty());
}

TEST(CheckAnswersTest, DropsCapabilitiesOfTypeUnknown) {
  PluginAnswers answers = Good();
  answers.node_capabilities->add_capabilities()->mutable_rpc()->set_type(NodeCapability::UNKNOWN);
  EXPECT_THAT(Facts(answers).node_capabilities, ElementsAre(NodeCapability::STAGE_UNSTAGE_VOLUME));
  EXPECT_THAT(Warnings(answers), ElementsAre("NodeGetCapabilities: a capability of type UNKNOWN"));
}

TEST(CheckAnswersTest, RefusesMoreCapabilitiesThanThereCanBe) {
  PluginAnswers answers = Good();
  for (int i = 0; i < 1000; ++i) {
    answers.node_capabilities->add_capabilities()->mutable_rpc()->set_type(
        static_cast<NodeCapability::Type>(i));
  }
  EXPECT_EQ(Refusal(answers), "NodeGetCapabilities: 1001 capabilities, more than there can be");
}

TEST(CheckAnswersTest, WhatIsNotImplementedCountsAsNone) {
  PluginAnswers answers = Good();
  answers.plugin_capabilities.reset();
  answers.controller_capabilities.reset();
  answers.node_capabilities.reset();
  answers.node_info->clear_accessible_topology();
  const PluginFacts facts = Facts(answers);
  EXPECT_TRUE(facts.has_node_service);
  EXPECT_THAT(facts.node_capabilities, IsEmpty());
  EXPECT_THAT(Warnings(answers), ElementsAre("GetPluginCapabilities is not implemented: taken as none",
                                             "NodeGetCapabilities is not implemented: taken as none"));
}

TEST(CheckAnswersTest, AnAttachLessNodeMayLeaveOutNodeGetInfo) {
  PluginAnswers answers = Good();
  answers.node_info.reset();
  const PluginFacts facts = Facts(answers);
  EXPECT_TRUE(facts.has_node_service);
  EXPECT_EQ(facts.node_id, "");

  answers.controller_capabilities->add_capabilities()->mutable_rpc()->set_type(
      ControllerCapability::PUBLISH_UNPUBLISH_VOLUME);
  EXPECT_EQ(Refusal(answers),
            "NodeGetInfo: not implemented, though volumes of this plugin must be attached to a node");
}

TEST(CheckAnswersTest, ServesWhatItsFileSays) {
  PluginAnswers answers = Good();
  answers.node_capabilities.reset();
  answers.node_info.reset();
  EXPECT_THAT(Refusal(answers, kNode), HasSubstr("does not serve Node"));
  EXPECT_THAT(Refusal(answers, kMonolith), HasSubstr("does not serve Node"));
  EXPECT_FALSE(Facts(answers, kController).has_node_service);

  answers = Good();
  answers.controller_capabilities.reset();
  EXPECT_THAT(Refusal(answers, kController), HasSubstr("does not serve Controller"));
  EXPECT_THAT(Refusal(answers, kMonolith), HasSubstr("does not serve Controller"));
  EXPECT_TRUE(Facts(answers, kNode).HasController()) << "its controller runs elsewhere";

  answers.plugin_capabilities->clear_capabilities();
  EXPECT_THAT(Refusal(answers, kController), HasSubstr("has no CONTROLLER_SERVICE"));
  EXPECT_FALSE(Facts(answers, kMonolith).HasController()) << "a monolith may be a node alone";
}

TEST(CheckAnswersTest, AControllerAloneHasNothingOfANode) {
  const PluginFacts facts = Facts(Good(), kController);
  EXPECT_FALSE(facts.has_node_service);
  EXPECT_EQ(facts.node_id, "");
  EXPECT_THAT(facts.node_capabilities, IsEmpty());
}

TEST(CheckAnswersTest, WarnsOfTopologyThatBreaksTheRules) {
  const auto warnings = [](const std::map<std::string, std::string>& topology) {
    PluginAnswers answers = Good();
    auto& segments = *answers.node_info->mutable_accessible_topology()->mutable_segments();
    segments.clear();
    for (const auto& [key, value] : topology) segments[key] = value;
    return Warnings(answers);
  };
  EXPECT_THAT(warnings({{"zone", "z1"}, {"a.b/Rack_1.x", "R-3"}}), IsEmpty());
  EXPECT_THAT(warnings({{"", "z"}}), ElementsAre(HasSubstr("key \"\" is not of the form")));
  EXPECT_THAT(warnings({{"A.b/zone", "z"}}), ElementsAre(HasSubstr("is not of the form prefix/name")));
  EXPECT_THAT(warnings({{"a/b/c", "z"}}), ElementsAre(HasSubstr("is not of the form prefix/name")));
  EXPECT_THAT(warnings({{"/zone", "z"}}), ElementsAre(HasSubstr("is not of the form prefix/name")));
  EXPECT_THAT(warnings({{std::string(64, 'k'), "z"}}), ElementsAre(HasSubstr("is not of the form")));
  EXPECT_THAT(warnings({{"zone", ""}}), ElementsAre(HasSubstr("is not a name")));
  EXPECT_THAT(warnings({{"zone", "-z"}}), ElementsAre(HasSubstr("is not a name")));
  EXPECT_THAT(warnings({{"Zone", "z"}, {"zone", "z"}}), ElementsAre(HasSubstr("by case only: left out")));
  EXPECT_THAT(warnings({{"a/zone", "z"}, {"b/zone", "z"}}), ElementsAre(HasSubstr("more than one prefix")));
}

TEST(CheckAnswersTest, Fault59OfTopologyKeysThatDifferByCaseAloneOneCounts) {
  PluginAnswers answers = Good();
  auto& segments = *answers.node_info->mutable_accessible_topology()->mutable_segments();
  segments.clear();
  segments["a/Zone"] = "z1";
  segments["a/zone"] = "z2";
  segments["a/rack"] = "r";
  EXPECT_THAT(Facts(answers).topology,
              ElementsAre(testing::Pair("a/Zone", "z1"), testing::Pair("a/rack", "r")));
}

TEST(CheckAnswersTest, BoundsItsWarnings) {
  PluginAnswers answers = Good();
  for (int i = 0; i < 500; ++i) {
    (*answers.node_info->mutable_accessible_topology()->mutable_segments())[fmt::format("k{}", i)] = "-";
  }
  const std::vector<std::string> warnings = Warnings(answers);
  ASSERT_EQ(warnings.size(), 17U);
  EXPECT_EQ(warnings.back(), "and 484 more");
}

TEST(CheckAnswersTest, WarnsOfContradictions) {
  PluginAnswers answers = Good();
  answers.plugin_capabilities->clear_capabilities();
  answers.plugin_capabilities->add_capabilities()->mutable_volume_expansion()->set_type(
      csi::PluginCapability::VolumeExpansion::ONLINE);
  answers.controller_capabilities->add_capabilities()->mutable_rpc()->set_type(
      ControllerCapability::LIST_VOLUMES_PUBLISHED_NODES);
  EXPECT_THAT(Warnings(answers), ElementsAre(HasSubstr("neither controller nor node has EXPAND_VOLUME"),
                                             "LIST_VOLUMES_PUBLISHED_NODES without PUBLISH_UNPUBLISH_VOLUME",
                                             HasSubstr("VOLUME_ACCESSIBILITY_CONSTRAINTS is missing")));
}

TEST(CheckSuccessorTest, RefusesAnotherDriverAlways) {
  PluginFacts now = Facts();
  now.name = "other.example.com";
  for (const bool holds : {false, true}) {
    const absl::Status status = CheckSuccessor(Facts(), now, holds);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("from \"csi.example.com\" to \"other.example.com\""));
  }
}

TEST(CheckSuccessorTest, RefusesAnotherNodeIdOnlyWhileVolumesAreHeld) {
  PluginFacts now = Facts();
  now.node_id = "node-2";
  EXPECT_TRUE(CheckSuccessor(Facts(), now, false).ok());
  EXPECT_TRUE(MayLetGo(CheckSuccessor(Facts(), now, true)));
  now.node_id.clear();
  EXPECT_FALSE(CheckSuccessor(Facts(), now, true).ok());
}

TEST(CheckSuccessorTest, AcceptsAFirstNodeIdAndAnyOtherChange) {
  PluginFacts known = Facts();
  known.node_id.clear();
  EXPECT_TRUE(CheckSuccessor(known, Facts(), true).ok());

  PluginFacts now = Facts();
  now.vendor_version = "2";
  now.node_capabilities.clear();
  now.controller_capabilities.clear();
  now.topology.clear();
  now.max_volumes_per_node.reset();
  EXPECT_TRUE(CheckSuccessor(Facts(), now, true).ok());
}

TEST(DiffFactsTest, NamesEveryDifference) {
  EXPECT_THAT(DiffFacts(Facts(), Facts()), IsEmpty());
  PluginFacts now = Facts();
  now.name = "b";
  now.vendor_version = "2\n";
  now.manifest = {{"commit", "def"}, {"new", "1"}};
  now.plugin_services.erase(PluginService::VOLUME_ACCESSIBILITY_CONSTRAINTS);
  now.volume_expansion = {csi::PluginCapability::VolumeExpansion::ONLINE};
  now.controller_capabilities = {ControllerCapability::CLONE_VOLUME};
  now.node_capabilities = {NodeCapability::STAGE_UNSTAGE_VOLUME, 77};
  now.has_node_service = false;
  now.node_id = "node-2";
  now.max_volumes_per_node.reset();
  now.topology = {};
  EXPECT_THAT(
      DiffFacts(Facts(), now),
      ElementsAre(
          "driver name changed from \"csi.example.com\" to \"b\"",
          "vendor version changed from \"1.2.3\" to \"2\\x0a\"",
          "manifest entry \"commit\" changed from \"abc\" to \"def\"", "manifest entry \"new\" gained: \"1\"",
          "plugin service VOLUME_ACCESSIBILITY_CONSTRAINTS lost", "volume expansion ONLINE gained",
          "controller capability CLONE_VOLUME gained", "controller capability CREATE_DELETE_VOLUME lost",
          "node capability 77 gained", "node service lost", "node id changed from \"node-1\" to \"node-2\"",
          "max volumes changed from 16 to no limit", "topology key \"example.com/zone\" lost"));
}

TEST(ComputedClassTest, IsTheSameOnEqualNodesInAnyProcess) {
  PluginFacts other = Facts();
  other.node_id = "node-2";
  other.manifest = {{"built", "elsewhere"}};
  EXPECT_EQ(ComputedClass(Facts()), ComputedClass(other));
  // A scheduler stores it: another value here means that every node changes its class with this version.
  EXPECT_EQ(ComputedClass(Facts()), "8826578fd12a269dd88f537f0df30c74");
}

TEST(ComputedClassTest, DiffersWithEverythingThatMattersForPlacement) {
  std::vector<PluginFacts> all(12, Facts());
  all[1].name = "b";
  all[2].vendor_version = "2";
  all[3].plugin_services.insert(3);
  all[4].volume_expansion.insert(1);
  all[5].controller_capabilities.insert(4);
  all[6].node_capabilities.insert(3);
  all[7].has_node_service = false;
  all[8].max_volumes_per_node.reset();
  all[9].topology["example.com/rack"] = "r1";
  all[10].group_capabilities.insert(1);
  all[11].topology["example.com/zone"] = "z9";
  std::set<std::string> classes;
  for (const PluginFacts& facts : all) classes.insert(ComputedClass(facts));
  EXPECT_EQ(classes.size(), all.size());
}

TEST(ComputedClassTest, JoiningItsPartsDifferentlyGivesAnotherClass) {
  PluginFacts one;
  one.name = "ab";
  one.vendor_version = "c";
  PluginFacts other;
  other.name = "a";
  other.vendor_version = "bc";
  EXPECT_NE(ComputedClass(one), ComputedClass(other));
  one = other = PluginFacts();
  one.plugin_services = {1};
  other.volume_expansion = {1};
  EXPECT_NE(ComputedClass(one), ComputedClass(other));
  one = other = PluginFacts();
  one.node_capabilities = {1, 2};
  other.node_capabilities = {12};
  EXPECT_NE(ComputedClass(one), ComputedClass(other));
}

}  // namespace
}  // namespace berth
