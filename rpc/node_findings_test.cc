#include "rpc/node_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mounter/volume_advice.h"

namespace berth {
namespace {

using Severity = Finding::Severity;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr TimePoint kNow = TimePoint(std::chrono::hours(1));

PluginSnapshot Plugin(PluginState state, const std::string& reason = "") {
  PluginSnapshot plugin;
  plugin.id = "nfs";
  plugin.state = state;
  plugin.since = kNow - std::chrono::minutes(10);
  plugin.registered = state == PluginState::kReady;
  plugin.reason = reason;
  plugin.config_file = "/etc/berth/plugins.d/nfs.toml";
  return plugin;
}

// "ERROR plugin.failed", each.
std::vector<std::string> Codes(const std::vector<Finding>& findings) {
  std::vector<std::string> codes;
  for (const Finding& finding : findings) {
    const char* const severity = finding.severity == Severity::kError     ? "ERROR "
                                 : finding.severity == Severity::kWarning ? "WARNING "
                                                                          : "INFO ";
    codes.push_back(severity + finding.code);
  }
  return codes;
}

TEST(NodeFindingsTest, EachStateOfAPluginThatIsWrongIsAFinding) {
  EXPECT_THAT(FindingsOf(Plugin(PluginState::kReady), 3, kNow), IsEmpty());
  EXPECT_THAT(Codes(FindingsOf(Plugin(PluginState::kFailed), 0, kNow)), ElementsAre("ERROR plugin.failed"));
  EXPECT_THAT(Codes(FindingsOf(Plugin(PluginState::kUnhealthy), 0, kNow)),
              ElementsAre("WARNING plugin.unhealthy"));
  EXPECT_THAT(Codes(FindingsOf(Plugin(PluginState::kBackingOff), 0, kNow)),
              ElementsAre("WARNING plugin.backing_off"));
  PluginSnapshot refused = Plugin(PluginState::kReady, "another name");
  refused.registered = false;
  EXPECT_THAT(Codes(FindingsOf(refused, 0, kNow)), ElementsAre("ERROR plugin.refused"));
}

TEST(NodeFindingsTest, WhatWasAskedForIsNoProblem) {
  EXPECT_THAT(FindingsOf(Plugin(PluginState::kStopped, "stopped on request"), 0, kNow), IsEmpty());
  EXPECT_THAT(Codes(FindingsOf(Plugin(PluginState::kDraining), 2, kNow)),
              ElementsAre("INFO plugin.draining"));
  v1::NodeDrain drain;
  drain.set_reason("a new disk");
  EXPECT_EQ(FindingOf(drain).severity, Severity::kInfo);
  EXPECT_THAT(FindingOf(drain).text, HasSubstr("a new disk"));
}

TEST(NodeFindingsTest, AStoppedPluginThatVolumesNeedIsAFinding) {
  const std::vector<Finding> findings = FindingsOf(Plugin(PluginState::kStopped), 2, kNow);
  EXPECT_THAT(Codes(findings), ElementsAre("WARNING plugin.stopped"));
  EXPECT_THAT(findings[0].text, HasSubstr("2 volumes in use through it"));
  EXPECT_EQ(findings[0].advice, "berthctl plugin start nfs");
}

TEST(NodeFindingsTest, AStartIsInProgressUntilItsTimeIsOver) {
  PluginSnapshot plugin = Plugin(PluginState::kStarting);
  plugin.start_timeout = std::chrono::seconds(30);
  plugin.since = kNow - std::chrono::seconds(29);
  EXPECT_THAT(Codes(FindingsOf(plugin, 0, kNow)), ElementsAre("INFO plugin.starting"));
  plugin.since = kNow - std::chrono::seconds(30);
  EXPECT_THAT(Codes(FindingsOf(plugin, 0, kNow)), ElementsAre("WARNING plugin.late"));
  plugin.paused = true;
  EXPECT_THAT(Codes(FindingsOf(plugin, 0, kNow)), ElementsAre("INFO plugin.starting"))
      << "it is being swapped";
}

TEST(NodeFindingsTest, ABrokenFileIsAFindingWhateverThePluginDoes) {
  PluginSnapshot plugin = Plugin(PluginState::kReady);
  plugin.file_error = "nfs.toml:4: colour: unknown key";
  const std::vector<Finding> findings = FindingsOf(plugin, 0, kNow);
  EXPECT_THAT(Codes(findings), ElementsAre("WARNING plugin.file"));
  EXPECT_EQ(findings[0].advice, "correct /etc/berth/plugins.d/nfs.toml, then: berthctl reload");
}

TEST(NodeFindingsTest, TheNextCommandSuitsWhatFailed) {
  PluginSnapshot plugin = Plugin(PluginState::kFailed);
  EXPECT_THAT(FindingsOf(plugin, 0, kNow)[0].advice, HasSubstr("correct /etc/berth/plugins.d/nfs.toml"));
  plugin.started_at = WallTime() + std::chrono::seconds(1);
  EXPECT_EQ(FindingsOf(plugin, 0, kNow)[0].advice,
            "berthctl plugin logs nfs; then: berthctl plugin start nfs");
}

TEST(NodeFindingsTest, AnErrorOfSomethingThatHasCometoItsEndIsSettled) {
  VolumeView volume;
  volume.plugin_id = "nfs";
  volume.volume_id = "it's";
  volume.stage_state = StageState::kStaged;
  volume.publications.push_back(
      {.consumer = "web", .state = PublicationState::kPublished, .last_error = "too slow at first"});
  volume.last_error = "too slow at first";
  EXPECT_THAT(FindingsOf(volume), IsEmpty());
  volume.publications[0].state = PublicationState::kPublishing;
  EXPECT_THAT(Codes(FindingsOf(volume)), ElementsAre("WARNING volume.failing"));
  EXPECT_EQ(FindingsOf(volume)[0].advice, AdviceFor(volume));
  volume.publications[0].dead = "ENOTCONN";
  EXPECT_THAT(Codes(FindingsOf(volume)), ElementsAre("WARNING volume.failing", "ERROR mount.dead"));
}

TEST(NodeFindingsTest, AStepThatIsMerelyRepeatedIsNoProblem) {
  VolumeView volume;
  volume.publications.push_back({.consumer = "web", .uncertain = true});
  volume.uncertain = true;
  EXPECT_THAT(Codes(FindingsOf(volume)), ElementsAre("INFO volume.uncertain"));
  volume.last_error = "DEADLINE_EXCEEDED";
  EXPECT_THAT(Codes(FindingsOf(volume)), ElementsAre("WARNING volume.uncertain"));
}

TEST(NodeFindingsTest, ADeclaredVolumeMayWaitForAPluginThatStarts) {
  DeclaredView file{.file = "/etc/berth/volumes.d/db.toml", .state = "waiting", .last_error = "not ready"};
  EXPECT_THAT(Codes(FindingsOf(file, "nfs", true)), ElementsAre("INFO declared.pending"));
  EXPECT_THAT(Codes(FindingsOf(file, "nfs", false)), ElementsAre("WARNING declared.pending"));
  file.error_in_file = "db.toml:1: x\ndb.toml:2: y\n";
  EXPECT_THAT(Codes(FindingsOf(file, "nfs", true)),
              ElementsAre("WARNING declared.broken", "WARNING declared.broken"));

  PluginMap plugins;
  plugins["nfs"] = Plugin(PluginState::kStarting);
  plugins["nfs"].since = kNow;
  EXPECT_TRUE(WaitsForStart(plugins, "nfs", kNow));
  EXPECT_TRUE(WaitsForStart(plugins, "nfs.csi.example", kNow)) << "it may be of that driver";
  plugins["nfs"].facts = PluginFacts{.name = "other.example"};
  EXPECT_FALSE(WaitsForStart(plugins, "nfs.csi.example", kNow));
  EXPECT_FALSE(WaitsForStart(plugins, "nfs", kNow + std::chrono::minutes(1)));
}

TEST(NodeFindingsTest, TheWorstFindingDecides) {
  Finding info{.severity = Severity::kInfo};
  Finding warning{.severity = Severity::kWarning};
  Finding error{.severity = Severity::kError, .code = "x"};
  EXPECT_EQ(HealthOf({}), v1::HEALTHY);
  EXPECT_EQ(HealthOf({info}), v1::HEALTHY);
  EXPECT_EQ(HealthOf({info, warning}), v1::DEGRADED);
  EXPECT_EQ(HealthOf({info, error, warning}), v1::FAILING);
  std::vector<Finding> findings = {info, warning, error, warning};
  SortFindings(&findings, 2);
  EXPECT_THAT(Codes(findings), ElementsAre("ERROR x", "WARNING ", "WARNING findings.more"));
  EXPECT_EQ(findings[2].text, "and 2 more");
}

}  // namespace
}  // namespace berth
