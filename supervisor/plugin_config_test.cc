#include "supervisor/plugin_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <regex>

#include "base/file.h"
#include "base/testing/temp_dir.h"
#include "supervisor/testing/plugin_files.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class PluginConfigTest : public ::testing::Test {
 protected:
  absl::StatusOr<PluginConfig> Parse(const std::string& content) const {
    return ParsePluginFile("/etc/berth/plugins.d/nfs.toml", content, paths_);
  }
  PluginConfig Good(const std::string& content) const {
    absl::StatusOr<PluginConfig> config = Parse(content);
    if (!config.ok()) {
      ADD_FAILURE() << config.status();
      abort();
    }
    return *std::move(config);
  }
  std::string Error(const std::string& content) const {
    const absl::Status status = Parse(content).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  TempDir temp_;
  PluginPaths paths_{
      .runtime_dir = "/run/berth", .state_dir = "/var/lib/berth", .node_id = "node-1", .credentials_dir = ""};
};

TEST_F(PluginConfigTest, LeastFileHasTheDefaults) {
  const PluginConfig config = Good(kLeastPluginFile);
  PluginConfig expected;
  expected.file = "/etc/berth/plugins.d/nfs.toml";
  expected.id = "nfs";
  expected.kind = PluginKind::kNode;
  expected.command = "/bin/true";
  EXPECT_EQ(config, expected);
  EXPECT_EQ(config.start_timeout, seconds(30));
  EXPECT_EQ(config.restart.mode, RestartMode::kAlways);
}

TEST_F(PluginConfigTest, EveryKeyIsRead) {
  temp_.Write("token", "geheim\n");
  const PluginConfig config = Good(fmt::format(R"(
id = "nfs-1.a_b"
kind = "controller"
enabled = false
command = "/bin/sh"
args = ["-c", "echo ${{CSI_SOCKET}} $$HOME"]
start_timeout = "500ms"
stop_timeout = 7
volumes_path = "/csi/volumes"
user = "nobody"
group = 12
supplementary_groups = ["disk", 44]
capability_bounding_set = ["CAP_SYS_ADMIN", "cap_mknod"]
ambient_capabilities = ["CAP_SYS_ADMIN"]
no_new_privileges = true
umask = "0077"
working_directory = "${{BERTH_PLUGIN_DIR}}"
children = "keep"
serves_mounts = true
[limits]
memory = "512MiB"
pids = 256
cpus = 1.5
[rlimits]
nofile = 65536
core = {{soft = 0, hard = "unlimited"}}
[log]
max_line = "8KiB"
rate = 5
burst = 6
keep = "2MiB"
max_unread = "3MiB"
journal = false
[env]
PLAIN = "x ${{BERTH_NODE_ID}}"
TOKEN = {{file = "{}"}}
[health]
interval = "2m"
timeout = "3s"
failures = 5
fingerprint_interval = "1h"
replace_after = "0s"
replace_burst = 2
replace_window = "3h"
[restart]
policy = "on-failure"
initial_backoff = "10ms"
max_backoff = "20ms"
burst = 4
window = "1m"
stable_after = "5s"
)",
                                               temp_.Path("token")));
  EXPECT_EQ(config.id, "nfs-1.a_b");
  EXPECT_EQ(config.kind, PluginKind::kController);
  EXPECT_FALSE(config.enabled);
  EXPECT_EQ(config.command, "/bin/sh");
  EXPECT_THAT(config.arguments, ElementsAre("-c", "echo ${CSI_SOCKET} $$HOME"));
  EXPECT_EQ(config.start_timeout, milliseconds(500));
  EXPECT_EQ(config.stop_timeout, seconds(7));
  EXPECT_EQ(config.environment.at("PLAIN"),
            (EnvironmentValue{EnvironmentValue::Source::kText, "x ${BERTH_NODE_ID}"}));
  EXPECT_EQ(config.environment.at("TOKEN"),
            (EnvironmentValue{EnvironmentValue::Source::kFile, temp_.Path("token")}));
  EXPECT_EQ(config.health.interval, minutes(2));
  EXPECT_EQ(config.health.timeout, seconds(3));
  EXPECT_EQ(config.health.failures, 5);
  EXPECT_EQ(config.health.fingerprint_interval, minutes(60));
  EXPECT_EQ(config.health.replace_after, seconds(0));
  EXPECT_EQ(config.health.replace_burst, 2);
  EXPECT_EQ(config.health.replace_window, minutes(180));
  EXPECT_EQ(config.volumes_path, "/csi/volumes");
  const PluginUserConfig user{.user = "nobody",
                              .group = "12",
                              .supplementary_groups = {"disk", "44"},
                              .capability_bounding_set = uint64_t{1} << 21U | uint64_t{1} << 27U,
                              .ambient_capabilities = uint64_t{1} << 21U,
                              .no_new_privileges = true,
                              .umask = 0077,
                              .working_directory = "${BERTH_PLUGIN_DIR}"};
  EXPECT_EQ(config.user, user);
  EXPECT_EQ(config.children, ChildrenPolicy::kKeep);
  EXPECT_TRUE(config.serves_mounts);
  const CgroupLimits limits{.memory_max = uint64_t{512} << 20U, .pids_max = 256, .cpus = 1.5};
  EXPECT_EQ(config.limits, limits);
  EXPECT_THAT(config.rlimits,
              ElementsAre(ResourceLimit{.resource = RLIMIT_CORE, .soft = 0, .hard = RLIM_INFINITY},
                          ResourceLimit{.resource = RLIMIT_NOFILE, .soft = 65536, .hard = 65536}));
  const LogLimits log{.max_line = uint64_t{8} << 10U,
                      .rate = 5,
                      .burst = 6,
                      .keep = uint64_t{2} << 20U,
                      .max_unread = uint64_t{3} << 20U,
                      .journal = false};
  EXPECT_EQ(config.log, log);
  EXPECT_EQ(config.restart.mode, RestartMode::kOnFailure);
  EXPECT_EQ(config.restart.initial_backoff, milliseconds(10));
  EXPECT_EQ(config.restart.max_backoff, milliseconds(20));
  EXPECT_EQ(config.restart.burst, 4);
  EXPECT_EQ(config.restart.window, minutes(1));
  EXPECT_EQ(config.restart.stable_after, seconds(5));
}

TEST_F(PluginConfigTest, CommandMayBeOneArray) {
  const PluginConfig config =
      Good("kind = \"node\"\ncommand = [\"/bin/echo\", \"a\", \"${CSI_ENDPOINT}\"]\n");
  EXPECT_EQ(config.command, "/bin/echo");
  EXPECT_THAT(config.arguments, ElementsAre("a", "${CSI_ENDPOINT}"));
  EXPECT_THAT(Error("kind = \"node\"\ncommand = [\"/bin/echo\"]\nargs = [\"a\"]\n"),
              HasSubstr("nfs.toml:3: args:"));
  EXPECT_THAT(Error("kind = \"node\"\ncommand = []\n"), HasSubstr("nfs.toml:2: command: is empty"));
}

TEST_F(PluginConfigTest, ExampleFileIsValidAndItsCommentsShowTheDefaults) {
  const absl::StatusOr<std::string> example =
      ReadFile(std::string(SUPERVISOR_SOURCE_DIR) + "/example-plugin.toml", 100'000);
  ASSERT_TRUE(example.ok()) << example.status();
  const std::string here = std::regex_replace(*example, std::regex("/usr/bin/berth-hostpath"), "/bin/true");
  const PluginConfig as_is = Good(here);
  EXPECT_EQ(as_is.command, "/bin/true");
  // Uncommented, every key is valid, and equals its default.
  std::string all = std::regex_replace(here, std::regex("(^|\n)#(?=[a-z_]+ = |\\[)"), "$1");
  all = std::regex_replace(all, std::regex("\n#(LOG_LEVEL|STATE) = "), "\n$1 = ");
  all = std::regex_replace(all, std::regex("\nsocket = [^\n]*"), "");
  PluginConfig uncommented = Good(all);
  EXPECT_EQ(uncommented.id, "example-plugin");
  EXPECT_EQ(uncommented.environment.size(), 2U);
  // The examples, which are no defaults.
  EXPECT_EQ(uncommented.volumes_path, "/csi/volumes");
  EXPECT_EQ(uncommented.limits.memory_max, uint64_t{512} << 20U);
  EXPECT_EQ(uncommented.rlimits.size(), 2U);
  EXPECT_TRUE(uncommented.user.capability_bounding_set.has_value());
  uncommented.id = as_is.id;
  uncommented.environment = as_is.environment;
  uncommented.volumes_path = as_is.volumes_path;
  uncommented.limits = as_is.limits;
  uncommented.rlimits = as_is.rlimits;
  EXPECT_EQ(uncommented.tokens.size(), 1U);
  uncommented.tokens = as_is.tokens;
  uncommented.user.user = as_is.user.user;
  uncommented.user.group = as_is.user.group;
  uncommented.user.supplementary_groups = as_is.user.supplementary_groups;
  uncommented.user.capability_bounding_set = as_is.user.capability_bounding_set;
  EXPECT_EQ(uncommented.user.working_directory, "/");
  uncommented.user.working_directory = as_is.user.working_directory;
  EXPECT_EQ(uncommented, as_is);
}

TEST_F(PluginConfigTest, ExampleFileAndManualShowEveryKey) {
  const std::string sources = SUPERVISOR_SOURCE_DIR;
  const absl::StatusOr<std::string> example = ReadFile(sources + "/example-plugin.toml", 100'000);
  ASSERT_TRUE(example.ok()) << example.status();
  const absl::StatusOr<std::string> manual = ReadFile(sources + "/../docs/man/berth-plugin.toml.5", 100'000);
  ASSERT_TRUE(manual.ok()) << manual.status();
  // An unknown key is answered with those there are.
  const std::regex known("unknown key; there are ([a-z_, ]+)");
  const std::regex word("[a-z_]+");
  size_t keys = 0;
  for (const char* table :
       {"", "[limits]\n", "[rlimits]\n", "[log]\n", "[health]\n", "[restart]\n", "[[token]]\n"}) {
    const std::string error = Error(fmt::format("{}{}qqqqqqqqqqqqqqqq = 1\n", kLeastPluginFile, table));
    std::smatch match;
    ASSERT_TRUE(std::regex_search(error, match, known)) << error;
    const std::string list = match[1];
    for (std::sregex_iterator i(list.begin(), list.end(), word), end; i != end; ++i) {
      const std::string key = i->str();
      ++keys;
      EXPECT_TRUE(std::regex_search(*manual, std::regex("Cm .*\\b" + key + "\\b|Ss \\[+" + key + "\\]")))
          << key;
      // Of the resources two stand for all.
      if (std::string_view(table) == "[rlimits]\n") continue;
      EXPECT_TRUE(std::regex_search(*example, std::regex("(^|\n)#?(" + key + " = |\\[+" + key + "\\]+\n)")))
          << key;
    }
  }
  EXPECT_GT(keys, 60U);
}

TEST_F(PluginConfigTest, UnknownKeyIsNamedWithTheNearest) {
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "comand = \"x\"\n"),
              HasSubstr("nfs.toml:3: comand: unknown key; did you mean command?"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "colour = \"red\"\n"),
              HasSubstr("nfs.toml:3: colour: unknown key; there are id, kind"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "[restart]\nbursts = 3\n"),
              HasSubstr("nfs.toml:4: restart.bursts: unknown key; did you mean restart.burst?"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "[env]\nA = {fil = \"/x\"}\n"),
              HasSubstr("env.A.fil: unknown key"));
}

TEST_F(PluginConfigTest, WrongTypesSayWhatWouldBeRight) {
  EXPECT_THAT(Error("kind = 3\ncommand = \"/bin/true\"\n"),
              HasSubstr("nfs.toml:1: kind: is an integer, and must be a string"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "enabled = \"yes\"\n"),
              HasSubstr("enabled: is a string, and must be true or false"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "args = \"-v\"\n"),
              HasSubstr("args: is a string, and must be an array"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "args = [\"-v\", 3]\n"),
              HasSubstr("args[1]: is an integer, and must be a string"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "health = 3\n"),
              HasSubstr("health: is an integer, and must be a table"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "stop_timeout = 1.5\n"),
              HasSubstr("stop_timeout: is a number with"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "stop_timeout = \"soon\"\n"), HasSubstr("\"500ms\""));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "stop_timeout = 0\n"), HasSubstr("above zero"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "[env]\nA = 3\n"),
              HasSubstr("env.A: is an integer, and must be a string"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "[restart]\nburst = 0\n"),
              HasSubstr("restart.burst: must be from 1"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "[restart]\npolicy = \"sometimes\"\n"),
              HasSubstr("\"always\", \"on-failure\" or \"never\""));
  EXPECT_THAT(Error("kind = \"both\"\ncommand = \"/bin/true\"\n"), HasSubstr("\"monolith\""));
}

TEST_F(PluginConfigTest, AllMistakesOfAFileAreToldAtOnceInOrder) {
  const std::string error = Error("kind = 3\ncommand = \"true\"\ncolour = 1\n[health]\nfailures = -1\n");
  EXPECT_THAT(error, HasSubstr("nfs.toml:1: kind:"));
  EXPECT_THAT(error, HasSubstr("nfs.toml:2: command: \"true\" must be an absolute path"));
  EXPECT_THAT(error, HasSubstr("nfs.toml:3: colour:"));
  EXPECT_THAT(error, HasSubstr("nfs.toml:5: health.failures:"));
  EXPECT_LT(error.find(":1:"), error.find(":2:"));
  EXPECT_LT(error.find(":3:"), error.find(":5:"));
}

TEST_F(PluginConfigTest, MissingKeysAreNamed) {
  EXPECT_THAT(Error(""), AllOf(HasSubstr("kind: missing"), HasSubstr("command: missing")));
}

TEST_F(PluginConfigTest, BrokenTomlIsNamedByLine) {
  EXPECT_THAT(Error("kind = \"node\"\ncommand = \n"),
              StartsWith("/etc/berth/plugins.d/nfs.toml:2: not TOML"));
  EXPECT_THAT(Error("kind = \"node\"\nkind = \"node\"\n"), HasSubstr("nfs.toml:2: not TOML"));
}

TEST_F(PluginConfigTest, IdsAreChecked) {
  for (const char* id : {"", "A", "-a", ".a", "a/b", "a b", "ä"}) EXPECT_FALSE(ValidPluginId(id)) << id;
  for (const char* id : {"a", "0", "a.b_c-d", "nfs.csi.k8s.io"}) EXPECT_TRUE(ValidPluginId(id)) << id;
  EXPECT_TRUE(ValidPluginId(std::string(63, 'a')));
  EXPECT_FALSE(ValidPluginId(std::string(64, 'a')));
  EXPECT_THAT(Error(std::string("id = \"My Plugin\"\n") + kLeastPluginFile),
              HasSubstr("nfs.toml:1: id: \"My Plugin\" must be"));
  EXPECT_THAT(std::string(ParsePluginFile("/x/My Plugin.toml", kLeastPluginFile, paths_).status().message()),
              HasSubstr("the file's name \"My Plugin\" cannot stand for it"));
}

TEST_F(PluginConfigTest, SocketPathThatIsTooLongSaysByHowMuch) {
  paths_.runtime_dir = "/" + std::string(107 - 1 - strlen("/plugins/nfs/csi.sock"), 'r');
  Good(kLeastPluginFile);
  paths_.runtime_dir += 'r';
  const std::string error = Error(kLeastPluginFile);
  EXPECT_THAT(error, HasSubstr("108 bytes"));
  EXPECT_THAT(error, HasSubstr("holds 107"));
  EXPECT_THAT(error, HasSubstr("by 1"));
}

TEST_F(PluginConfigTest, UnknownVariableIsAMistakeOfTheFile) {
  const std::string error =
      Error("kind = \"node\"\ncommand = \"/bin/true\"\nargs = [\"a\",\n\"${CSI_SOKET}\"]\n");
  EXPECT_THAT(error, HasSubstr("nfs.toml:4: args[1]: unknown variable ${CSI_SOKET}"));
  EXPECT_THAT(error, HasSubstr("${BERTH_NODE_ID}, ${BERTH_PLUGIN_DIR}, ${CSI_ENDPOINT}, ${CSI_SOCKET}"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "[env]\nA = \"${X}\"\n"),
              HasSubstr("env.A: unknown variable"));
}

TEST_F(PluginConfigTest, EnvironmentIsChecked) {
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "[env]\n\"A-B\" = \"x\"\n"),
              HasSubstr("env.A-B: is not a variable's name"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "[env]\nCSI_ENDPOINT = \"x\"\n"),
              HasSubstr("is set by berthd"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "[env]\nA = {file = \"x\"}\n"), HasSubstr("absolute"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "[env]\nA = {}\n"), HasSubstr("env.A: must have one of"));
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "[env]\nA = {credential = \"token\"}\n"),
              HasSubstr("LoadCredential="));
  paths_.credentials_dir = temp_.path();
  EXPECT_THAT(Error(std::string(kLeastPluginFile) + "[env]\nA = {credential = \"../token\"}\n"),
              HasSubstr("not the name of a credential"));
}

TEST_F(PluginConfigTest, SocketStandsInsteadOfACommand) {
  const PluginConfig config = Good(
      "kind = \"node\"\nsocket = \"/run/x/csi.sock\"\nvolumes_path = \"/csi/volumes\"\n[health]\n"
      "interval = \"1s\"\n");
  EXPECT_TRUE(config.external());
  EXPECT_EQ(config.socket, "/run/x/csi.sock");
  EXPECT_EQ(config.volumes_path, "/csi/volumes");
  EXPECT_EQ(config.health.interval, seconds(1));
  EXPECT_FALSE(Good(kLeastPluginFile).external());
  EXPECT_THAT(Error("kind = \"node\"\nsocket = \"unix:///run/x.sock\"\n"),
              HasSubstr("nfs.toml:2: socket: \"unix:///run/x.sock\" must be the absolute path"));
  EXPECT_THAT(Error("kind = \"node\"\nsocket = \"/" + std::string(107, 's') + "\"\n"),
              HasSubstr("108 bytes"));
}

TEST_F(PluginConfigTest, KeysOfAProcessAreMistakesBesideASocket) {
  const std::string both = Error("kind = \"node\"\nsocket = \"/run/x\"\ncommand = \"/bin/true\"\n");
  EXPECT_THAT(both, HasSubstr("nfs.toml:3: command: not with socket: give command for"));
  for (const char* key : {"args = []",
                          "user = \"root\"",
                          "group = \"disk\"",
                          "supplementary_groups = []",
                          "capability_bounding_set = []",
                          "ambient_capabilities = []",
                          "no_new_privileges = true",
                          "umask = \"0022\"",
                          "working_directory = \"/\"",
                          "children = \"end\"",
                          "serves_mounts = true",
                          "start_timeout = 1",
                          "stop_timeout = 1",
                          "env = {}",
                          "limits = {}",
                          "rlimits = {}",
                          "log = {}",
                          "restart = {}",
                          "health = {replace_after = \"1m\"}",
                          "health = {replace_burst = 1}",
                          "health = {replace_window = \"1m\"}"}) {
    EXPECT_THAT(Error(fmt::format("kind = \"node\"\nsocket = \"/run/x\"\n{}\n", key)),
                AllOf(HasSubstr("nfs.toml:3: "), HasSubstr("not with socket")))
        << key;
  }
}

TEST_F(PluginConfigTest, SocketOfSomebodyElseIsNotBoundByOurDirectories) {
  paths_.runtime_dir = "/" + std::string(200, 'r');
  Good("kind = \"node\"\nsocket = \"/run/x\"\n");
}

TEST_F(PluginConfigTest, VolumesPathIsAPlainAbsolutePath) {
  EXPECT_EQ(Good(std::string(kLeastPluginFile) + "volumes_path = \"/csi\"\n").volumes_path, "/csi");
  for (const char* path : {"", "/", "csi", "/csi/", "/csi/../x", "/csi//x", "/./csi"}) {
    EXPECT_THAT(Error(fmt::format("{}volumes_path = \"{}\"\n", kLeastPluginFile, path)),
                HasSubstr("nfs.toml:3: volumes_path: "))
        << path;
  }
}

class PluginDirTest : public PluginConfigTest {
 protected:
  std::vector<PluginFile> Load(const PluginFileOwners& owners = {}) {
    absl::StatusOr<std::vector<PluginFile>> files = LoadPluginDir(temp_.path(), paths_, owners);
    if (!files.ok()) {
      ADD_FAILURE() << files.status();
      abort();
    }
    return *std::move(files);
  }
};

TEST_F(PluginDirTest, ReadsItsFilesByName) {
  temp_.Write("b.toml", kLeastPluginFile);
  temp_.Write("a.toml", kLeastPluginFile);
  temp_.Write(".hidden.toml", "broken");
  temp_.Write("a.toml~", "broken");
  temp_.Write("README", "broken");
  const std::vector<PluginFile> files = Load();
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].id, "a");
  EXPECT_EQ(files[1].id, "b");
  EXPECT_TRUE(files[0].config.ok()) << files[0].config.status();
}

TEST_F(PluginDirTest, MissingDirectoryIsNotFound) {
  EXPECT_EQ(LoadPluginDir(temp_.Path("none"), paths_, {}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PluginDirTest, OfTwoFilesWithOneIdTheOwnerKeepsItWhateverTheirOrder) {
  temp_.Write("a.toml", std::string("id = \"nfs\"\n") + kLeastPluginFile);
  temp_.Write("b.toml", std::string("id = \"nfs\"\n") + kLeastPluginFile);
  for (const auto& [owner, other] : {std::pair(0, 1), std::pair(1, 0)}) {
    const std::vector<PluginFile> files = Load({{"nfs", temp_.Path(owner == 0 ? "a.toml" : "b.toml")}});
    ASSERT_EQ(files.size(), 2U);
    EXPECT_TRUE(files[owner].config.ok());
    EXPECT_EQ(files[owner].id, "nfs");
    EXPECT_EQ(files[other].id, other == 0 ? "a" : "b");
    EXPECT_THAT(
        std::string(files[other].config.status().message()),
        AllOf(HasSubstr(temp_.Path("a.toml")), HasSubstr(temp_.Path("b.toml")), HasSubstr("\"nfs\"")));
  }
}

TEST_F(PluginDirTest, OfTwoFilesWithOneIdNeitherIsUsedWhereTheOwnerIsNotAmongThem) {
  temp_.Write("a.toml", std::string("id = \"nfs\"\n") + kLeastPluginFile);
  temp_.Write("b.toml", std::string("id = \"nfs\"\n") + kLeastPluginFile);
  temp_.Write("nfs.toml", std::string("id = \"other\"\n") + kLeastPluginFile);
  for (const PluginFileOwners& owners : {PluginFileOwners{}, PluginFileOwners{{"nfs", "/gone.toml"}}}) {
    const std::vector<PluginFile> files = Load(owners);
    ASSERT_EQ(files.size(), 3U);
    EXPECT_EQ(files[0].id, "nfs") << "the plugin is shown, with the reason";
    EXPECT_EQ(files[1].id, "b");
    for (const int i : {0, 1}) {
      EXPECT_THAT(std::string(files[i].config.status().message()),
                  AllOf(HasSubstr(temp_.Path("a.toml")), HasSubstr(temp_.Path("b.toml")),
                        HasSubstr("\"nfs\""), HasSubstr("neither is used")));
    }
    EXPECT_TRUE(files[2].config.ok());
    EXPECT_EQ(files[2].id, "other");
  }
}

TEST_F(PluginDirTest, ABrokenFileIsItsPluginsWhateverIdItClaims) {
  temp_.Write("10-nfs.toml", "no toml");
  temp_.Write("0.toml", std::string("id = \"nfs\"\n") + kLeastPluginFile);
  const std::vector<PluginFile> files = Load({{"nfs", temp_.Path("10-nfs.toml")}});
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].id, "0");
  EXPECT_THAT(std::string(files[0].config.status().message()),
              AllOf(HasSubstr(temp_.Path("0.toml")), HasSubstr(temp_.Path("10-nfs.toml"))));
  EXPECT_EQ(files[1].id, "nfs");
}

TEST_F(PluginDirTest, AnIdMayGetAnotherFileAndAFileAnotherId) {
  temp_.Write("new.toml", std::string("id = \"nfs\"\n") + kLeastPluginFile);
  temp_.Write("old.toml", std::string("id = \"other\"\n") + kLeastPluginFile);
  const PluginFileOwners before = {{"nfs", temp_.Path("old.toml")}, {"gone", "/gone.toml"}};
  const std::vector<PluginFile> files = Load(before);
  EXPECT_EQ(files[0].id, "nfs");
  EXPECT_EQ(files[1].id, "other");
  EXPECT_EQ(OwnersAfter(before, files),
            (PluginFileOwners{
                {"nfs", temp_.Path("new.toml")}, {"other", temp_.Path("old.toml")}, {"gone", "/gone.toml"}}));
}

TEST_F(PluginDirTest, WhatAStemGivesDoesNotTakeAnOthersId) {
  temp_.Write("a.toml", std::string("id = \"nfs\"\n") + kLeastPluginFile);
  temp_.Write("nfs.toml", kLeastPluginFile);
  const std::vector<PluginFile> files = Load({{"nfs", temp_.Path("a.toml")}});
  EXPECT_TRUE(files[0].config.ok());
  EXPECT_FALSE(files[1].config.ok());
  EXPECT_EQ(files[1].id, "nfs.toml") << "its stem is another plugin's id";
}

TEST_F(PluginDirTest, OwnersAreReadAsTheyWereWritten) {
  const std::string path = PluginFileOwnersPath(temp_.path());
  EXPECT_EQ(*ReadPluginFileOwners(path), PluginFileOwners());
  const PluginFileOwners owners = {{"nfs", "/etc/a \"b\".toml"}, {"x.y", "/etc/x.toml"}};
  ASSERT_EQ(WritePluginFileOwners(path, owners), absl::OkStatus());
  EXPECT_EQ(*ReadPluginFileOwners(path), owners);
  temp_.Write("plugin-files.toml", "format = 1\n[files]\nnfs = 3\n");
  EXPECT_EQ(ReadPluginFileOwners(path).status().code(), absl::StatusCode::kInvalidArgument);
  temp_.Remove("plugin-files.toml");
}

TEST_F(PluginDirTest, BrokenFileKeepsTheIdThatItGives) {
  temp_.Write("a.toml", std::string("id = \"nfs\"\ncolour = 1\n") + kLeastPluginFile);
  temp_.Write("b.toml", "no toml");
  temp_.Write("z.toml", std::string("id = \"a\"\n") + kLeastPluginFile);
  const std::vector<PluginFile> files = Load();
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].id, "nfs");
  EXPECT_EQ(files[1].id, "b");
  EXPECT_EQ(files[2].id, "a");
  EXPECT_TRUE(files[2].config.ok());
}

TEST_F(PluginDirTest, OversizedFilesAndThingsThatAreNoFilesAreBroken) {
  temp_.Write("big.toml", std::string(70'000, '#'));
  ASSERT_EQ(mkdir(temp_.Path("dir.toml").c_str(), 0755), 0);
  ASSERT_EQ(mkfifo(temp_.Path("pipe.toml").c_str(), 0600), 0);
  const std::vector<PluginFile> files = Load();
  rmdir(temp_.Path("dir.toml").c_str());
  temp_.Remove("pipe.toml");
  ASSERT_EQ(files.size(), 3U);
  for (const PluginFile& file : files) {
    EXPECT_EQ(file.config.status().code(), absl::StatusCode::kInvalidArgument) << file.path;
    EXPECT_THAT(std::string(file.config.status().message()), HasSubstr(file.path));
  }
}

}  // namespace
}  // namespace berth
