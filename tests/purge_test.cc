// What a purge of the Debian package does with the state of a real node: the script that dpkg runs, with the
// node's directories in place of the system's.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>

#include "tests/harness/node.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class PurgeTest : public testing::Test {
 protected:
  // What the script said. It ends with 0 whatever it finds: a purge goes on.
  std::string Purge() const { return RunScript("purge"); }
  std::string RunScript(const std::string& action) const {
    const std::string command = fmt::format(
        "sed -e 's|^root=$|root={0}|' -e 's|\\$root/var/lib/berth|$root/state|' "
        "-e 's|\\$root/run/berth|$root/run|' -e 's|\\$root/etc/berth|$root/etc|g' {1} | sh -s {2} 2>&1",
        node_.dir(), BERTH_POSTRM, action);
    FILE* const script = popen(command.c_str(), "r");
    std::string said;
    for (int c = fgetc(script); c != EOF; c = fgetc(script)) said += static_cast<char>(c);
    EXPECT_EQ(pclose(script), 0) << said;
    return said;
  }
  std::vector<std::string> State() const { return Node::Tree(node_.state_dir()); }
  [[nodiscard]] std::string File() const { return node_.dir() + "/etc/volumes.d/data.toml"; }
  void Reload() {
    v1::ReloadRequest request;
    request.set_wait(true);
    v1::ReloadResponse report;
    const grpc::Status status = node_.stub().Reload(Node::Context().get(), request, &report);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  // All that a node writes: a declared volume, a swap, a drain, a link to a scheduler.
  void Populate() {
    node_.WriteBerthdToml(fmt::format("[scheduler]\naddresses = [\"unix:{}/none\"]\n", node_.dir()));
    node_.WriteHostpath();
    node_.Start();
    node_.WaitReady("hostpath");
    v1::SwapPluginRequest swap;
    swap.set_id("hostpath");
    swap.set_command(BERTH_HOSTPATH);
    for (const char* argument : {"--endpoint", "${CSI_ENDPOINT}", "--node-id", "${BERTH_NODE_ID}",
                                 "--state-dir", "${BERTH_PLUGIN_DIR}"}) {
      swap.add_arguments(argument);
    }
    v1::Plugin swapped;
    const grpc::Status status = node_.stub().SwapPlugin(Node::Context().get(), swap, &swapped);
    ASSERT_TRUE(status.ok()) << status.error_message();
    v1::CreateVolumeRequest create;
    create.set_plugin_id("hostpath");
    create.set_name("v");
    (*create.mutable_parameters())["kind"] = "directory";
    const std::string volume = node_.CreateVolume(create);
    mkdir((node_.dir() + "/etc/volumes.d").c_str(), 0755);
    std::ofstream(File()) << fmt::format("plugin = \"hostpath\"\nvolume = \"{}\"\n", volume);
    Reload();
    ASSERT_THAT(State(), AllOf(Contains("journal.db"), Contains("link.db"), Contains("events"),
                               Contains("swaps/hostpath.toml"), Contains(StartsWith("declared/")),
                               Contains(StartsWith("identities/")), Contains("logs/hostpath.log")));
  }

  Node node_;
};

TEST_F(PurgeTest, ARemovalSaysWhatStaysMountedAndHowToGetItBack) {
  Populate();
  node_.Stop();
  const std::vector<std::string> before = State();
  EXPECT_THAT(RunScript("remove"), AllOf(HasSubstr("1 published volume mount(s) stay beneath"),
                                         HasSubstr("install the package again")));
  EXPECT_EQ(State(), before);
  node_.Start();
  node_.WaitReady("hostpath");
  ASSERT_EQ(unlink(File().c_str()), 0);
  Reload();
  WaitFor("the volume to leave", [this] { return node_.Volumes().volumes().empty(); });
  node_.Stop();
  EXPECT_THAT(RunScript("remove"), IsEmpty());
}

TEST_F(PurgeTest, RemovesAllThatIsBerthsAndNamesWhatStays) {
  Populate();
  node_.Stop();
  const std::vector<std::string> before = State();
  EXPECT_THAT(Purge(), HasSubstr("volumes are still mounted"));
  EXPECT_EQ(State(), before) << "nothing goes while a volume is mounted";

  node_.Start();
  node_.WaitReady("hostpath");
  ASSERT_EQ(unlink(File().c_str()), 0);
  Reload();
  WaitFor("the volume to leave", [this] { return node_.Volumes().volumes().empty(); });
  v1::DrainNodeRequest drain;
  drain.set_reason("purge");
  v1::DrainNodeResponse drained;
  ASSERT_TRUE(node_.stub().DrainNode(Node::Context().get(), drain, &drained).ok());
  const pid_t plugin = node_.Plugin("hostpath").pid();
  node_.Stop();
  ASSERT_THAT(State(), Contains("node-drain.json"));

  const std::string said = Purge();
  EXPECT_THAT(said, AllOf(HasSubstr("state/plugins/hostpath is kept: a plugin stored it there"),
                          HasSubstr(fmt::format("its plugin still runs (process {})", plugin))));
  EXPECT_THAT(State(), Each(StartsWith("plugins"))) << "a file of berthd's that berth.postrm does not know";
  EXPECT_THAT(node_.Mounts(), Not(Contains(node_.state_dir() + "/volumes")));
  EXPECT_THAT(Node::Tree(node_.runtime_dir()), Contains("plugins/hostpath/run.toml"));

  ASSERT_EQ(kill(plugin, SIGKILL), 0);
  WaitFor("the plugin to end", [plugin] { return waitpid(plugin, nullptr, WNOHANG) == plugin; });
  EXPECT_THAT(Purge(), Not(HasSubstr("still runs")));
  EXPECT_NE(access(node_.runtime_dir().c_str(), F_OK), 0);
  EXPECT_THAT(State(), Not(IsEmpty())) << "what the plugin stored";
}

}  // namespace
}  // namespace berth
