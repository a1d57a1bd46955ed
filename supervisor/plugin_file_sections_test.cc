// The tables of a plugin file, through the whole file.
#include "supervisor/plugin_file_sections.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "supervisor/kernel_names.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class PluginFileSectionsTest : public ::testing::Test {
 protected:
  // Lines from the third on.
  absl::StatusOr<PluginConfig> Parse(const std::string& lines, const std::string& kind = "node") const {
    return ParsePluginFile("x.toml", fmt::format("kind = \"{}\"\ncommand = \"/bin/true\"\n{}", kind, lines),
                           paths_);
  }
  PluginConfig Good(const std::string& lines, const std::string& kind = "node") const {
    absl::StatusOr<PluginConfig> config = Parse(lines, kind);
    if (!config.ok()) {
      ADD_FAILURE() << config.status();
      abort();
    }
    return *std::move(config);
  }
  std::string Error(const std::string& lines, const std::string& kind = "node") const {
    const absl::Status status = Parse(lines, kind).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << lines;
    return std::string(status.message());
  }

  PluginPaths paths_{
      .runtime_dir = "/run/berth", .state_dir = "/var/lib/berth", .node_id = "node-1", .credentials_dir = ""};
};

TEST_F(PluginFileSectionsTest, TokensSayForWhomAndWhere) {
  EXPECT_THAT(Good("").tokens, ElementsAre());
  const PluginConfig config = Good(
      "[[token]]\naudience = \"vault\"\nname = \"a\"\n"
      "[[token]]\naudience = \"s3\"\nname = \"a\"\nin = \"volume_context\"\nrepublish = true\n");
  EXPECT_THAT(config.tokens, ElementsAre(WantedToken{.audience = "vault", .name = "a"},
                                         WantedToken{.audience = "s3",
                                                     .name = "a",
                                                     .place = WantedToken::Place::kVolumeContext,
                                                     .republish = true}));
}

TEST_F(PluginFileSectionsTest, TokensInKubernetesFormHaveOneNameAndMayBeSeveral) {
  const std::string sts = "[[token]]\naudience = \"sts\"\nform = \"kubernetes\"\n";
  const PluginConfig config =
      Good("pod_info = true\n" + sts + "[[token]]\naudience = \"vault\"\nform = \"kubernetes\"\n");
  EXPECT_TRUE(config.pod_info);
  ASSERT_EQ(config.tokens.size(), 2U);
  for (const WantedToken& token : config.tokens) {
    EXPECT_TRUE(token.kubernetes);
    EXPECT_EQ(token.name, "csi.storage.k8s.io/serviceAccount.tokens");
  }
  EXPECT_THAT(Error("[[token]]\naudience = \"a\"\nname = \"n\"\nform = \"json\"\n"),
              HasSubstr("token.form: \"json\""));
  EXPECT_THAT(Error(sts + "name = \"mine\"\n"), HasSubstr("token.name: not with form"));
}

TEST_F(PluginFileSectionsTest, EveryMistakeOfATokenIsNamed) {
  const std::string token = "[[token]]\naudience = \"vault\"\nname = \"a\"\n";
  EXPECT_THAT(Error(token + token),
              AllOf(HasSubstr("x.toml:6: token.audience: is the same as in another token"),
                    HasSubstr("x.toml:6: token.name: is the same as in another token for the same map")));
  EXPECT_THAT(
      Error("[[token]]\nname = \"\"\nin = \"env\"\n"),
      AllOf(HasSubstr("x.toml:3: token.audience: is missing"),
            HasSubstr("x.toml:4: token.name: must be 1 to"), HasSubstr("x.toml:5: token.in: \"env\"")));
  EXPECT_THAT(Error("token = 1\n"),
              HasSubstr("x.toml:3: token: is an integer, and must be a table for each"));
  EXPECT_THAT(Error(token, "controller"), HasSubstr("token: is only for plugins that publish volumes"));
}

TEST_F(PluginFileSectionsTest, LimitsOfThePlace) {
  EXPECT_EQ(Good("[limits]\nmemory = \"2GB\"\n").limits.memory_max, 2'000'000'000U);
  EXPECT_EQ(Good("[limits]\nmemory = 1048576\n").limits.memory_max, 1048576U);
  EXPECT_EQ(Good("[limits]\ncpus = 2\n").limits.cpus, 2.0);
  EXPECT_EQ(Good("[limits]\n").limits, CgroupLimits());
  EXPECT_THAT(Error("[limits]\nmemory = \"512\"\n"),
              AllOf(HasSubstr("x.toml:4: limits.memory: must be a size"), HasSubstr("\"512MiB\"")));
  EXPECT_THAT(Error("[limits]\nmemory = 4096\n"), HasSubstr("at least 1MiB"));
  EXPECT_THAT(Error("[limits]\nmemory = true\n"), HasSubstr("is true or false, and must be a size"));
  EXPECT_THAT(Error("[limits]\npids = 0\n"), HasSubstr("limits.pids: must be from 1"));
  EXPECT_THAT(Error("[limits]\npids = \"many\"\n"), HasSubstr("must be an integer"));
  for (const char* cpus : {"0", "-1.0", "0.0", "1e9", "nan", "inf"}) {
    EXPECT_THAT(Error(fmt::format("[limits]\ncpus = {}\n", cpus)), HasSubstr("limits.cpus: must be from"))
        << cpus;
  }
  EXPECT_THAT(Error("[limits]\ncpus = \"1\"\n"), HasSubstr("must be a number of processors"));
  EXPECT_THAT(Error("[limits]\ncpu = 1\n"), HasSubstr("did you mean limits.cpus?"));
}

TEST_F(PluginFileSectionsTest, EveryResourceMayBeLimited) {
  for (const ResourceName& name : ResourceNames()) {
    const PluginConfig config =
        Good(fmt::format("[rlimits]\n{0} = {{soft = 1, hard = \"unlimited\"}}\n", name.name));
    EXPECT_THAT(config.rlimits,
                ElementsAre(ResourceLimit{.resource = name.resource, .soft = 1, .hard = RLIM_INFINITY}))
        << name.name;
  }
}

TEST_F(PluginFileSectionsTest, ResourceLimitsAreNumbersSizesOrUnlimited) {
  EXPECT_THAT(Good("[rlimits]\nmemlock = \"8MiB\"\n").rlimits,
              ElementsAre(ResourceLimit{
                  .resource = RLIMIT_MEMLOCK, .soft = uint64_t{8} << 20U, .hard = uint64_t{8} << 20U}));
  EXPECT_THAT(
      Good("[rlimits]\nstack = \"unlimited\"\n").rlimits,
      ElementsAre(ResourceLimit{.resource = RLIMIT_STACK, .soft = RLIM_INFINITY, .hard = RLIM_INFINITY}));
  EXPECT_THAT(Error("[rlimits]\nnofile = \"8MiB\"\n"),
              HasSubstr("x.toml:4: rlimits.nofile: must be a whole number, or \"unlimited\""));
  EXPECT_THAT(Error("[rlimits]\nnofile = -1\n"), HasSubstr("rlimits.nofile: must be"));
  EXPECT_THAT(Error("[rlimits]\nnofile = 1.5\n"), HasSubstr("rlimits.nofile: is a number with a fraction"));
  EXPECT_THAT(Error("[rlimits]\nnofile = {soft = 1}\n"), HasSubstr("must have both soft and hard"));
  EXPECT_THAT(Error("[rlimits]\nnofile = {soft = 2, hard = 1}\n"),
              HasSubstr("rlimits.nofile.soft: is above the hard limit"));
  EXPECT_THAT(Error("[rlimits]\nnofile = {soft = 1, hard = 2, max = 3}\n"),
              HasSubstr("rlimits.nofile.max: unknown key"));
  EXPECT_THAT(Error("[rlimits]\nnofiles = 1\n"), HasSubstr("did you mean rlimits.nofile?"));
  EXPECT_THAT(Error("[rlimits]\nNOFILE = 1\n"), HasSubstr("rlimits.NOFILE: unknown key"));
}

TEST_F(PluginFileSectionsTest, LogLimits) {
  EXPECT_EQ(Good("[log]\n").log, LogLimits());
  EXPECT_EQ(Good("[log]\nrate = 0\n").log.rate, 0U);
  EXPECT_THAT(Error("[log]\nmax_line = 10\n"), HasSubstr("log.max_line: must be"));
  EXPECT_THAT(Error("[log]\nmax_line = \"65KiB\"\n"), HasSubstr("and at most 64KiB"));
  EXPECT_THAT(Error("[log]\nrate = -1\n"), HasSubstr("log.rate: must be from 0"));
  EXPECT_THAT(Error("[log]\nburst = 0\n"), HasSubstr("log.burst: must be from 1"));
  EXPECT_THAT(Error("[log]\nkeep = \"1kB\"\n"), HasSubstr("log.keep: must be"));
  EXPECT_THAT(Error("[log]\nmax_unread = \"1B\"\n"), HasSubstr("log.max_unread: must be"));
  EXPECT_THAT(Error("[log]\njournal = \"yes\"\n"), HasSubstr("log.journal: is a string"));
}

TEST_F(PluginFileSectionsTest, ReplacementMayBeTurnedOff) {
  EXPECT_EQ(Good("[health]\nreplace_after = 0\n").health.replace_after, Duration::zero());
  EXPECT_EQ(Good("").health.restart_after_hung_call, Duration::zero())
      << "never, unless the file asks for it";
  EXPECT_EQ(Good("[health]\nrestart_after_hung_call = \"5m\"\n").health.restart_after_hung_call,
            std::chrono::minutes(5));
  EXPECT_THAT(Error("[health]\nreplace_window = \"0s\"\n"), HasSubstr("above zero"));
  EXPECT_THAT(Error("[health]\nreplace_after = \"never\"\n"),
              AllOf(HasSubstr("health.replace_after: must be a duration"), Not(HasSubstr("above zero"))));
}

TEST_F(PluginFileSectionsTest, ChoicesAreNamed) {
  EXPECT_THAT(Error("children = \"stay\"\n"),
              HasSubstr("x.toml:3: children: \"stay\" is not possible; it must be \"end\" or \"keep\""));
  EXPECT_THAT(Error("children = 1\n"), HasSubstr("x.toml:3: children: is an integer, and must be a string"));
}

TEST_F(PluginFileSectionsTest, UmaskIsOctalText) {
  EXPECT_EQ(Good("umask = \"0\"\n").user.umask, 0U);
  EXPECT_EQ(Good("umask = \"0777\"\n").user.umask, 0777U);
  for (const char* umask : {"\"\"", "\"0800\"", "\"1000\"", "\"22x\"", "\"-1\""}) {
    EXPECT_THAT(Error(fmt::format("umask = {}\n", umask)), HasSubstr("umask: must be an octal number"))
        << umask;
  }
  // Without quotes it would be the decimal 22.
  EXPECT_THAT(Error("umask = 22\n"),
              HasSubstr("umask: is an integer, and must be an octal number in quotes"));
}

TEST_F(PluginFileSectionsTest, CapabilitiesAreCheckedAgainstTheKernels) {
  EXPECT_THAT(Error("ambient_capabilities = [\"CAP_SYS_ADMN\"]\n"),
              HasSubstr("x.toml:3: ambient_capabilities: \"CAP_SYS_ADMN\" is no capability"));
  EXPECT_THAT(Error("ambient_capabilities = \"CAP_SYS_ADMIN\"\n"), HasSubstr("must be an array"));
  EXPECT_EQ(Good("capability_bounding_set = []\n", "controller").user.capability_bounding_set, 0U);
  EXPECT_EQ(Good("").user.capability_bounding_set, std::nullopt);
  EXPECT_THAT(Error("capability_bounding_set = [\"CAP_CHOWN\"]\nambient_capabilities = [\"CAP_KILL\"]\n",
                    "controller"),
              HasSubstr("x.toml:4: ambient_capabilities: CAP_KILL must be in capability_bounding_set too"));
}

TEST_F(PluginFileSectionsTest, NodePluginsKeepSysAdmin) {
  for (const char* kind : {"node", "monolith"}) {
    EXPECT_THAT(Error("capability_bounding_set = [\"CAP_CHOWN\"]\n", kind),
                AllOf(HasSubstr("x.toml:3: capability_bounding_set: a plugin of kind"),
                      HasSubstr("needs CAP_SYS_ADMIN, which this set takes away")));
    EXPECT_THAT(Error("user = \"nobody\"\n", kind),
                AllOf(HasSubstr("x.toml:3: user: a plugin of kind"),
                      HasSubstr("add ambient_capabilities = [\"CAP_SYS_ADMIN\"]")));
    Good("capability_bounding_set = [\"cap_sys_admin\"]\n", kind);
    Good("user = \"nobody\"\nambient_capabilities = [\"CAP_SYS_ADMIN\"]\n", kind);
    Good("user = \"root\"\n", kind);
    Good("user = 0\ngroup = \"disk\"\n", kind);
  }
  Good("user = \"nobody\"\ncapability_bounding_set = []\n", "controller");
}

TEST_F(PluginFileSectionsTest, UsersAndGroupsAreNamesOrNumbers) {
  EXPECT_EQ(Good("user = 1000\n", "controller").user.user, "1000");
  EXPECT_THAT(Error("user = \"\"\n", "controller"), HasSubstr("user: must not be empty"));
  EXPECT_THAT(Error("user = -1\n", "controller"), HasSubstr("user: -1 is no user's or group's number"));
  EXPECT_THAT(Error("group = 4294967295\n", "controller"), HasSubstr("is no user's or group's number"));
  EXPECT_THAT(Error("supplementary_groups = [true]\n"),
              HasSubstr("supplementary_groups[0]: is true or false"));
  EXPECT_THAT(Error("supplementary_groups = \"disk\"\n"), HasSubstr("must be an array of groups"));
}

TEST_F(PluginFileSectionsTest, WorkingDirectoryIsAbsoluteOnceExpanded) {
  EXPECT_EQ(Good("working_directory = \"${BERTH_PLUGIN_DIR}/x\"\n").user.working_directory,
            "${BERTH_PLUGIN_DIR}/x");
  EXPECT_THAT(Error("working_directory = \"x\"\n"), HasSubstr("\"x\" must be an absolute path"));
  EXPECT_THAT(Error("working_directory = \"${X}\"\n"), HasSubstr("unknown variable ${X}"));
}

}  // namespace
}  // namespace berth
