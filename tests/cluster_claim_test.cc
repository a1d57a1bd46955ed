// Claims of volumes that several nodes reach, with berth-scheduler, berthd, a plugin and berthctl as they
// are.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "base/testing/temp_dir.h"
#include "base/unique_fd.h"
#include "tests/harness/cluster.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ClusterClaimTest : public Cluster {
 protected:
  ClusterClaimTest() {
    for (const char* const directory : {"", "/volumes", "/attached"})
      mkdir((store_ + directory).c_str(), 0700);
  }

  // Nodes that reach the same storage, and the volume prod/ID for each of `volumes`, registered in `access`.
  void Start(int nodes, const std::string& access = "single-node-writer",
             const std::vector<std::string>& volumes = {"db"}) {
    scheduler_.Start();
    for (int i = 1; i <= nodes; ++i) {
      Node& node = AddNode(fmt::format("node-{}", i));
      node.WritePlugin("shared", fmt::format("kind = \"monolith\"\ncommand = \"{}\"\nargs = [\"{}\", "
                                             "\"storage-{}\", \"without-attach\"]\n",
                                             SHARED_PLUGIN, store_, i));
      node.Start();
    }
    WaitDriverReadyOn(nodes);
    for (const std::string& volume : volumes) {
      mkdir((store_ + "/volumes/" + volume).c_str(), 0700);
      Says(fmt::format("volume register prod/{} --driver shared.berth.test --access {}", volume, access));
    }
  }
  static std::string Claim(const std::string& consumer, int node, const std::string& more = "") {
    return fmt::format("volume claim prod/db --consumer {} --node node-{} {}", consumer, node, more);
  }
  static std::string Release(const std::string& consumer) {
    return "volume release prod/db --consumer " + consumer;
  }
  std::string Claims() const { return Says("claim list"); }
  // What the storage has really done, in order.
  [[nodiscard]] std::string History() const { return ReadText(store_ + "/history"); }
  static std::string Path(const std::string& answer) { return answer.substr(0, answer.find('\n')); }

  TempDir directory_;
  std::string store_ = directory_.path() + "/store";
};

TEST_F(ClusterClaimTest, AVolumeGoesFromNodeToNodeAndIsNeverOnTwo) {
  Start(3);
  const std::string path = Path(Says(Claim("web", 1)));
  EXPECT_EQ(Path(Says(Claim("web", 1))), path) << "the same claim has the same answer";
  EXPECT_EQ(RunCommand("touch " + path + "/data").exit_code, 0);
  EXPECT_THAT(Ctl(Claim("web", 2)).said, HasSubstr("prod/db for web is there, with another node"));
  const Ended refused = Ctl(Claim("batch", 2));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.said, AllOf(HasSubstr("is for one node at a time (SINGLE_NODE_WRITER)"),
                                  HasSubstr("it is claimed by web on node-1, which writes")));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Ctl(Claim("batch", 2)).said, refused.said);
  const std::string log = scheduler_.log();
  const size_t told = log.find("refused to batch on node-2: volume prod/db");
  EXPECT_NE(told, std::string::npos) << log;
  EXPECT_EQ(log.find("refused to batch", told + 1), std::string::npos) << "it is reported once";
  EXPECT_THAT(Claims(), AllOf(StartsWith("cluster test:\n"), ContainsRegex("prod/db +web +node-1 +mounted")));
  EXPECT_THAT(Says("claim show prod/db --consumer web"), ContainsRegex("path on the node +" + path));
  EXPECT_THAT(Says("volume show prod/db"), ContainsRegex("web +node-1 +mounted"));
  EXPECT_THAT(Ctl("volume deregister prod/db").said, HasSubstr("prod/db is claimed by web on node-1"));

  EXPECT_THAT(Says(Release("web")), Not(HasSubstr("not claimed")));
  EXPECT_THAT(Says(Release("web")), HasSubstr("it was not claimed"));
  EXPECT_THAT(Claims(), HasSubstr("no claims"));
  for (const int node : {2, 3}) {
    const std::string there = Path(Says(Claim("batch", node)));
    EXPECT_EQ(RunCommand("ls " + there).said, "data\n");
    Says(Release("batch"));
  }
  EXPECT_EQ(History(),
            "publish db storage-1\nunpublish db storage-1\npublish db storage-2\nunpublish db storage-2\n"
            "publish db storage-3\nunpublish db storage-3\n");
  Says("volume deregister prod/db");
}

TEST_F(ClusterClaimTest, AVolumeThatIsStillUsedStaysClaimedUntilItIsNotAndIsFreeByItselfThen) {
  Start(2);
  const std::string path = Path(Says(Claim("web", 1)));
  UniqueFd held(open((path + "/data").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(held.valid());
  const Ended busy = Ctl("--timeout 3s " + Release("web"));
  EXPECT_EQ(busy.exit_code, 1);
  EXPECT_THAT(busy.said, AllOf(HasSubstr("it is being released, and not free yet"),
                               HasSubstr(fmt::to_string(getpid())), HasSubstr("the same command joins it")));
  EXPECT_THAT(Says("claim show prod/db --consumer web"),
              AllOf(ContainsRegex("state +leaving"), ContainsRegex("leaves because +it was released"),
                    ContainsRegex("last error +.*" + fmt::to_string(getpid()))));
  EXPECT_THAT(Ctl(Claim("web", 1)).said, HasSubstr("is being released"));
  EXPECT_THAT(Ctl(Claim("batch", 2)).said, HasSubstr("web on node-1, which writes, and is being released"));
  held.Reset();
  WaitFor("the claim ends", [this] { return Claims().find("no claims") != std::string::npos; });
  Says(Claim("batch", 2));
  EXPECT_EQ(History(), "publish db storage-1\nunpublish db storage-1\npublish db storage-2\n");
}

TEST_F(ClusterClaimTest, ANodeThatIsAwayKeepsItsClaimAndAReleaseWaitsForIt) {
  Start(2);
  Says(Claim("web", 1));
  nodes_[0]->Kill();
  scheduler_.WaitAway("node-1");
  EXPECT_THAT(Ctl(Claim("batch", 2)).said, HasSubstr("web on node-1"));
  EXPECT_THAT(Ctl(Claim("other", 1)).said, HasSubstr("node node-1 is not connected"));
  EXPECT_THAT(Ctl("--timeout 1s " + Release("web")).said, HasSubstr("node node-1 to connect"));
  EXPECT_THAT(Ctl(Claim("batch", 2)).said, HasSubstr("web on node-1"));
  nodes_[0]->Start();
  Says(Release("web"));
  Says(Claim("batch", 2));
  EXPECT_EQ(History(), "publish db storage-1\nunpublish db storage-1\npublish db storage-2\n");
}

// Killed at any moment: with a claim that is mounted, that is asked for, that is being released.
TEST_F(ClusterClaimTest, Fault32ClaimsOutliveAKilledScheduler) {
  Start(2);
  const std::string path = Path(Says(Claim("web", 1)));
  const auto restart = [this] {
    scheduler_.Kill();
    scheduler_.Start();
    for (const char* const node : {"node-1", "node-2"}) scheduler_.WaitConnected(node);
  };
  restart();
  EXPECT_THAT(Claims(), ContainsRegex("prod/db +web +node-1 +mounted"));
  EXPECT_EQ(Path(Says(Claim("web", 1))), path);
  EXPECT_THAT(Ctl(Claim("batch", 2)).said, HasSubstr("claimed by web on node-1"));
  // Nodes dial again after growing pauses.
  constexpr int kKills = 2;
  for (int i = 0; i < kKills; ++i) {
    // Later and later after the call has begun.
    Ctl(fmt::format("--timeout {}ms {}", 1 + (i * 15), Release("web")));
    restart();
    Says(Release("web"));
    Says(Claim("batch", 2));
    Says(Release("batch"));
    Says(Claim("web", 1));
  }
  std::string expected = "publish db storage-1\n";
  for (int i = 0; i < kKills; ++i)
    expected +=
        "unpublish db storage-1\npublish db storage-2\nunpublish db storage-2\npublish db storage-1\n";
  EXPECT_EQ(History(), expected);
}

TEST_F(ClusterClaimTest, WithoutItsPluginAReleaseSaysWhatIsMissingAndGoesOnWhenItIsThere) {
  Start(2);
  Says(Claim("web", 1));
  const auto on_node = [this](const std::string& command) {
    return RunCommand(fmt::format("{} --socket {} plugin {} shared", BERTHCTL, nodes_[0]->socket(), command));
  };
  ASSERT_EQ(on_node("stop --force").exit_code, 0);
  EXPECT_THAT(Ctl("--timeout 2s " + Release("web")).said, HasSubstr("not free yet"));
  EXPECT_THAT(Says("claim show prod/db --consumer web"), HasSubstr("its plugin shared is STOPPED there"));
  EXPECT_THAT(Ctl("node forget node-1").said, HasSubstr("node node-1 has 1 claim, of volume prod/db"));
  EXPECT_THAT(Ctl("volume deregister prod/db").said, HasSubstr("web on node-1, and is being released"));
  EXPECT_THAT(Ctl(Claim("batch", 2)).said, HasSubstr("web on node-1"));
  ASSERT_EQ(on_node("start").exit_code, 0);
  Says(Release("web"));
  Says("volume deregister prod/db");
}

TEST_F(ClusterClaimTest, AClaimWhoseConsumerHasEndedLeavesByItself) {
  Start(2);
  const pid_t consumer = fork();
  if (consumer == 0) {
    pause();
    _exit(0);
  }
  Says(Claim("web", 1, fmt::format("--pid {}", consumer)));
  kill(consumer, SIGKILL);
  waitpid(consumer, nullptr, 0);
  WaitFor("the claim ends", [this] { return Claims().find("no claims") != std::string::npos; });
  EXPECT_THAT(scheduler_.log(), HasSubstr("is not claimed for web on node-1 any more"));
  Says(Claim("batch", 2));
}

TEST_F(ClusterClaimTest, WhatTheNodeRefusesIsTheCallersAnswerAndLeavesNothing) {
  Start(1);
  const Ended refused = Ctl(Claim("web", 1, "--pid 999999999"));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.said, AllOf(HasSubstr("could not be published on node-1"), HasSubstr("999999999")));
  WaitFor("the claim ends", [this] { return Claims().find("no claims") != std::string::npos; });
  Says(Claim("web", 1));
  EXPECT_THAT(Ctl("volume claim prod/nothing --consumer web --node node-1").said,
              HasSubstr("no volume prod/nothing is registered"));
  EXPECT_THAT(Ctl("volume claim prod/db --consumer a --node nowhere").said,
              HasSubstr("no node nowhere was ever connected"));
  EXPECT_THAT(Ctl("volume claim prod/db --consumer a").said, HasSubstr("--node is missing"));
  EXPECT_THAT(Ctl(Claim("web", 1, "--access multi-node-multi-writer")).said,
              HasSubstr("prod/db is registered for SINGLE_NODE_WRITER"));
}

TEST_F(ClusterClaimTest, EachCommandAnswersInJson) {
  Start(1);
  const auto json = [this](const std::string& command) { return Says("-o json " + command); };
  EXPECT_THAT(json("volume register prod/db --driver shared.berth.test --access single-node-writer"),
              AllOf(HasSubstr("\"cluster_id\":\"test\""), HasSubstr("\"needs_attach\":false")));
  EXPECT_THAT(json(Claim("web", 1)),
              AllOf(HasSubstr("\"phase\":\"HELD\""), HasSubstr("\"source_path\":\"/")));
  EXPECT_THAT(json("claim list"), AllOf(HasSubstr("\"cluster_id\":\"test\""), HasSubstr("\"claims\":[{")));
  EXPECT_THAT(json("claim show prod/db --consumer web"),
              AllOf(HasSubstr("\"step\":\"\""), HasSubstr("\"tries\":0"), HasSubstr("\"last_error\":\"\"")));
  EXPECT_THAT(json("volume show prod/db"),
              AllOf(HasSubstr("\"claims\":1"), HasSubstr("\"consumer\":\"web\"")));
  EXPECT_THAT(json("volume list"), HasSubstr("\"external_id\":\"db\""));
  EXPECT_THAT(json(Release("web")), HasSubstr("\"was_claimed\":true"));
  EXPECT_THAT(json(Release("web")), HasSubstr("\"was_claimed\":false"));
  EXPECT_THAT(json("volume deregister prod/db"), HasSubstr("\"was_registered\":true"));
  EXPECT_THAT(json("node forget nobody"), HasSubstr("\"was_known\":false"));
}

TEST_F(ClusterClaimTest, ReadersOfSeveralNodesShareAVolume) {
  Start(2, "multi-node-single-writer");
  Says(Claim("writer", 1));
  Says(Claim("reader", 2, "--readonly"));
  Says(Claim("reader2", 1, "--readonly"));
  EXPECT_THAT(Ctl(Claim("second", 2)).said, HasSubstr("takes one claim that writes"));
  Says(Release("writer"));
  Says(Claim("second", 2));
  EXPECT_THAT(Says("-o json claim list --node node-2"),
              AllOf(HasSubstr("\"consumer\":\"second\""), HasSubstr("\"writes\":true"),
                    Not(HasSubstr("reader2")), HasSubstr("\"waits_for\":\"\"")));
}

}  // namespace
}  // namespace berth
