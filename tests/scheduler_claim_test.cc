// A workload without rights of its own asks the scheduler for its volume: the built berthctl as an
// unprivileged user, a real berthd, a real plugin and real mounts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <future>
#include <string>

#include "tests/harness/scheduler_fixture.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Who may claim, who may not, and both may do nothing else.
constexpr uid_t kClaimer = 65534;
constexpr uid_t kNoClaimer = 65533;

struct Ended {
  int exit_code = -1;
  std::string output;  // both streams
};

Ended RunShell(const std::string& command) {
  Ended ended;
  FILE* out = popen((command + " 2>&1").c_str(), "re");
  if (out == nullptr) return ended;
  std::array<char, 4096> piece{};
  for (size_t size = 0; (size = fread(piece.data(), 1, piece.size(), out)) > 0;) {
    ended.output.append(piece.data(), size);
  }
  const int status = pclose(out);
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

class SchedulerClaimTest : public SchedulerTest {
 protected:
  void StartWithClaimers() {
    StartLinked(fmt::format("[access]\nclaim_group = {}\n", kClaimer));
    scheduler_->OnAsk([](const v1::Ask&) { return std::nullopt; });
  }
  // berthctl, run as that user; it finds the node's sockets by itself.
  [[nodiscard]] std::string Berthctl(uid_t uid, const std::string& words) const {
    return fmt::format("env BERTH_RUNTIME_DIR={} {} --timeout 50s {}", node_.runtime_dir(),
                       node_.CommandAs(uid, BERTHCTL), words);
  }
  // Runs during the test, to its end.
  [[nodiscard]] std::future<Ended> Claim(uid_t uid) const {
    return std::async(std::launch::async, RunShell,
                      Berthctl(uid, "volume claim jobs/data --consumer web --fs ext4 --replace old --wait"));
  }
  v1::Ask WaitAsk() {
    const auto node = scheduler_->WaitNode(
        kNode, "the claim", [](const TestScheduler::Node& known) { return !known.asks.empty(); });
    return node.asks.begin()->second;
  }
  static bool IsThere(const std::future<Ended>& claimed) {
    return claimed.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  void Answer(const v1::Ask& ask, v1::Answer answer) {
    v1::SchedulerMessage message;
    answer.set_number(ask.number());
    *message.mutable_answer() = std::move(answer);
    scheduler_->Send(kNode, message);
  }
};

TEST_F(SchedulerClaimTest, AWorkloadWithoutRightsWaitsUntilTheSchedulerAnswers) {
  StartWithClaimers();
  const std::string volume = CreateVolume("claimed");
  std::future<Ended> claimed = Claim(kClaimer);
  const v1::Ask ask = WaitAsk();
  EXPECT_EQ(ask.claim().namespace_(), "jobs");
  EXPECT_EQ(ask.claim().volume(), "data");
  EXPECT_EQ(ask.claim().consumer(), "web");
  EXPECT_EQ(ask.claim().uid(), kClaimer);
  EXPECT_EQ(ask.claim().gid(), kClaimer);
  EXPECT_EQ(ask.claim().capability().fs_type(), "ext4");
  ASSERT_EQ(ask.claim().replaces_size(), 1);
  EXPECT_EQ(ask.claim().replaces(0), "old");
  v1::SchedulerMessage waits;
  waits.mutable_ask_progress()->set_number(ask.number());
  waits.mutable_ask_progress()->set_text("old still has it");
  scheduler_->Send(kNode, waits);
  const std::string target = PublishFromAfar(volume, "web");
  EXPECT_FALSE(IsThere(claimed)) << "published is not granted";
  v1::Answer answer;
  answer.mutable_claim()->set_plugin_id("fault");
  answer.mutable_claim()->set_volume_id(volume);
  Answer(ask, answer);
  const Ended ended = claimed.get();
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  EXPECT_EQ(ended.output, "berthctl: old still has it\n" + target + "\n")
      << "the path alone, and what it waited for";
  EXPECT_EQ(MountsAt(target), 1);

  scheduler_->OnAsk([](const v1::Ask& asked) {
    std::optional<v1::Answer> released;
    if (asked.has_release()) released.emplace().mutable_release();
    return released;
  });
  const Ended release = RunShell(Berthctl(kClaimer, "volume release jobs/data --consumer web"));
  EXPECT_EQ(release.exit_code, 0) << release.output;
  const TestScheduler::Node told = *scheduler_->Find(kNode);
  const v1::ReleaseAsk& released = told.asks.rbegin()->second.release();
  EXPECT_EQ(released.namespace_() + "/" + released.volume() + " " + released.consumer(), "jobs/data web");
  EXPECT_EQ(released.uid(), kClaimer) << "who asks, as the kernel says";
  UnpublishFromAfar(volume);
}

TEST_F(SchedulerClaimTest, WhileTheSchedulerIsAwayAClaimFailsOrWaitsForItsWords) {
  StartWithClaimers();
  GoAway();
  WaitFor("the node to notice", [this] {
    v1::GetStatusResponse status;
    EXPECT_TRUE(node_.stub().GetStatus(Node::Context().get(), {}, &status).ok());
    return status.scheduler().state() == v1::LinkStatus::DIALLING;
  });
  const Ended at_once = RunShell(Berthctl(kClaimer, "volume claim jobs/data --consumer web"));
  EXPECT_NE(at_once.exit_code, 0);
  EXPECT_THAT(at_once.output, HasSubstr("the scheduler is not connected"));
  std::future<Ended> claimed = Claim(kClaimer);
  ComeBack();
  const v1::Ask ask = WaitAsk();
  EXPECT_FALSE(IsThere(claimed));
  v1::Answer answer;
  answer.set_code(static_cast<int>(grpc::StatusCode::PERMISSION_DENIED));
  answer.set_message("data is not for web");
  Answer(ask, answer);
  const Ended ended = claimed.get();
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(ended.output, HasSubstr("the scheduler: data is not for web"));
}

TEST_F(SchedulerClaimTest, WhoIsNoClaimerIsRefusedWithTheGroupThatMayClaim) {
  StartWithClaimers();
  const Ended ended = Claim(kNoClaimer).get();
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("claim.sock: Permission denied"), HasSubstr("may connect to"),
                                  HasSubstr("sudo usermod -aG ")));
  EXPECT_TRUE(scheduler_->Find(kNode)->asks.empty()) << "the scheduler is not bothered with it";
  // And the right to claim is that and no other.
  const Ended other = RunShell(Berthctl(kClaimer, "status"));
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.output, HasSubstr("berthd-ro.sock: Permission denied"));
}

}  // namespace
}  // namespace berth
