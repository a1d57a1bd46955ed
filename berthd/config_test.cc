#include "berthd/config.h"

#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <pwd.h>

#include <fstream>

#include "base/testing/from_text.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

AclEntry User(uint32_t id) { return {.kind = AclEntry::Kind::kUser, .id = id}; }
AclEntry Group(uint32_t id) { return {.kind = AclEntry::Kind::kGroup, .id = id}; }

TEST(BerthdConfigTest, AnEmptyFileIsTheDefaults) {
  const auto config = ParseBerthdConfig("berthd.toml", "");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->state_dir, "/var/lib/berth");
  EXPECT_FALSE(config->access.read.has_value());
}

TEST(BerthdConfigTest, EverySettingIsRead) {
  const auto config = ParseBerthdConfig("berthd.toml", R"(
node_id = "n1"
state_dir = "/s"
runtime_dir = "/r"
log_level = "debug"
[access]
read_group = "staff"
change_group = 990
claim_group = "jobs"
[volumes]
health_interval = "0s"
rpc_timeout = "10m"
calls_per_plugin = 4
shutdown_timeout = "20s"
traverse = ["user:nobody", "user:1234", "group:daemon", "group:1234"]
)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->node_id, "n1");
  EXPECT_EQ(config->state_dir, "/s");
  EXPECT_EQ(config->runtime_dir, "/r");
  EXPECT_EQ(config->log_level, "debug");
  EXPECT_EQ(config->access.read->group, "staff");
  EXPECT_EQ(config->access.change->group, "990");
  EXPECT_EQ(config->access.claim->group, "jobs");
  EXPECT_EQ(config->access.read->where, "berthd.toml:7: access.read_group");
  EXPECT_EQ(config->volumes, (VolumeSettings{.health_interval = Duration::zero(),
                                             .rpc_timeout = std::chrono::minutes(10),
                                             .calls_per_plugin = 4,
                                             .shutdown_timeout = std::chrono::seconds(20),
                                             .traverse = {User(getpwnam("nobody")->pw_uid), User(1234),
                                                          Group(getgrnam("daemon")->gr_gid), Group(1234)}}));
}

TEST(BerthdConfigTest, RuntimesSayWhatTheyCanUseAndElseEverything) {
  const auto config = ParseBerthdConfig("b.toml", R"(
[[runtime]]
name = "podman"
[[runtime]]
name = "vm"
mount = false
readonly = false
fs_types = ["ext4", "xfs"]
)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->runtimes,
              ElementsAre(FromText<RuntimeAbility>("name: 'podman' mount: true block: true readonly: true"),
                          FromText<RuntimeAbility>("name: 'vm' block: true fs_types: ['ext4', 'xfs']")));
}

TEST(BerthdConfigTest, EveryMistakeOfARuntimeIsNamed) {
  const auto config = ParseBerthdConfig("b.toml",
                                        "[[runtime]]\n"
                                        "name = \"a\"\n"
                                        "mount = 1\n"
                                        "[[runtime]]\n"
                                        "name = \"a\"\n"
                                        "fs_types = [\"ext 4\"]\n"
                                        "[[runtime]]\n"
                                        "mount = false\n"
                                        "block = false\n"
                                        "raw = true\n");
  EXPECT_THAT(std::string(config.status().message()),
              AllOf(HasSubstr("b.toml:3: runtime.mount: is an integer"),
                    HasSubstr("b.toml:4: runtime.name: \"a\" is the name of another one already"),
                    HasSubstr("b.toml:6: runtime.fs_types: \"ext 4\" is no type of a file system"),
                    HasSubstr("b.toml:7: runtime.name: is missing"),
                    HasSubstr("b.toml:7: runtime: can use neither mount nor block"),
                    HasSubstr("b.toml:10: runtime.raw: unknown key")));
  EXPECT_THAT(std::string(ParseBerthdConfig("b.toml", "runtime = \"podman\"").status().message()),
              HasSubstr("b.toml:1: runtime: is a string, and must be a table for each runtime: [[runtime]]"));
}

TEST(BerthdConfigTest, VolumesSettingsAreChecked) {
  const auto config = ParseBerthdConfig("b.toml",
                                        "[volumes]\n"
                                        "health_interval = \"10ms\"\n"
                                        "rpc_timeout = \"0s\"\n"
                                        "calls_per_plugin = 0\n"
                                        "colour = 1\n");
  EXPECT_THAT(
      std::string(config.status().message()),
      AllOf(HasSubstr("b.toml:2: volumes.health_interval: must be at least 1s, or 0s for never"),
            HasSubstr("b.toml:3: volumes.rpc_timeout"), HasSubstr("b.toml:4: volumes.calls_per_plugin"),
            HasSubstr("b.toml:5: volumes.colour: unknown key")));
  EXPECT_THAT(
      std::string(ParseBerthdConfig("b.toml", "[volumes]\nshutdown_timeout = \"10ms\"").status().message()),
      HasSubstr("b.toml:2: volumes.shutdown_timeout: must be at least 1s"));
  EXPECT_THAT(
      std::string(ParseBerthdConfig("b.toml", "[volumes]\nrpc_timeout = \"999ms\"").status().message()),
      HasSubstr("b.toml:2: volumes.rpc_timeout: must be at least 1s"));
}

TEST(BerthdConfigTest, WhoeverIsNamedToPassThroughTheTreeIsKnownHere) {
  const auto config = ParseBerthdConfig("b.toml",
                                        "[volumes]\n"
                                        "traverse = [\"user:no-such-user\",\n"
                                        "  \"group:no-such-group\",\n"
                                        "  \"nobody\", \"*\",\n"
                                        "  \"user:-1\", \"group:\"]\n");
  EXPECT_THAT(std::string(config.status().message()),
              AllOf(HasSubstr("b.toml:2: volumes.traverse: \"user:no-such-user\": there is no user"),
                    HasSubstr("b.toml:3: volumes.traverse: \"group:no-such-group\": there is no group"),
                    HasSubstr("b.toml:4: volumes.traverse: \"nobody\": must be user:NAME"),
                    HasSubstr("b.toml:4: volumes.traverse: \"*\": must be user:NAME"),
                    HasSubstr("b.toml:5: volumes.traverse: \"user:-1\""),
                    HasSubstr("b.toml:5: volumes.traverse: \"group:\"")));
  EXPECT_THAT(
      std::string(ParseBerthdConfig("b.toml", "[volumes]\ntraverse = \"user:nobody\"").status().message()),
      HasSubstr("b.toml:2: volumes.traverse"));
}

TEST(BerthdConfigTest, TheSchedulerIsRead) {
  const auto config = ParseBerthdConfig("berthd.toml", R"(
[scheduler]
addresses = ["s1.example:7443", "[2001:db8::1]:7443"]
identities = ["s1.example", "spiffe://example/scheduler"]
ca = "/etc/berth/tls/ca.pem"
certificate = "/etc/berth/tls/node.pem"
key = "/etc/berth/tls/node.key"
crl = "/etc/berth/tls/crl.pem"
on_lease_expiry = "release"
may = ["volumes", "node"]
)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->scheduler.addresses,
              ElementsAre(*ParseUplinkAddress("s1.example:7443"), *ParseUplinkAddress("[2001:db8::1]:7443")));
  EXPECT_THAT(config->scheduler.identities, ElementsAre("s1.example", "spiffe://example/scheduler"));
  EXPECT_EQ(config->scheduler.files, (TlsFiles{.ca = "/etc/berth/tls/ca.pem",
                                               .certificate = "/etc/berth/tls/node.pem",
                                               .key = "/etc/berth/tls/node.key",
                                               .crl = "/etc/berth/tls/crl.pem"}));
  EXPECT_EQ(config->scheduler.on_lease_expiry, v1::RELEASE);
  EXPECT_THAT(config->scheduler.may, ElementsAre(v1::NodeState::VOLUMES, v1::NodeState::NODE));
}

TEST(BerthdConfigTest, ASchedulerMayOnlyWorkOnVolumesUnlessItIsAllowedMore) {
  const auto may = [](const std::string& line) {
    return ParseBerthdConfig("b.toml", "[scheduler]\naddresses = [\"unix:/run/s.sock\"]\n" + line)
        ->scheduler.may;
  };
  EXPECT_THAT(may(""), ElementsAre(v1::NodeState::VOLUMES));
  EXPECT_THAT(may("may = []\n"), testing::IsEmpty());
  EXPECT_THAT(may("may = [\"plugins\"]\n"), ElementsAre(v1::NodeState::PLUGINS));
}

TEST(BerthdConfigTest, WithoutASchedulerNoneIsDialledAndLeasesKeep) {
  const auto config = ParseBerthdConfig("berthd.toml", "");
  ASSERT_TRUE(config.ok());
  EXPECT_FALSE(config->scheduler.wanted());
  EXPECT_EQ(config->scheduler.on_lease_expiry, v1::KEEP);
}

TEST(BerthdConfigTest, ASchedulerOnAUnixSocketNeedsNoCertificates) {
  const auto config = ParseBerthdConfig("b.toml", "[scheduler]\naddresses = [\"unix:/run/s.sock\"]\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->scheduler.addresses.at(0).is_unix());
}

TEST(BerthdConfigTest, EveryMistakeInTheSchedulerIsNamed) {
  const auto mistakes = [](const std::string& content) {
    return std::string(ParseBerthdConfig("b.toml", "[scheduler]\n" + content).status().message());
  };
  EXPECT_THAT(mistakes("addresses = [\"unix:/s\",\n\"s1\"]\nidentities = [\"*.example\"]\nca = \"ca.pem\"\n"
                       "on_lease_expiry = \"wait\"\ncolour = 1\nmay = [\"volumes\", \"root\"]\n"),
              AllOf(HasSubstr("b.toml:3: scheduler.addresses: \"s1\" has no port"),
                    HasSubstr("b.toml:4: scheduler.identities: \"*.example\" must be one name"),
                    HasSubstr("b.toml:5: scheduler.ca: must be an absolute path"),
                    HasSubstr("b.toml:6: scheduler.on_lease_expiry"),
                    HasSubstr("b.toml:7: scheduler.colour: unknown key"),
                    HasSubstr("b.toml:8: scheduler.may: \"root\" is not possible; there are \"volumes\"")));
  EXPECT_THAT(mistakes("addresses = [\"s1:1\"]\n"),
              AllOf(HasSubstr("scheduler.identities: is missing"), HasSubstr("scheduler.ca: is missing"),
                    HasSubstr("scheduler.certificate: is missing"), HasSubstr("scheduler.key: is missing")));
  EXPECT_THAT(mistakes("addresses = [\"unix:/s\"]\nidentities = []\n"),
              HasSubstr("b.toml:3: scheduler.identities: must name at least one"));
  EXPECT_THAT(mistakes("identities = [\"a b\", \"\"]\n"),
              AllOf(HasSubstr("scheduler.addresses: must name at least one address"),
                    HasSubstr("\"a b\" must be plain ASCII"), HasSubstr("must have 1 to 2048 bytes")));
  EXPECT_THAT(mistakes("addresses = []\n"), HasSubstr("must name at least one address"));
  std::string many = "addresses = [";
  for (int i = 0; i < 17; ++i) many += "\"unix:/s\",";
  EXPECT_THAT(mistakes(many + "]\n"), HasSubstr("scheduler.addresses: has more than 16 entries"));
}

// Each of its settings is behind a '#' and no space.
TEST(BerthdConfigTest, TheFileThatIsInstalledShowsValidSettings) {
  std::ifstream file(BERTHD_TOML);
  std::string content;
  for (std::string line; std::getline(file, line);) {
    if (line.size() > 1 && line[0] == '#' && line[1] != ' ') content += line.substr(1) + "\n";
  }
  const auto config = ParseBerthdConfig("berthd.toml", content);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->volumes, VolumeSettings{});
  EXPECT_TRUE(config->scheduler.wanted());
  EXPECT_EQ(config->scheduler.on_lease_expiry, UplinkConfig{}.on_lease_expiry);
}

TEST(BerthdConfigTest, OnlyTheCommandLineAllowsPrivateMounts) {
  EXPECT_FALSE(LoadBerthdConfig({.config_dir = "/nonexistent"})->allow_private_mounts);
  EXPECT_TRUE(
      LoadBerthdConfig({.config_dir = "/nonexistent", .allow_private_mounts = true})->allow_private_mounts);
  EXPECT_FALSE(ParseBerthdConfig("b.toml", "allow_private_mounts = true").ok());
}

TEST(BerthdConfigTest, MistakesNameFileLineAndKey) {
  const auto config =
      ParseBerthdConfig("/etc/berth/berthd.toml", "nodeid = \"x\"\n[access]\nread_grup = 1\n");
  EXPECT_EQ(config.status().message(),
            "/etc/berth/berthd.toml:1: nodeid: unknown key; did you mean node_id?\n"
            "/etc/berth/berthd.toml:3: access.read_grup: unknown key; did you mean access.read_group?");
}

TEST(BerthdConfigTest, AGroupIsANameOrANumber) {
  for (const std::string wrong : {"-1", "4294967295", "true", "[\"a\"]"}) {
    EXPECT_FALSE(ParseBerthdConfig("b.toml", "[access]\nread_group = " + wrong + "\n").ok()) << wrong;
  }
}

TEST(BerthdConfigTest, TheCommandLineWinsAndAMissingFileIsNoError) {
  const auto config =
      LoadBerthdConfig({.config_dir = "/nonexistent", .state_dir = "/elsewhere", .node_id = "me"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->state_dir, "/elsewhere");
  EXPECT_EQ(config->node_id, "me");
  EXPECT_EQ(config->runtime_dir, "/run/berth");
}

TEST(BerthdConfigTest, WithoutANodeIdItIsTheHostsName) {
  const auto config = LoadBerthdConfig({.config_dir = "/nonexistent"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->node_id.empty());
}

TEST(BerthdConfigTest, WhatCannotWorkIsRefused) {
  const auto refused = [](BerthdOptions options) {
    options.config_dir = "/nonexistent";
    return std::string(LoadBerthdConfig(options).status().message());
  };
  EXPECT_THAT(refused({.state_dir = "here"}), HasSubstr("state_dir"));
  EXPECT_THAT(refused({.runtime_dir = "/" + std::string(120, 'x')}), HasSubstr("runtime_dir"));
  EXPECT_THAT(refused({.node_id = "a\nb"}), HasSubstr("node_id"));
  EXPECT_THAT(refused({.node_id = "a\xff"}), HasSubstr("node_id: \"a\\xff\" is not valid UTF-8"));
  EXPECT_THAT(refused({.state_dir = "/a\xff"}), HasSubstr("state_dir: \"/a\\xff\" is not valid UTF-8"));
  EXPECT_THAT(refused({.node_id = std::string(193, 'n')}), HasSubstr("node_id"));
}

TEST(BerthdConfigTest, WhatCannotBeTakenOverIsNamed) {
  BerthdConfig now;
  now.node_id = "n1";
  BerthdConfig wanted = now;
  wanted.log_level = "debug";
  wanted.sockets = {{.right = Right::kRead, .group = 7}};
  wanted.volumes.shutdown_timeout = std::chrono::seconds(5);
  EXPECT_THAT(NeedsRestart(now, wanted), testing::IsEmpty());
  wanted.node_id = "n2";
  wanted.state_dir = "/s";
  wanted.runtime_dir = "/r";
  wanted.volumes.health_interval = std::chrono::minutes(1);
  wanted.volumes.rpc_timeout = std::chrono::minutes(5);
  wanted.volumes.calls_per_plugin = 1;
  wanted.scheduler.on_lease_expiry = v1::RELEASE;
  EXPECT_THAT(
      NeedsRestart(now, wanted),
      ElementsAre(
          "/etc/berth/berthd.toml: node_id: \"n2\" takes a restart of berthd; it runs with \"n1\"",
          HasSubstr("state_dir: \"/s\""), HasSubstr("runtime_dir: \"/r\""),
          HasSubstr("volumes.health_interval: \"1m\" takes a restart of berthd; it runs with \"30s\""),
          HasSubstr("volumes.rpc_timeout: \"5m\""), HasSubstr("volumes.calls_per_plugin: \"1\""),
          HasSubstr("scheduler: what has changed there takes a restart")));
}

}  // namespace
}  // namespace berth
