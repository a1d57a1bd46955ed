// What the built berthctl shows of plugins, and drain, swap and reload, against a node on a real socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/testing/expect_json.h"
#include "cli/testing/fake_node.h"
#include "cli/testing/run_berthctl.h"

namespace berth::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PluginCommandsTest : public testing::Test {
 protected:
  PluginCommandsTest() {
    node_.plugin.set_id("hostpath");
    node_.plugin.set_state(v1::READY);
    node_.plugin.set_pid(4242);
    *node_.plugins.add_plugins() = node_.plugin;
  }

  Ended Ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--socket", node_.socket()});
    return RunBerthctl(std::move(arguments));
  }

  FakeNode node_;
};

TEST_F(PluginCommandsTest, WhatIsSpecialAboutAPluginIsShown) {
  v1::Plugin& plugin = *node_.plugins.mutable_plugins(0);
  plugin.set_alive(true);
  plugin.set_paused(true);
  plugin.set_external(true);
  plugin.set_file_error("changed; not applied yet");
  EXPECT_THAT(Ctl({"plugins"}).out, AllOf(HasSubstr("READY, paused"), HasSubstr("external"), HasSubstr("yes"),
                                          HasSubstr("not applied yet")));
  node_.plugin.set_draining(true);
  node_.plugin.add_waiting_for("vol-1 by job-7");
  node_.plugin.set_placement("scope berth-plugin-hostpath.scope");
  node_.plugin.set_serves_mounts(true);
  node_.plugin.set_command("/usr/bin/hostpath --x");
  node_.plugin.set_swap("swapped 3m ago");
  EXPECT_THAT(
      Ctl({"plugin", "show", "hostpath"}).out,
      AllOf(HasSubstr("READY, draining"), HasSubstr("vol-1 by job-7"), HasSubstr("scope berth-plugin"),
            HasSubstr("served by itself"), HasSubstr("/usr/bin/hostpath --x"), HasSubstr("swapped 3m ago"),
            HasSubstr("not alive, not ready, not registered")));
  node_.status.set_placement("none: no cgroup may be made");
  EXPECT_THAT(Ctl({"status"}).out, HasSubstr("none: no cgroup may be made"));
}

TEST_F(PluginCommandsTest, ADrainIsJoinedUntilItIsDone) {
  node_.drain_takes_calls = 2;
  const Ended run = Ctl({"plugin", "drain", "hostpath"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(node_.calls,
              ElementsAre("DrainPlugin hostpath", "DrainPlugin hostpath", "DrainPlugin hostpath"));
}

TEST_F(PluginCommandsTest, ADrainThatTakesTooLongSaysWhoHolds) {
  node_.drain_takes_calls = 1'000'000;
  for (const char* holder : {"v1 by job-1", "v2 by job-2", "v3 by job-3", "v4 by job-4"}) {
    node_.plugin.add_waiting_for(holder);
  }
  const Ended run = Ctl({"plugin", "drain", "hostpath", "--timeout", "50ms"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("still waits for v1 by job-1"), HasSubstr("1 more"),
                             HasSubstr("the same command joins it")));
}

TEST_F(PluginCommandsTest, ASwapPassesTheCommandOn) {
  node_.plugin.set_swap("swapped");
  Ended run = Ctl({"plugin", "swap", "hostpath", "--command", "/opt/new", "--accept-changes", "--",
                   "--endpoint=${CSI_ENDPOINT}", "-v", "plain"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "hostpath: READY, pid 4242\n");
  EXPECT_THAT(run.err, HasSubstr("swapped"));
  EXPECT_EQ(node_.swap_request.id(), "hostpath");
  EXPECT_EQ(node_.swap_request.command(), "/opt/new");
  EXPECT_TRUE(node_.swap_request.accept_changes());
  EXPECT_THAT(node_.swap_request.arguments(), ElementsAre("--endpoint=${CSI_ENDPOINT}", "-v", "plain"));

  run = Ctl({"plugin", "swap", "hostpath"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(node_.swap_request.command(), "");
  EXPECT_FALSE(node_.swap_request.accept_changes());
  ExpectJson(Ctl({"plugin", "swap", "hostpath", "-o", "json"}).out, node_.plugin);
}

TEST_F(PluginCommandsTest, AWrongSwapAsksNobody) {
  EXPECT_EQ(Ctl({"plugin", "swap", "hostpath", "--command", "new"}).exit_code, 2);
  EXPECT_EQ(Ctl({"plugin", "swap", "hostpath", "--", "-v"}).exit_code, 2);
  EXPECT_EQ(Ctl({"plugin", "swap"}).exit_code, 2);
  EXPECT_THAT(node_.calls, IsEmpty());
}

TEST_F(PluginCommandsTest, AReloadTellsWhatItDid) {
  node_.reloaded.add_started("a");
  node_.reloaded.add_unchanged("b");
  const Ended run = Ctl({"reload"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("a     started"), HasSubstr("b     unchanged")));
  ExpectJson(Ctl({"reload", "-o", "json"}).out, node_.reloaded);
}

TEST_F(PluginCommandsTest, AReloadTellsOfDeclaredVolumes) {
  node_.reloaded.add_volumes_declared("new.toml");
  node_.reloaded.add_volumes_withdrawn("old.toml");
  node_.reloaded.add_volumes_changed("other.toml");
  const Ended run = Ctl({"reload"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("new.toml    volume declared"), HasSubstr("old.toml    volume withdrawn"),
                    HasSubstr("other.toml  volume changed")));
}

TEST_F(PluginCommandsTest, AReloadWaitsUnlessItIsNotTo) {
  node_.reloaded.add_started("a");
  node_.reloaded.add_ready("a");
  const Ended waited = Ctl({"reload"});
  EXPECT_EQ(waited.exit_code, 0) << waited.err;
  EXPECT_TRUE(node_.reload_request.wait());
  EXPECT_THAT(waited.out, HasSubstr("a     started; ready"));
  node_.reloaded.clear_ready();
  node_.reloaded.add_pending("b");
  const Ended left = Ctl({"reload", "--no-wait"});
  EXPECT_EQ(left.exit_code, 0) << left.err;
  EXPECT_FALSE(node_.reload_request.wait());
  EXPECT_THAT(left.err, HasSubstr("not done yet, and going on: b"));
}

TEST_F(PluginCommandsTest, AReloadSaysWhatIsNotReady) {
  node_.reloaded.add_started("a");
  node_.reloaded.add_pending("a");
  const Ended late = Ctl({"reload"});
  EXPECT_EQ(late.exit_code, 5);
  EXPECT_THAT(late.err, HasSubstr("not ready in time, and going on: a"));
  node_.reloaded.add_failed("nfs: it is failed: no licence");
  const Ended failed = Ctl({"reload"});
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.err, AllOf(HasSubstr("nfs: it is failed: no licence"), HasSubstr("plugin logs")));
  node_.reloaded.add_broken("x.toml:1: not TOML");
  const Ended both = Ctl({"reload"});
  EXPECT_EQ(both.exit_code, 1);
  EXPECT_THAT(both.err, AllOf(HasSubstr("berthctl: nfs: it is failed: no licence\n"),
                              HasSubstr("berthctl: x.toml:1: not TOML\n"), HasSubstr("1 not ready")));
}

TEST_F(PluginCommandsTest, AReloadWithABrokenFileFailsAndNamesIt) {
  node_.reloaded.add_unchanged("b");
  node_.reloaded.add_broken("nfs: /etc/berth/plugins.d/nfs.toml:4: colour: unknown key");
  const Ended run = Ctl({"reload"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("unchanged"));
  EXPECT_THAT(run.err, HasSubstr("FAILED_PRECONDITION: nfs: /etc/berth/plugins.d/nfs.toml:4: colour"));
  node_.reloaded.add_broken("/etc/berth/volumes.d/data.toml:5: shape: unknown key");
  const Ended more = Ctl({"reload"});
  EXPECT_EQ(more.exit_code, 1);
  EXPECT_THAT(more.err,
              AllOf(HasSubstr("berthctl: nfs: /etc/berth/plugins.d/nfs.toml:4: colour: unknown key\n"),
                    HasSubstr("berthctl: /etc/berth/volumes.d/data.toml:5: shape: unknown key\n"),
                    HasSubstr("2 mistakes in files")));
  const Ended json = Ctl({"-o", "json", "reload"});
  EXPECT_EQ(json.exit_code, 1);
  ExpectJson(json.out, node_.reloaded);
  EXPECT_EQ(ErrorField(json, "code"), "FAILED_PRECONDITION");
}

}  // namespace
}  // namespace berth::cli
