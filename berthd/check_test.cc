// What is found wrong before anything is started, and how the real berthd ends then.
#include "berthd/check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>

#include "base/testing/temp_dir.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

struct Ended {
  int exit_code = -1;
  std::string said;  // on both
};

class CheckTest : public testing::Test {
 protected:
  CheckTest() {
    for (const char* directory : {"etc", "etc/plugins.d", "etc/volumes.d"}) {
      EXPECT_EQ(mkdir(temp_.Path(directory).c_str(), 0755), 0);
    }
  }
  [[nodiscard]] std::string Etc(const std::string& name) const { return temp_.Path("etc/" + name); }
  [[nodiscard]] BerthdOptions Options() const {
    return {.config_dir = temp_.Path("etc"),
            .state_dir = temp_.Path("state"),
            .runtime_dir = temp_.Path("run"),
            .node_id = "n1"};
  }
  void WritePlugin(const std::string& name, const std::string& more = "") const {
    temp_.Write("etc/plugins.d/" + name + ".toml", "kind = \"node\"\ncommand = \"/bin/true\"\n" + more);
  }
  // The real program, with its directories in here.
  [[nodiscard]] Ended Run(const std::string& arguments) const {
    return RunPlainly(
        fmt::format("--state-dir {} --runtime-dir {} {}", temp_.Path("state"), temp_.Path("run"), arguments));
  }
  [[nodiscard]] Ended RunPlainly(const std::string& arguments) const {
    const std::string command =
        fmt::format("timeout 60 {} --config {} {} 2>&1", BERTHD, temp_.Path("etc"), arguments);
    FILE* const pipe = popen(command.c_str(), "r");
    Ended ended;
    std::array<char, 4096> buffer{};
    while (const size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) {
      ended.said.append(buffer.data(), count);
    }
    const int status = pclose(pipe);
    ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return ended;
  }

  TempDir temp_;
};

TEST_F(CheckTest, FilesWithoutMistakesAreCounted) {
  WritePlugin("nfs");
  temp_.Write("etc/volumes.d/db.toml", "plugin = \"nfs\"\nvolume = \"v\"\n");
  const CheckedFiles checked = CheckFiles(Options());
  EXPECT_THAT(checked.mistakes, IsEmpty());
  EXPECT_EQ(checked.plugins, 1U);
  EXPECT_EQ(checked.volumes, 1U);
  const Ended ended = Run("--check");
  EXPECT_EQ(ended.exit_code, 0) << ended.said;
  EXPECT_THAT(ended.said, HasSubstr("1 plugin, 1 declared volume"));
}

TEST_F(CheckTest, EveryMistakeOfEveryFileIsNamedWithItsLine) {
  temp_.Write("etc/berthd.toml", "colour = 1\n[volumes]\nrpc_timeout = \"soon\"\n");
  WritePlugin("a", "shape = 2\n");
  temp_.Write("etc/plugins.d/b.toml", "kind = \"node\"\ncommand = \"/nonexistent\"\n");
  temp_.Write("etc/plugins.d/c.toml", "kind = \n");
  temp_.Write("etc/volumes.d/d.toml", "volume = \"v\"\nfs = 3\n");
  EXPECT_THAT(CheckFiles(Options()).mistakes,
              UnorderedElementsAre(
                  HasSubstr("etc/berthd.toml:1: colour: unknown key"),
                  HasSubstr("etc/berthd.toml:3: volumes.rpc_timeout"),
                  HasSubstr("etc/plugins.d/a.toml:3: shape: unknown key"),
                  HasSubstr("etc/plugins.d/b.toml:2: command: execute /nonexistent: No such file"),
                  HasSubstr("etc/plugins.d/c.toml:1: not TOML"), HasSubstr("etc/volumes.d/d.toml:1: plugin"),
                  HasSubstr("etc/volumes.d/d.toml:2: fs")));
}

TEST_F(CheckTest, WhatGoesBeyondOneFilesSyntaxIsNamedWithItsLineToo) {
  temp_.Write("etc/berthd.toml",
              "log_level = \"loud\"\nruntime_dir = \"run\"\n[access]\nread_group = \"no-such\"\n");
  WritePlugin("a", "id = \"a\"\n");
  WritePlugin("b", "id = \"a\"\n");
  temp_.Write("etc/plugins.d/c.toml",
              "kind = \"controller\"\ncommand = \"/bin/true\"\nuser = \"nobody-of-that-name\"\n"
              "supplementary_groups = [\"none-1\", \"none-2\"]\n");
  temp_.Write("etc/volumes.d/one.toml", "plugin = \"a\"\nvolume = \"v\"\npath = \"/srv/x\"\n");
  temp_.Write("etc/volumes.d/two.toml", "plugin = \"a\"\nvolume = \"w\"\npath = \"/srv/x/y\"\n");
  BerthdOptions options = Options();
  options.runtime_dir.reset();
  EXPECT_THAT(CheckFiles(options).mistakes,
              UnorderedElementsAre(
                  HasSubstr("etc/berthd.toml:1: log_level: log level \"loud\" is unknown"),
                  HasSubstr("etc/berthd.toml:2: runtime_dir: \"run\" must be an absolute path"),
                  AllOf(HasSubstr("etc/berthd.toml:4: access.read_group: "), HasSubstr("no-such")),
                  HasSubstr("etc/plugins.d/a.toml:3: id: \"a\" is also the id of"),
                  HasSubstr("etc/plugins.d/b.toml:3: id: \"a\" is also the id of"),
                  HasSubstr("etc/plugins.d/c.toml:3: user: \"nobody-of-that-name\": no such user"),
                  AllOf(HasSubstr("etc/plugins.d/c.toml:4: supplementary_groups"), HasSubstr("none-1")),
                  AllOf(HasSubstr("etc/plugins.d/c.toml:4: supplementary_groups"), HasSubstr("none-2")),
                  HasSubstr("etc/volumes.d/two.toml:3: path: /srv/x/y: one.toml mounts another")));
}

TEST_F(CheckTest, AnUnknownPluginIsANoteSinceItMayBeADriver) {
  temp_.Write("etc/volumes.d/db.toml", "plugin = \"nfs.csi.example\"\nvolume = \"v\"\n");
  const CheckedFiles checked = CheckFiles(Options());
  EXPECT_THAT(checked.mistakes, IsEmpty());
  EXPECT_THAT(checked.notes,
              testing::Contains(HasSubstr("etc/volumes.d/db.toml:1: plugin: no file in plugins.d")));
}

TEST_F(CheckTest, CertificatesThatCannotBeReadAreAMistake) {
  temp_.Write("etc/berthd.toml",
              fmt::format("[scheduler]\naddresses = [\"s:1\"]\nidentities = [\"s\"]\nca = \"{0}/ca\"\n"
                          "certificate = \"{0}/crt\"\nkey = \"{0}/key\"\n",
                          temp_.path()));
  EXPECT_THAT(CheckFiles(Options()).mistakes,
              ElementsAre(AllOf(HasSubstr("etc/berthd.toml:1: scheduler: "), HasSubstr("/ca"))));
}

TEST_F(CheckTest, ItWritesNothing) {
  WritePlugin("nfs");
  EXPECT_EQ(Run("--check").exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(temp_.Path("state")));
  EXPECT_FALSE(std::filesystem::exists(temp_.Path("run")));
}

TEST_F(CheckTest, BerthdEndsWith78WhereOnlyTheConfigurationHelps) {
  temp_.Write("etc/berthd.toml", "colour = 1\nshape = 2\n");
  const auto names_both =
      AllOf(HasSubstr("berthd.toml:1: colour: unknown key"), HasSubstr("berthd.toml:2: shape: unknown key"));
  Ended ended = Run("");
  EXPECT_EQ(ended.exit_code, 78);
  EXPECT_THAT(ended.said, names_both);
  ended = Run("--check");
  EXPECT_EQ(ended.exit_code, 78);
  EXPECT_THAT(ended.said, AllOf(names_both, HasSubstr("2 mistakes in")));

  temp_.Write("etc/berthd.toml", "[access]\nread_group = \"no-such-group\"\n");
  ended = Run("");
  EXPECT_EQ(ended.exit_code, 78) << "an unknown group";
  EXPECT_THAT(ended.said, HasSubstr("no-such-group"));
  temp_.Write("etc/berthd.toml", "");
  EXPECT_EQ(Run("--log-level loud").exit_code, 78);
  EXPECT_EQ(
      RunPlainly(fmt::format("--state-dir {} --runtime-dir /{}", temp_.Path("state"), std::string(120, 'x')))
          .exit_code,
      78)
      << "the socket's path is too long";
}

TEST_F(CheckTest, OtherFailuresMayEndByThemselves) {
  EXPECT_EQ(Run("--bogus").exit_code, 2);
  EXPECT_EQ(Run("--help").exit_code, 0);
  // Its state directory cannot be made.
  const Ended ended = RunPlainly("--state-dir /dev/null/state --runtime-dir " + temp_.Path("run"));
  EXPECT_EQ(ended.exit_code, 1) << ended.said;
}

}  // namespace
}  // namespace berth
