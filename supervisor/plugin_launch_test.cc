#include "supervisor/plugin_launch.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <sys/resource.h>

#include <functional>
#include <set>

#include "base/status.h"
#include "base/testing/run_on.h"
#include "base/testing/temp_dir.h"
#include "supervisor/testing/plugin_files.h"

namespace berth {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

class PluginLaunchTest : public ::testing::Test {
 protected:
  PluginConfig Good(const std::string& content) const {
    absl::StatusOr<PluginConfig> config = ParsePluginFile("/etc/berth/plugins.d/nfs.toml", content, paths_);
    if (!config.ok()) {
      ADD_FAILURE() << config.status();
      abort();
    }
    return *std::move(config);
  }

  TempDir temp_;
  PluginPaths paths_{
      .runtime_dir = "/run/berth", .state_dir = "/var/lib/berth", .node_id = "node-1", .credentials_dir = ""};
};

TEST_F(PluginLaunchTest, ArgumentsAreExpanded) {
  const PluginConfig config = Good(
      "kind = \"node\"\ncommand = [\"/bin/true\", \"${CSI_ENDPOINT}\", \"--s=${CSI_SOCKET}\", "
      "\"${BERTH_NODE_ID}\", \"${BERTH_PLUGIN_DIR}\", \"$$x\"]\n");
  EXPECT_THAT(*PluginArguments(config, paths_),
              ElementsAre("unix:///run/berth/plugins/nfs/csi.sock", "--s=/run/berth/plugins/nfs/csi.sock",
                          "node-1", "/var/lib/berth/plugins/nfs", "$x"));
}

TEST_F(PluginLaunchTest, EnvironmentIsReadAtLaunchAndStripped) {
  temp_.Write("token", "geheim\r\n");
  temp_.Write("key", "two\nlines\n\n");
  paths_.credentials_dir = temp_.path();
  const PluginConfig config =
      Good(fmt::format("{}[env]\nTOKEN = {{file = \"{}\"}}\nKEY = {{credential = \"key\"}}\nHOME = "
                       "\"/root\"\nD = \"${{CREDENTIALS_DIRECTORY}}\"\n",
                       kLeastPluginFile, temp_.Path("token")));
  EXPECT_THAT(
      *PluginEnvironment(config, paths_),
      ElementsAre("BERTH_NODE_ID=node-1", "BERTH_PLUGIN_DIR=/var/lib/berth/plugins/nfs",
                  "CSI_ENDPOINT=unix:///run/berth/plugins/nfs/csi.sock", "D=" + temp_.path(), "HOME=/root",
                  "KEY=two\nlines\n", "LANG=C.UTF-8",
                  "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TOKEN=geheim"));
  // A file that has gone since is an error that names it.
  temp_.Remove("token");
  const absl::Status status = PluginEnvironment(config, paths_).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("nfs.toml: env.TOKEN"), HasSubstr(temp_.Path("token"))));
}

TEST_F(PluginLaunchTest, ErrorsHoldNoSecret) {
  temp_.Write("token", std::string("geheim\0geheim", 13));
  const PluginConfig config =
      Good(fmt::format("{}[env]\nTOKEN = {{file = \"{}\"}}\n", kLeastPluginFile, temp_.Path("token")));
  const absl::Status status = PluginEnvironment(config, paths_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("geheim")));
}

TEST_F(PluginLaunchTest, WhatCouldNotBeLaunchedIsKnownBefore) {
  const auto attempt = [this](const std::string& content) {
    asio::io_context loop;
    return std::string(
        RunOn(loop, TryPluginLaunch(Good(content), paths_, Clock::now() + seconds(10))).message());
  };
  EXPECT_EQ(attempt(kLeastPluginFile), "");
  EXPECT_THAT(attempt("kind = \"node\"\ncommand = \"/nonexistent\"\n"),
              HasSubstr("execute /nonexistent: No such file"));
  EXPECT_EQ(attempt("kind = \"node\"\nenabled = false\ncommand = \"/nonexistent\"\n"), "");
  EXPECT_EQ(attempt("kind = \"node\"\nsocket = \"/nonexistent\"\n"), "");
  EXPECT_THAT(attempt(std::string(kLeastPluginFile) + "[env]\nA = {file = \"/nonexistent\"}\n"),
              AllOf(HasSubstr("nfs.toml: env.A: "), HasSubstr("/nonexistent: No such file")));
  paths_.credentials_dir = temp_.path();
  EXPECT_THAT(attempt(std::string(kLeastPluginFile) + "[env]\nA = {credential = \"token\"}\n"),
              AllOf(HasSubstr("env.A: "), HasSubstr("/token: No such file")));
  EXPECT_THAT(attempt("kind = \"controller\"\ncommand = \"/bin/true\"\nuser = \"no-such-user\"\n"),
              HasSubstr("no such user"));
}

TEST_F(PluginLaunchTest, SecretsAreToldApart) {
  temp_.Write("token", "geheim\n");
  const PluginConfig config = Good(fmt::format("{}[env]\nTOKEN = {{file = \"{}\"}}\nPLAIN = \"offen\"\n",
                                               kLeastPluginFile, temp_.Path("token")));
  const absl::StatusOr<PluginLaunch> launch = MakePluginLaunch(config, paths_);
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_THAT(launch->secrets, ElementsAre("geheim"));
  EXPECT_THAT(launch->spec.environment, IsSupersetOf({"TOKEN=geheim", "PLAIN=offen"}));
}

TEST_F(PluginLaunchTest, WithoutAUserItIsBerthdsOwn) {
  const absl::StatusOr<std::optional<ProcessUser>> user = PluginUser(Good(kLeastPluginFile));
  ASSERT_TRUE(user.ok());
  EXPECT_FALSE(user->has_value());
}

TEST_F(PluginLaunchTest, NamesOfUsersAndGroupsAreLookedUp) {
  const passwd* nobody = getpwnam("nobody");
  const group* disk = getgrnam("disk");
  ASSERT_TRUE(nobody != nullptr && disk != nullptr);
  PluginConfig config = Good(kLeastPluginFile);
  config.user.user = "nobody";
  absl::StatusOr<std::optional<ProcessUser>> user = PluginUser(config);
  ASSERT_TRUE(user.ok() && user->has_value()) << user.status();
  EXPECT_EQ((*user)->uid, nobody->pw_uid);
  EXPECT_EQ((*user)->gid, nobody->pw_gid);
  EXPECT_THAT((*user)->groups, ElementsAre(nobody->pw_gid));

  config.user.group = "disk";
  config.user.supplementary_groups = {"54321", "disk"};
  user = PluginUser(config);
  ASSERT_TRUE(user.ok() && user->has_value()) << user.status();
  EXPECT_EQ((*user)->gid, disk->gr_gid);
  EXPECT_THAT((*user)->groups, ElementsAre(disk->gr_gid, 54321));

  // A number without a user here.
  config = Good(kLeastPluginFile);
  config.user.user = "65111";
  user = PluginUser(config);
  ASSERT_TRUE(user.ok() && user->has_value()) << user.status();
  EXPECT_EQ((*user)->uid, 65111U);
  EXPECT_EQ((*user)->gid, 65111U);
}

TEST_F(PluginLaunchTest, UnknownNamesAreNamedWithFileAndKey) {
  PluginConfig config = Good(kLeastPluginFile);
  config.user.user = "no-such-user";
  absl::Status status = PluginUser(config).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(MessageOf(status),
            "/etc/berth/plugins.d/nfs.toml: user: \"no-such-user\": no such user on this node");
  config = Good(kLeastPluginFile);
  config.user.supplementary_groups = {"no-such-group"};
  status = MakePluginLaunch(config, paths_).status();
  EXPECT_EQ(MessageOf(status),
            "/etc/berth/plugins.d/nfs.toml: supplementary_groups: \"no-such-group\": no such group on this "
            "node");
}

TEST_F(PluginLaunchTest, TheFilesWordReachesTheProcess) {
  const PluginConfig config = Good(
      "kind = \"controller\"\ncommand = [\"/bin/echo\", \"a\"]\ncapability_bounding_set = [\"CAP_CHOWN\"]\n"
      "ambient_capabilities = [\"CAP_CHOWN\"]\nno_new_privileges = true\numask = \"0077\"\n"
      "working_directory = \"${BERTH_PLUGIN_DIR}\"\n[rlimits]\nnofile = 7\n");
  const absl::StatusOr<PluginLaunch> launch = MakePluginLaunch(config, paths_);
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->spec.executable, "/bin/echo");
  EXPECT_THAT(launch->spec.arguments, ElementsAre("a"));
  EXPECT_EQ(launch->spec.capability_bounding_set, 1U);
  EXPECT_EQ(launch->spec.ambient_capabilities, 1U);
  EXPECT_TRUE(launch->spec.no_new_privileges);
  EXPECT_EQ(launch->spec.umask, 0077U);
  EXPECT_EQ(launch->spec.working_directory, "/var/lib/berth/plugins/nfs");
  EXPECT_THAT(launch->spec.resource_limits,
              ElementsAre(ResourceLimit{.resource = RLIMIT_NOFILE, .soft = 7, .hard = 7}));
}

TEST_F(PluginLaunchTest, FingerprintDiffersWhereANewProcessIsNeeded) {
  const PluginConfig config = Good(kLeastPluginFile);
  const std::string before = LaunchFingerprint(config, paths_);
  const std::vector<std::function<void(PluginConfig*)>> needs_one = {
      [](PluginConfig* c) { c->command = "/bin/false"; },
      [](PluginConfig* c) { c->arguments = {"a", "b"}; },
      [](PluginConfig* c) { c->arguments = {"ab"}; },
      [](PluginConfig* c) { c->environment["A"] = {EnvironmentValue::Source::kText, "x"}; },
      [](PluginConfig* c) { c->environment["A"] = {EnvironmentValue::Source::kFile, "x"}; },
      [](PluginConfig* c) { c->volumes_path = "/v"; },
      [](PluginConfig* c) { c->user.user = "nobody"; },
      [](PluginConfig* c) { c->user.group = "nobody"; },
      [](PluginConfig* c) { c->user.supplementary_groups = {"disk"}; },
      [](PluginConfig* c) { c->user.capability_bounding_set = 0; },
      [](PluginConfig* c) { c->user.ambient_capabilities = 1; },
      [](PluginConfig* c) { c->user.no_new_privileges = true; },
      [](PluginConfig* c) { c->user.umask = 0; },
      [](PluginConfig* c) { c->user.working_directory = "/tmp"; },
      [](PluginConfig* c) { c->rlimits = {{.resource = RLIMIT_CORE, .soft = 0, .hard = 0}}; },
      [](PluginConfig* c) { c->limits.memory_max = 1; },
      [](PluginConfig* c) { c->limits.pids_max = 1; },
      [](PluginConfig* c) { c->limits.cpus = 1; },
  };
  std::set<std::string> seen = {before};
  for (size_t i = 0; i < needs_one.size(); ++i) {
    PluginConfig changed = config;
    needs_one[i](&changed);
    EXPECT_TRUE(seen.insert(LaunchFingerprint(changed, paths_)).second) << "change " << i;
  }
  PluginPaths elsewhere = paths_;
  elsewhere.node_id = "node-2";
  EXPECT_NE(LaunchFingerprint(config, elsewhere), before);

  PluginConfig same = config;
  same.file = "/elsewhere";
  same.health.interval = seconds(1);
  same.restart.burst = 1;
  same.log.rate = 1;
  same.start_timeout = seconds(1);
  same.stop_timeout = seconds(1);
  same.children = ChildrenPolicy::kKeep;
  same.serves_mounts = true;
  same.enabled = false;
  EXPECT_EQ(LaunchFingerprint(same, paths_), before);
}

}  // namespace
}  // namespace berth
