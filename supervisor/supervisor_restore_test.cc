// What the next berthd finds: taken back, ended meanwhile, unknown processes, changed files.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "supervisor/testing/supervisor_fixture.h"

namespace berth {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(SupervisorTest, NextBerthdTakesARunningPluginBack) {
  WritePlugin("nfs", "\"--say\", \"once\"");
  node_->Start();
  const PluginSnapshot before = node_->WaitRegistered("nfs");
  NextBerthd();
  node_->Start();
  const PluginSnapshot after = node_->WaitRegistered("nfs");
  EXPECT_EQ(after.pid, before.pid);
  EXPECT_EQ(after.restarts, 0);
  EXPECT_LT(*after.started_at - *before.started_at, seconds(1));
  EXPECT_EQ(after.reason, "");
  EXPECT_THAT(node_->Events(), ElementsAre("plugin.adopted", "plugin.ready", "plugin.joined"));
  // Its end is seen, with what it has said; and it can be stopped.
  ASSERT_EQ(kill(after.pid, SIGKILL), 0);
  const PluginSnapshot again = node_->WaitOtherPid("nfs", after.pid);
  EXPECT_EQ(again.last_exit, "signal 9 (Killed)");
  EXPECT_THAT(again.last_output, ElementsAre("once"));
  NextBerthd();
  node_->Start();
  node_->WaitRegistered("nfs");
  EXPECT_TRUE(node_->Stop("nfs").ok());
}

TEST_F(SupervisorTest, PluginThatEndedMeanwhileIsLaunchedAgain) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  node_.reset();
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  node_ = std::make_unique<Node>(temp_.path());
  node_->Start();
  const PluginSnapshot plugin = node_->WaitRegistered("nfs");
  EXPECT_NE(plugin.pid, pid);
  EXPECT_THAT(plugin.last_exit, StartsWith("ended while berthd was away, no later than 20"));
  EXPECT_THAT(node_->EventText("plugin.exited"), HasSubstr("while berthd was away"));
}

TEST_F(SupervisorTest, StrangerWithTheRecordedPidIsNeverSignalled) {
  ProcessSpec spec;
  spec.executable = "/bin/sleep";
  spec.arguments = {"1000"};
  auto stranger = node_->Run(Process::Launch(node_->loop_.get_executor(), spec, Clock::now() + seconds(10)));
  ASSERT_TRUE(stranger.ok()) << stranger.status();
  RunRecord record;
  record.plugin_id = "nfs";
  record.process = *IdentifyProcess((*stranger)->pid());
  record.process.start_time -= 1;
  record.executed = true;
  record.stop_timeout = seconds(1);
  ASSERT_TRUE(MakeDirectories(RunDir("nfs"), 0750).ok());
  ASSERT_TRUE(WriteRunRecord(RunDir("nfs"), record).ok());
  WritePlugin("nfs");
  node_->Start();
  EXPECT_NE(node_->WaitRegistered("nfs").pid, (*stranger)->pid());
  EXPECT_THAT(node_->EventText("plugin.not_adopted"), HasSubstr("is another one now"));
  EXPECT_TRUE(node_->Stop("nfs", true).ok());
  EXPECT_TRUE(IdentifyProcess((*stranger)->pid()).ok()) << "the other process was ended";
  ASSERT_TRUE((*stranger)->Signal(SIGKILL).ok());
  node_->Run((*stranger)->Wait());
}

TEST_F(SupervisorTest, NoSecondInstanceBesideAProcessInDoubt) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  node_.reset();
  RunRecord record = *ReadRunRecord(RunDir("nfs"));
  // As once its socket has answered, which this berthd may not have come to write down.
  record.executed = true;
  record.process.executable = "/usr/bin/another";
  ASSERT_TRUE(WriteRunRecord(RunDir("nfs"), record).ok());
  node_ = std::make_unique<Node>(temp_.path());
  node_->Start();
  const PluginSnapshot plugin = node_->WaitState("nfs", PluginState::kFailed);
  EXPECT_THAT(plugin.reason, AllOf(HasSubstr(fmt::format("process {}", pid)), HasSubstr("/usr/bin/another")));
  EXPECT_EQ(node_->StartPlugin("nfs").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IdentifyProcess(pid).ok()) << "it was ended";
  // Once a person has ended it, the plugin starts.
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  EXPECT_TRUE(node_->StartPlugin("nfs").ok());
}

TEST_F(SupervisorTest, RecordOfAnotherBootIsDropped) {
  WritePlugin("nfs");
  RunRecord record;
  record.plugin_id = "nfs";
  record.process = *IdentifyProcess(getpid());
  record.process.boot_id = "another boot";
  record.executed = true;
  ASSERT_TRUE(MakeDirectories(RunDir("nfs"), 0750).ok());
  ASSERT_TRUE(WriteRunRecord(RunDir("nfs"), record).ok());
  node_->Start();
  EXPECT_NE(node_->WaitRegistered("nfs").pid, getpid());
}

TEST_F(SupervisorTest, DamagedRecordIsDroppedAndSaid) {
  WritePlugin("nfs");
  ASSERT_TRUE(MakeDirectories(RunDir("nfs"), 0750).ok());
  temp_.Write("run/plugins/nfs/run.toml", "pid = what");
  node_->Start();
  node_->WaitRegistered("nfs");
  EXPECT_THAT(node_->EventText("plugin.not_adopted"), HasSubstr("damaged"));
}

TEST_F(SupervisorTest, ChangedFileIsTakenBackAsItRunsAndARestartAppliesIt) {
  WritePlugin("nfs", "\"--say\", \"old\"");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  WritePlugin("nfs", "\"--say\", \"new\"");
  NextBerthd();
  node_->Start();
  const PluginSnapshot plugin = node_->WaitRegistered("nfs");
  EXPECT_EQ(plugin.pid, pid);
  EXPECT_THAT(plugin.reason, HasSubstr("its file has changed since it was launched"));
  EXPECT_TRUE(node_->Restart("nfs").ok());
  EXPECT_EQ(node_->Get("nfs").reason, "");
  EXPECT_EQ(Text("state/logs/nfs.log"), "old\nnew\n");
}

TEST_F(SupervisorTest, BrokenFileDoesNotCostARunningPlugin) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  WritePlugin("nfs", "", "colour = 1\n");
  NextBerthd();
  node_->Start();
  const PluginSnapshot plugin = node_->WaitRegistered("nfs");
  EXPECT_EQ(plugin.pid, pid);
  EXPECT_THAT(plugin.reason, AllOf(HasSubstr("runs on"), HasSubstr("nfs.toml:4: colour")));
  EXPECT_EQ(node_->Restart("nfs").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(node_->Get("nfs").pid, pid) << "a wrong file must not cost it";
  // Ended, it cannot come back.
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_THAT(node_->WaitState("nfs", PluginState::kFailed).reason, HasSubstr("nfs.toml:4: colour"));
}

// Published without them, a volume would come up without its access, or with another consumer's.
TEST_F(SupervisorTest, TokensOfAPluginWhoseFileIsBrokenAreStillWanted) {
  const std::string file = "[[token]]\naudience = \"vault\"\nname = \"vault-token\"\n";
  const WantedToken once{.audience = "vault", .name = "vault-token"};
  WantedToken renewed = once;
  renewed.republish = true;
  WritePlugin("nfs", "", file);
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  NextBerthd();
  WritePlugin("nfs", "", "colour = 1\n");
  node_->Start();
  EXPECT_THAT(node_->Get("nfs").tokens, ElementsAre(once));
  // What a reload changes without a new process is known to the next one, too.
  WritePlugin("nfs", "", file + "republish = true\n");
  EXPECT_TRUE(node_->Run(node_->supervisor_->Reload(Soon())).ok());
  EXPECT_THAT(node_->Get("nfs").tokens, ElementsAre(renewed));
  RemovePlugin("nfs");
  NextBerthd();
  node_->held_by_ = {"job-7"};
  node_->Start();
  const PluginSnapshot plugin = node_->WaitRegistered("nfs");
  EXPECT_EQ(plugin.pid, pid);
  EXPECT_THAT(plugin.tokens, ElementsAre(renewed));
}

TEST_F(SupervisorTest, PluginWhoseFileIsGoneIsStopped) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  RemovePlugin("nfs");
  NextBerthd();
  node_->Start();
  EXPECT_EQ(node_->Stop("nfs").code(), absl::StatusCode::kOk);
  EXPECT_EQ(IdentifyProcess(pid).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(node_->supervisor_->registry().Find("nfs"), nullptr);
  EXPECT_THAT(node_->EventText("plugin.adopted"), HasSubstr("its file is gone"));
  EXPECT_EQ(node_->Stop("nfs").code(), absl::StatusCode::kNotFound);
}

TEST_F(SupervisorTest, PluginWhoseFileIsGoneRunsWhileVolumesAreHeld) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  RemovePlugin("nfs");
  NextBerthd();
  node_->held_by_ = {"job-7"};
  node_->Start();
  const PluginSnapshot plugin = node_->WaitRegistered("nfs");
  EXPECT_EQ(plugin.pid, pid);
  EXPECT_THAT(plugin.reason, AllOf(HasSubstr("its file is gone"), HasSubstr("job-7")));
  node_->held_by_.clear();
  EXPECT_TRUE(node_->Stop("nfs").ok());
}

TEST_F(SupervisorTest, KilledBerthdNeverLeavesTwoInstances) {
  WritePlugin("nfs");
  int taken_back = 0;
  bool reached_the_end = false;
  for (int steps = 0; !reached_the_end; ++steps) {
    SCOPED_TRACE(fmt::format("killed after {} steps", steps));
    ASSERT_LT(steps, 200);
    node_.reset();
    // Executed, not only forked: this process has threads, and a child would have none of them.
    const std::string step_count = std::to_string(steps);
    const std::array<const char*, 5> arguments = {"berthd", "--berthd", temp_.path().c_str(),
                                                  step_count.c_str(), nullptr};
    pid_t berthd = 0;
    ASSERT_EQ(posix_spawn(&berthd, "/proc/self/exe", nullptr, nullptr,
                          const_cast<char* const*>(arguments.data()), environ),
              0);
    int status = 0;
    ASSERT_EQ(waitpid(berthd, &status, 0), berthd);
    reached_the_end = WIFEXITED(status);
    const absl::StatusOr<RunRecord> left = ReadRunRecord(RunDir("nfs"));
    node_ = std::make_unique<Node>(temp_.path());
    node_->Start();
    const pid_t pid = node_->WaitRegistered("nfs").pid;
    if (left.ok() && left->process.pid == pid) ++taken_back;
    ASSERT_NE(access(temp_.Path("state/plugins/nfs/twice").c_str(), F_OK), 0);
    ASSERT_TRUE(node_->Stop("nfs").ok());
    // Other instances are gone too: an unknown one would be our child now, and alive. One that was still at
    // the gate ends by itself, soon.
    const TimePoint bound = Clock::now() + std::chrono::seconds(10);
    while (waitpid(-1, nullptr, WNOHANG) != -1) ASSERT_LT(Clock::now(), bound);
  }
  EXPECT_GT(taken_back, 2);
}

}  // namespace
}  // namespace berth
