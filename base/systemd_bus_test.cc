// The calls, against a peer that speaks D-Bus as systemd does.
#include "base/systemd_bus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/testing/fake_systemd.h"
#include "base/testing/run_on.h"

namespace berth {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::Status StartScope(const std::vector<SystemdBus::Address>& addresses,
                        Duration within = std::chrono::seconds(20)) {
  asio::io_context loop;
  const SystemdBus bus(addresses);
  ScopeRequest request;
  request.name = "berth-plugin-a\\x2db.scope";
  request.slice = "berth-plugins.slice";
  request.description = "a test";
  request.pid = getpid();
  request.memory_max = 1 << 20;
  request.cpus = 0.5;
  request.oom_policy = "kill";
  request.before = "berthd.service";
  return RunOn(loop, bus.StartScope(request, Clock::now() + within));
}

TEST(SystemdBusTest, StartsAScope) {
  const FakeSystemd systemd(FakeSystemd::Manner::kDone);
  EXPECT_EQ(StartScope({systemd.address()}), absl::OkStatus());
  EXPECT_EQ(systemd.unit(), "berth-plugin-a\\x2db.scope");
  // So that berthd, which releases declared volumes through its plugins as the machine goes down, is stopped
  // before they are.
  EXPECT_THAT(systemd.before(), ElementsAre("berthd.service"));
}

TEST(SystemdBusTest, TellsWhetherTheMachineIsStopping) {
  FakeSystemd systemd(FakeSystemd::Manner::kDone);
  asio::io_context loop;
  const SystemdBus bus({systemd.address()});
  for (const char* state : {"running", "degraded", "starting", "maintenance"}) {
    systemd.SetSystemState(state);
    EXPECT_EQ(RunOn(loop, bus.IsStopping(Clock::now() + std::chrono::seconds(20))).value(), false) << state;
  }
  systemd.SetSystemState("stopping");
  EXPECT_EQ(RunOn(loop, bus.IsStopping(Clock::now() + std::chrono::seconds(20))).value(), true);
}

TEST(SystemdBusTest, WhereTheBusGoesBeforeItsAnswerSystemdItselfIsAsked) {
  const FakeSystemd bus_that_stops(FakeSystemd::Manner::kHangsUp);
  FakeSystemd systemd(FakeSystemd::Manner::kDone);
  systemd.SetSystemState("stopping");
  asio::io_context loop;
  const SystemdBus bus({bus_that_stops.address(), systemd.address()});
  EXPECT_EQ(RunOn(loop, bus.IsStopping(Clock::now() + std::chrono::seconds(20))).value(), true);
  const SystemdBus gone({bus_that_stops.address()});
  const auto unknown = RunOn(loop, gone.IsStopping(Clock::now() + std::chrono::seconds(20)));
  EXPECT_TRUE(absl::IsUnavailable(unknown.status())) << unknown.status();
}

TEST(SystemdBusTest, AsksTheVersion) {
  const FakeSystemd systemd(FakeSystemd::Manner::kDone);
  asio::io_context loop;
  const SystemdBus bus({systemd.address()});
  const auto version = RunOn(loop, bus.Version(Clock::now() + std::chrono::seconds(20)));
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, "252.1-test");
}

TEST(SystemdBusTest, TellsHowItsJobFailed) {
  const FakeSystemd systemd(FakeSystemd::Manner::kJobFails);
  const absl::Status status = StartScope({systemd.address()});
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ended as \"failed\""));
}

TEST(SystemdBusTest, TellsErrorsApart) {
  const FakeSystemd exists(FakeSystemd::Manner::kExists);
  EXPECT_TRUE(absl::IsAlreadyExists(StartScope({exists.address()})));
  const FakeSystemd old(FakeSystemd::Manner::kUnknownProperty);
  EXPECT_TRUE(absl::IsInvalidArgument(StartScope({old.address()})));
}

TEST(SystemdBusTest, SilentPeerMeetsTheDeadline) {
  const FakeSystemd systemd(FakeSystemd::Manner::kSilent);
  EXPECT_TRUE(absl::IsDeadlineExceeded(StartScope({systemd.address()}, std::chrono::milliseconds(300))));
}

TEST(SystemdBusTest, PeerThatHangsUpIsUnavailable) {
  const FakeSystemd systemd(FakeSystemd::Manner::kHangsUp);
  EXPECT_TRUE(absl::IsUnavailable(StartScope({systemd.address()})));
}

TEST(SystemdBusTest, NoBusIsUnavailable) {
  const absl::Status status = StartScope({{"/no/such/bus", true}, {"/no/such/private", false}});
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/bus"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/private"));
}

TEST(SystemdBusTest, TheSecondAddressServesWhereTheFirstDoesNot) {
  const FakeSystemd systemd(FakeSystemd::Manner::kDone);
  EXPECT_EQ(StartScope({{"/no/such/bus", true}, systemd.address()}), absl::OkStatus());
}

TEST(SystemdBusTest, EscapesAsSystemdEscapeDoes) {
  EXPECT_EQ(EscapeUnitName("a-b"), "a\\x2db");
  EXPECT_EQ(EscapeUnitName("nfs.csi_k8s:io"), "nfs.csi_k8s:io");
  EXPECT_EQ(EscapeUnitName(".hidden"), "\\x2ehidden");
  EXPECT_EQ(EscapeUnitName("a/b c\\"), "a-b\\x20c\\x5c");
}

}  // namespace
}  // namespace berth
