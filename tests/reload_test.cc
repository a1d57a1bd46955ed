// A running node when its files change, and what berthd reports to the service manager.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "base/testing/datagram_queue.h"
#include "tests/harness/node.h"
#include "tests/harness/reboot.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ReloadTest : public testing::Test {
 protected:
  // berth-hostpath under an id of its own, probed once an hour, so that each Probe after the first has a
  // cause.
  void Write(const std::string& id, const std::string& more = "", const std::string& argument = "") {
    node_.WritePlugin(id, fmt::format(R"(kind = "monolith"
command = "{}"
args = ["--endpoint", "${{CSI_ENDPOINT}}", "--node-id", "${{BERTH_NODE_ID}}",
        "--state-dir", "${{BERTH_PLUGIN_DIR}}"{}]
{}
[health]
interval = "1h"
fingerprint_interval = "1h"
)",
                                      BERTH_HOSTPATH, argument, more));
  }
  void Remove(const std::string& id) {
    ASSERT_EQ(unlink(fmt::format("{}/etc/plugins.d/{}.toml", node_.dir(), id).c_str()), 0);
  }
  static int Count(const std::vector<std::string>& messages, const std::string& word) {
    return static_cast<int>(std::count_if(messages.begin(), messages.end(), [&](const std::string& message) {
      return message.find(word) != std::string::npos;
    }));
  }
  // The same process under the same number, not probed from the beginning.
  static void ExpectUntouched(const v1::Plugin& before, const v1::Plugin& after) {
    EXPECT_EQ(before.pid(), after.pid());
    EXPECT_EQ(before.instance(), after.instance());
    EXPECT_EQ(before.health().last_probe_at().SerializeAsString(),
              after.health().last_probe_at().SerializeAsString());
    EXPECT_TRUE(after.registered());
  }

  Node node_;
};

TEST_F(ReloadTest, Fault43ServiceManagerThatReadsNothingStopsNothing) {
  Write("a");
  node_.Start();
  v1::GetStatusResponse status;
  ASSERT_TRUE(node_.stub().GetStatus(Node::Context().get(), {}, &status).ok());
  // Whatever net.unix.max_dgram_qlen is: others have filled its queue.
  sockaddr_un address{.sun_family = AF_UNIX};
  (node_.dir() + "/notify.sock").copy(address.sun_path, sizeof address.sun_path - 1);
  FillDatagramQueue(reinterpret_cast<const sockaddr*>(&address), sizeof address);

  Write("b");
  ASSERT_EQ(kill(static_cast<pid_t>(status.pid()), SIGHUP), 0);
  WaitFor("berthd to read its files", [this] { return node_.log().find("reloaded: ") != std::string::npos; });
  node_.WaitReady("b");
  const std::string last = "READY=1";
  WaitFor("the state after the reload",
          [&] { return node_.Notified().back().find(last) != std::string::npos; });
  node_.Stop();
}

// A copy of a plugin's file with the same id and another state directory, under a name that sorts first.
TEST_F(ReloadTest, ACopyOfAPluginsFileDoesNotTakeThePluginOver) {
  Write("hostpath");
  node_.Start();
  const v1::Plugin before = node_.WaitReady("hostpath");
  v1::CreateVolumeRequest create;
  create.set_plugin_id("hostpath");
  create.set_name("v");
  (*create.mutable_parameters())["kind"] = "directory";
  const std::string volume = node_.CreateVolume(create);
  Write("hostpath-test", fmt::format("id = \"hostpath\"\nenv = {{X = \"{}\"}}\n", node_.dir()));

  const auto names_both =
      AllOf(HasSubstr("hostpath-test.toml"), HasSubstr("hostpath.toml"), HasSubstr("\"hostpath\""));
  const auto expect_original = [&] {
    const v1::Plugin now = node_.WaitReady("hostpath");
    EXPECT_THAT(now.config_file(), testing::EndsWith("/hostpath.toml"));
    EXPECT_THAT(node_.Problems(), Contains(names_both));
    v1::ExamineResponse examined;
    const grpc::Status status = node_.stub().Examine(Node::Context().get(), {}, &examined);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::string> findings;
    for (const v1::Finding& finding : examined.findings()) findings.push_back(finding.text());
    EXPECT_THAT(findings, Contains(names_both));
    return now;
  };
  v1::ReloadResponse report;
  ASSERT_TRUE(node_.stub().Reload(Node::Context().get(), {}, &report).ok());
  EXPECT_THAT(report.broken(), Contains(names_both));
  EXPECT_EQ(expect_original().pid(), before.pid());
  // A new berthd, with the plugin still running; and with none that runs.
  node_.Kill();
  node_.Start();
  EXPECT_EQ(expect_original().pid(), before.pid());
  {
    const Reboot reboot(node_);
    node_.Start();
    EXPECT_NE(expect_original().pid(), before.pid());
    v1::PublishVolumeRequest publish;
    publish.set_plugin_id("hostpath");
    publish.set_volume_id(volume);
    publish.set_consumer("job");
    node_.Publish(publish);
    node_.Unpublish(volume, "job");
    // Nothing says any more which plugin has these volumes.
    ASSERT_EQ(unlink((node_.state_dir() + "/plugin-files.toml").c_str()), 0);
  }
  const Reboot again(node_);
  node_.Start();
  const v1::Plugin neither = node_.WaitPlugin(
      "hostpath", "not started", [](const v1::Plugin& plugin) { return plugin.state() == v1::FAILED; });
  EXPECT_THAT(neither.reason(), AllOf(names_both, HasSubstr("neither is used")));
  Remove("hostpath-test");
  ASSERT_TRUE(node_.stub().Reload(Node::Context().get(), {}, &report).ok());
  node_.WaitReady("hostpath");
  EXPECT_THAT(node_.Problems(), IsEmpty());
  node_.DeleteVolume(volume);
}

TEST_F(ReloadTest, ReadyIsSaidOnce) {
  Write("a");
  node_.Start();
  node_.WaitReady("a");
  node_.Kill();
  // Also by one that has plugins to take back.
  node_.Start();
  node_.WaitReady("a");
  node_.Stop();
  EXPECT_EQ(Count(node_.Notified(), "READY=1"), 1);
  EXPECT_THAT(node_.Notified().back(), HasSubstr("STOPPING=1"));
}

TEST_F(ReloadTest, OnlyWhatChangedIsTouched) {
  Write("same");
  Write("updated");
  Write("swapped");
  Write("gone");
  node_.Start();
  for (const char* id : {"same", "updated", "swapped", "gone"}) node_.WaitReady(id);
  const v1::Plugin same = node_.Plugin("same");
  const v1::Plugin updated = node_.Plugin("updated");
  const v1::Plugin swapped = node_.Plugin("swapped");

  Write("updated", "stop_timeout = \"7s\"");
  Write("swapped", "umask = \"0027\"");
  Write("fresh");
  Remove("gone");
  node_.Reload();
  ExpectUntouched(same, node_.Plugin("same"));
  EXPECT_EQ(node_.Plugin("updated").pid(), updated.pid());
  EXPECT_NE(node_.Plugin("swapped").pid(), swapped.pid());
  node_.WaitReady("fresh");
  v1::ListPluginsResponse list;
  const auto context = Node::Context();
  ASSERT_TRUE(node_.stub().ListPlugins(context.get(), {}, &list).ok());
  std::vector<std::string> ids;
  for (const v1::Plugin& plugin : list.plugins()) ids.push_back(plugin.id());
  EXPECT_THAT(ids, ElementsAre("fresh", "same", "swapped", "updated"));
  EXPECT_THAT(node_.Problems(), IsEmpty());

  // The same once more, by the API: nothing has changed.
  const v1::Plugin before = node_.Plugin("swapped");
  v1::ReloadResponse report;
  const auto again = Node::Context();
  ASSERT_TRUE(node_.stub().Reload(again.get(), {}, &report).ok());
  EXPECT_EQ(report.unchanged_size(), 4);
  ExpectUntouched(before, node_.Plugin("swapped"));
}

TEST_F(ReloadTest, TheServiceManagerIsToldOfAReload) {
  node_.Start();
  node_.Reload();
  const std::vector<std::string>& said = node_.Notified();
  ASSERT_GE(said.size(), 3U);
  EXPECT_THAT(said[said.size() - 2], HasSubstr("RELOADING=1\nMONOTONIC_USEC="));
  EXPECT_THAT(said.back(), HasSubstr("READY=1"));
  EXPECT_EQ(Count(said, "READY=1"), 2) << "once at the start, once for the reload";
}

TEST_F(ReloadTest, BrokenFilesChangeNothingAndAreShown) {
  Write("a");
  node_.Start();
  node_.WaitReady("a");
  const v1::Plugin before = node_.Plugin("a");
  node_.WritePlugin("a", "kind = \"monolith\"\ncolour = 3\n");
  node_.WriteBerthdToml("log_level = \"loud\"\n");
  node_.Reload();
  ExpectUntouched(before, node_.Plugin("a"));
  EXPECT_THAT(node_.Plugin("a").file_error(), HasSubstr("a.toml:2: colour: unknown key"));
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("a.toml:2: colour: unknown key")));
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("log level \"loud\" is unknown")));

  // One that cannot be read at all is still its plugin's.
  node_.WritePlugin("a", "kind = \n");
  node_.WriteBerthdToml("node_id = \"other\"\ncolour = 1\n");
  node_.Reload();
  ExpectUntouched(before, node_.Plugin("a"));
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("a.toml:1: not TOML")));
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("berthd.toml:2: colour: unknown key")));

  Write("a");
  node_.WriteBerthdToml("");
  node_.Reload();
  ExpectUntouched(before, node_.Plugin("a"));
  EXPECT_THAT(node_.Problems(), IsEmpty());
}

TEST_F(ReloadTest, AFileThatOthersMayWriteIsWrongAndWhatRunsGoesOn) {
  Write("a");
  node_.Start();
  node_.WaitReady("a");
  const v1::Plugin before = node_.Plugin("a");
  const std::string plugins = node_.dir() + "/etc/plugins.d";
  ASSERT_EQ(chmod((plugins + "/a.toml").c_str(), 0666), 0);
  node_.WriteBerthdToml("");
  ASSERT_EQ(chmod((node_.dir() + "/etc/berthd.toml").c_str(), 0622), 0);
  node_.Reload();
  ExpectUntouched(before, node_.Plugin("a"));
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("a.toml: everybody (mode 0666) can change it")));
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("berthd.toml: everybody (mode 0622) can change it")));
  ASSERT_EQ(chmod((plugins + "/a.toml").c_str(), 0644), 0);
  ASSERT_EQ(chmod((node_.dir() + "/etc/berthd.toml").c_str(), 0644), 0);
  ASSERT_EQ(chmod(plugins.c_str(), 0777), 0);
  node_.Reload();
  ExpectUntouched(before, node_.Plugin("a"));
  EXPECT_THAT(node_.Problems(),
              ElementsAre(HasSubstr("in " + plugins + ", which everybody (mode 0777) can change")));
  ASSERT_EQ(chmod(plugins.c_str(), 0755), 0);
  node_.Reload();
  EXPECT_THAT(node_.Problems(), IsEmpty());
}

TEST_F(ReloadTest, SettingsAreTakenOverWhereTheyCanBe) {
  node_.Start();
  node_.WriteBerthdToml("log_level = \"debug\"\nstate_dir = \"/elsewhere\"\n[access]\nread_group = 65534\n");
  node_.Reload();
  // The command line says where the state is, and what it says counts.
  EXPECT_THAT(node_.Problems(), IsEmpty());
  Write("a");
  node_.Reload();
  node_.WaitReady("a");
  WaitFor("debug lines in the log", [this] { return node_.log().find(" debug ") != std::string::npos; });

  // The members of that group may read now, and a reload ends that.
  const std::string status = fmt::format("{} --socket {}/berthd-ro.sock status",
                                         node_.CommandAs(65534, BERTHCTL), node_.runtime_dir());
  EXPECT_EQ(system((status + " > /dev/null").c_str()), 0);
  node_.WriteBerthdToml("[access]\nread_group = \"\"\n");
  node_.Reload();
  EXPECT_NE(system((status + " > /dev/null 2>&1").c_str()), 0);
}

TEST_F(ReloadTest, TheSocketForClaimsComesAndGoesWithItsGroup) {
  const std::string claim = node_.runtime_dir() + "/claim.sock";
  node_.Start();
  EXPECT_NE(access(claim.c_str(), F_OK), 0) << "by default it does not exist";
  node_.WriteBerthdToml("[access]\nclaim_group = 4243\n");
  node_.Reload();
  struct stat file{};
  ASSERT_EQ(stat(claim.c_str(), &file), 0);
  EXPECT_EQ(file.st_gid, 4243U);
  EXPECT_EQ(file.st_mode & 07777, 0660U);
  // Killed, it leaves its socket; the next one, which is to have none, removes it.
  node_.Kill();
  node_.WriteBerthdToml("");
  node_.Start();
  EXPECT_NE(access(claim.c_str(), F_OK), 0);
  node_.WriteBerthdToml("[access]\nclaim_group = \"no-such-group\"\n");
  node_.Reload();
  EXPECT_THAT(node_.Problems(),
              testing::ElementsAre(testing::HasSubstr("there is no group \"no-such-group\"")));
}

TEST_F(ReloadTest, PluginsDThatVanishedStopsNothing) {
  Write("a");
  node_.Start();
  node_.WaitReady("a");
  const v1::Plugin before = node_.Plugin("a");
  const std::string directory = node_.dir() + "/etc/plugins.d";
  ASSERT_EQ(rename(directory.c_str(), (directory + ".away").c_str()), 0);
  v1::ReloadResponse report;
  const auto context = Node::Context();
  EXPECT_FALSE(node_.stub().Reload(context.get(), {}, &report).ok());
  ASSERT_EQ(rename((directory + ".away").c_str(), directory.c_str()), 0);
  ExpectUntouched(before, node_.Plugin("a"));
}

}  // namespace
}  // namespace berth
