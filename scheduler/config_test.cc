#include "scheduler/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "base/testing/temp_dir.h"

namespace berth::scheduler {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string MistakesIn(std::string_view content) {
  const auto config = ParseConfig("s.toml", content);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(SchedulerConfigTest, OnlyTheClustersNameIsNeeded) {
  const auto config = ParseConfig("s.toml", "cluster_id = \"prod\"");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->cluster_id, "prod");
  EXPECT_EQ(config->state_dir, "/var/lib/berth-scheduler");
  EXPECT_THAT(config->listen, ElementsAre("unix:/run/berth-scheduler/scheduler.sock"));
  EXPECT_THAT(MistakesIn(""), HasSubstr("cluster_id: is missing"));
}

TEST(SchedulerConfigTest, EverySettingIsRead) {
  const auto config = ParseConfig("s.toml", R"(
cluster_id = "c-1"
state_dir = "/s"
listen = ["unix:/run/x.sock", "127.0.0.1:7400", "[::1]:7400"]
log_level = "debug"
[lease]
heartbeat_interval = "500ms"
duration = "10s"
)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->state_dir, "/s");
  EXPECT_THAT(config->listen, ElementsAre("unix:/run/x.sock", "127.0.0.1:7400", "[::1]:7400"));
  EXPECT_EQ(config->log_level, "debug");
  EXPECT_EQ(config->lease, (LeaseSettings{.heartbeat_interval = std::chrono::milliseconds(500),
                                          .duration = std::chrono::seconds(10)}));
}

TEST(SchedulerConfigTest, AllMistakesAreNamedAtOnceWithTheirLines) {
  EXPECT_THAT(MistakesIn(R"(cluster_id = "two words"
state_dirs = "/s"
listen = ["0.0.0.0:7400", "unix:relative"]
[lease]
heartbeat_interval = "2m"
)"),
              AllOf(HasSubstr("s.toml:1: cluster_id: must be 1 to 128 bytes, without blanks"),
                    HasSubstr("s.toml:2: state_dirs"), HasSubstr("did you mean state_dir"),
                    HasSubstr("s.toml:3: listen: \"0.0.0.0:7400\": must be an address of this machine alone"),
                    HasSubstr("s.toml:3: listen: \"unix:relative\": the path after"),
                    HasSubstr("s.toml:5: lease.heartbeat_interval: must be 100ms to 1m")));
  EXPECT_THAT(MistakesIn("cluster_id = \"c\"\nlisten = []\n"), HasSubstr("name at least one address"));
  EXPECT_THAT(MistakesIn("cluster_id = \"c\"\nlisten = [\"unix:/a\", \"unix:/a\"]\n"),
              HasSubstr("is there twice"));
  EXPECT_THAT(MistakesIn("cluster_id = \"c\"\n[lease]\nduration = \"9s\"\n"),
              HasSubstr("9s must be at least 2 times heartbeat_interval, 5s"));
}

TEST(SchedulerConfigTest, NobodyFromOutsideIsServed) {
  for (const char* address : {"127.0.0.1:1", "127.9.9.9:65535", "[::1]:7400", "unix:/run/s"}) {
    EXPECT_EQ(MistakeInAddress(address), "") << address;
  }
  for (const char* address :
       {"10.0.0.1:7400", "[::]:7400", "[::ffff:127.0.0.1]:7400", "localhost:7400", "127.0.0.1:0",
        "127.0.0.1:65536", "127.0.0.1", ":7400", "", "unix:", "unix:x"}) {
    EXPECT_NE(MistakeInAddress(address), "") << address;
  }
  EXPECT_NE(MistakeInAddress("unix:/" + std::string(200, 'x')), "");
}

TEST(SchedulerConfigTest, TheCommandLineGoesFirst) {
  const TempDir directory;
  const std::string file = directory.path() + "/s.toml";
  std::ofstream(file) << "cluster_id = \"c\"\nstate_dir = \"/from-file\"\nlog_level = \"debug\"\n";
  auto config = LoadConfig({.config_file = file, .state_dir = "/given", .log_level = std::nullopt});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->state_dir, "/given");
  EXPECT_EQ(config->log_level, "debug");
  config = LoadConfig({.config_file = file, .state_dir = "given", .log_level = std::nullopt});
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("\"given\" is not an absolute path"));
  config = LoadConfig({.config_file = file, .state_dir = std::nullopt, .log_level = "loud"});
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("log_level"));
}

TEST(SchedulerConfigTest, AStartThatCannotSucceedIsToldFromOneThatMay) {
  EXPECT_EQ(ExitOf(LoadConfig({.config_file = "/nowhere/s.toml"}).status()), Exit::kConfiguration);
  EXPECT_EQ(ExitOf(ParseConfig("s.toml", "=").status()), Exit::kConfiguration);
  EXPECT_EQ(ExitOf(absl::ResourceExhaustedError("no space")), Exit::kFailed);
}

// The file that is installed shows every setting with its default.
TEST(SchedulerConfigTest, TheInstalledFileNamesEverySettingAndItsDefault) {
  const auto content = ReadFile(SCHEDULER_TOML, 65536);
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_THAT(MistakesIn(*content), HasSubstr("cluster_id: is missing"))
      << "the installed file names no cluster";
  std::string all = *content;
  for (size_t at = all.find("\n#"); at != std::string::npos; at = all.find("\n#", at + 1)) {
    if (all[at + 2] != ' ' && all[at + 2] != '\n') all.erase(at + 1, 1);
  }
  const auto config = ParseConfig("scheduler.toml", all);
  ASSERT_TRUE(config.ok()) << config.status() << all;
  const Config defaults;
  EXPECT_EQ(config->state_dir, defaults.state_dir);
  EXPECT_EQ(config->listen, defaults.listen);
  EXPECT_EQ(config->log_level, defaults.log_level);
  EXPECT_EQ(config->lease, defaults.lease);
}

}  // namespace
}  // namespace berth::scheduler
