// FAULTS, rows 35 and 34: schedulers and nodes that are not believed, certificates that end, and a wall clock
// that jumps while a node is linked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "tests/harness/host_faults.h"
#include "tests/harness/link_test.h"

namespace berth {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

class FaultLinkIdentityTest : public LinkTest {
 protected:
  static constexpr size_t kAttempts = 8;

  // A node that dials the proxy kAttempts times without a pause, and again after pauses.
  void StartRefused() { StartDialling(std::vector<std::string>(kAttempts, proxy().address())); }
  // It has tried again and again since, and said it once, with this reason; nothing came of it.
  void ExpectRefusedOnce(const std::string& type, const std::string& reason) {
    WaitLinkError(reason);
    const size_t before = proxy().accepted();
    WaitFor("more attempts", [&] { return proxy().accepted() >= before + kAttempts; });
    const std::vector<v1::Event> told = Events(type);
    ASSERT_EQ(told.size(), 1U);
    EXPECT_THAT(told.front().message(), HasSubstr(reason));
    EXPECT_THAT(told.front().message(), Not(HasSubstr(proxy().address() + ": " + proxy().address())));
    EXPECT_EQ(Events("scheduler.connected").size(), 0U);
    EXPECT_FALSE(scheduler().Find(kNode).has_value());
    ExpectServed("meanwhile");
  }
  // What the events and the log say, and nothing of a key.
  void ExpectNoKeyTold() {
    std::string told = node_.log();
    for (const v1::Event& event : Events()) told += event.message();
    EXPECT_THAT(told, Not(HasSubstr("PRIVATE KEY")));
    EXPECT_THAT(told, Not(HasSubstr("BEGIN CERTIFICATE")));
  }
};

// --- Row 35: schedulers that the node does not believe
// -----------------------------------------------------------------

TEST_F(FaultLinkIdentityTest, Fault35ASchedulerOfAnotherNameIsRefusedAndToldOnce) {
  StartScheduler({}, ca_.Issue({.names = {"DNS:other.example"}}), ca_);
  StartRefused();
  ExpectRefusedOnce("scheduler.refused", "certificate is for other.example");
  EXPECT_EQ(Events("scheduler.lost").size(), 0U);
  ExpectNoKeyTold();
}

TEST_F(FaultLinkIdentityTest, Fault35ASchedulerWhoseCertificateHasExpiredIsRefusedAndToldOnce) {
  StartScheduler(
      {}, ca_.Issue({.names = {"DNS:scheduler.example"}, .valid_from = -hours(3), .valid_to = -hours(1)}),
      ca_);
  StartRefused();
  ExpectRefusedOnce("scheduler.refused", "certificate has expired");
}

TEST_F(FaultLinkIdentityTest, Fault35ASchedulerOfAForeignAuthorityIsRefusedAndToldOnce) {
  const TestCa foreign("storage CA");  // By the same name.
  StartScheduler({}, foreign.Issue({.names = {"DNS:scheduler.example"}}), ca_);
  StartRefused();
  ExpectRefusedOnce("scheduler.refused", "the scheduler's certificate is refused");
  // Once it has the right one, it is taken.
  StartScheduler();
  WaitLinked();
  EXPECT_THAT(Link().last_error(), "");
}

// --- Row 35: who does not believe the node
// ------------------------------------------------------------------

TEST_F(FaultLinkIdentityTest,
       Fault35ANodeThatTheSchedulerDoesNotBelieveSaysSoOnceAndTakesARenewedCertificate) {
  const TestCa foreign("another CA");
  StartScheduler();
  WriteNodeFiles(foreign.Issue({.names = {"DNS:node-1"}}));
  StartRefused();
  ExpectRefusedOnce("scheduler.lost", "refuses this node's certificate");
  ExpectNoKeyTold();
  // Without a restart.
  const pid_t berthd = BerthdPid();
  WriteNodeFiles(NodeCertificate());
  WaitLinked();
  EXPECT_EQ(BerthdPid(), berthd);
}

TEST_F(FaultLinkIdentityTest, Fault35ANodeThatIsToldToGoSaysSoOnceAndGoesOnAsking) {
  StartScheduler();
  scheduler().Refuse(grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "this node is not one of ours"));
  StartRefused();
  ExpectRefusedOnce("scheduler.refused", "this node is not one of ours");
  scheduler().Refuse(std::nullopt);
  WaitLinked();
}

TEST_F(FaultLinkIdentityTest, Fault35FilesThatDoNotDoAreNamedOnceAndTakenWhenTheyAreMended) {
  StartScheduler();
  WriteNodeFiles(NodeCertificate());
  ASSERT_EQ(chmod(TlsFile("node.key").c_str(), 0644), 0);
  StartRefused();
  WaitLinkError("node.key");
  ExpectServed("meanwhile");
  EXPECT_EQ(proxy().accepted(), 0U);  // no connection at all
  ASSERT_EQ(chmod(TlsFile("node.key").c_str(), 0600), 0);
  WaitLinked();
  EXPECT_EQ(Events("scheduler.refused").size(), 1U);
}

// --- Row 35: what changes while the link stands
// -------------------------------------------------------------

TEST_F(FaultLinkIdentityTest, Fault35ASchedulerThatIsRevokedIsLeftAndItsVolumesStay) {
  const TestCertificate certificate = SchedulerCertificate();
  StartScheduler({}, certificate, ca_);
  WriteNodeFiles(NodeCertificate(), ca_.Crl({}));
  StartLinked();
  const std::string volume = CreateVolume("kept");
  const std::string target = PublishFromAfar(volume);
  WriteCrl(ca_.Crl({certificate.serial}));
  WaitLinkError("certificate revoked");
  WaitFor("the refusal to be reported", [this] { return !Events("scheduler.refused").empty(); });
  EXPECT_EQ(Events("scheduler.lost").size(), 1U);
  EXPECT_EQ(Events("scheduler.refused").size(), 1U);
  EXPECT_EQ(MountsAt(target), 1);
  ExpectServed("meanwhile");
  // Its successor has a certificate of its own.
  StartScheduler({.epoch = 2});
  WaitLinked();
  UnpublishFromAfar(volume);
  EXPECT_EQ(MountsAt(target), 0);
}

// --- Row 34: the wall clock jumps
// ---------------------------------------------------------------------------

class FaultLinkClockTest : public LinkTest {
 protected:
  FaultLinkClockTest() : host_(node_) {}

  // Berthd's wall clock alone.
  void Jump(hours by) { host_.ShiftWallClock(by); }
  // The time on berthd's clock, from an event that it makes now.
  std::chrono::system_clock::time_point Now() {
    const std::vector<v1::Event> events = Events();
    return std::chrono::system_clock::from_time_t(events.back().time().seconds());
  }

  HostFaults host_;
};

TEST_F(FaultLinkClockTest, Fault35ALinkEndsWithTheCertificateThatItWasMadeWith) {
  WriteNodeFiles(ca_.Issue({.names = {"DNS:node-1"}, .valid_to = hours(1)}));
  StartLinked();
  WriteNodeFiles(NodeCertificate());
  Jump(hours(2));
  // It was renewed in time: the next link takes the new one.
  WaitLinked(2);
  const std::vector<v1::Event> lost = Events("scheduler.lost");
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_THAT(lost.front().message(), HasSubstr("certificate has run out since the link was made"));
  EXPECT_EQ(Events("scheduler.refused").size(), 0U);
}

// In the middle of an operator's change, say.
TEST_F(FaultLinkClockTest, Fault35ALinkEndsWithItsCertificateAlsoWhileTheFilesCannotBeRead) {
  WriteNodeFiles(ca_.Issue({.names = {"DNS:node-1"}, .valid_to = hours(1)}));
  StartLinked();
  std::ofstream(TlsFile("node.pem"), std::ios::trunc).flush();
  const uint64_t heartbeats = Told().heartbeats;
  scheduler().WaitNode(kNode, "the link to stand on what was read last",
                       [&](const TestScheduler::Node& node) { return node.heartbeats >= heartbeats + 5; });
  EXPECT_EQ(Events("scheduler.lost").size(), 0U);
  Jump(hours(2));
  WaitFor("the loss to be reported", [this] { return !Events("scheduler.lost").empty(); });
  EXPECT_THAT(Events("scheduler.lost").front().message(), HasSubstr("has run out since the link was made"));
  WriteNodeFiles(NodeCertificate());
  WaitLinked(2);
}

// By so many hours.
class FaultWallClockTest : public FaultLinkClockTest, public testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Jumps, FaultWallClockTest, testing::Values(6, -6),
                         [](const auto& jump) { return jump.param > 0 ? "Forward" : "Backward"; });

TEST_P(FaultWallClockTest, Fault34TheLinkStandsItsLeaseHoldsAndItsHeartbeatsGoOn) {
  StartScheduler({.lease = seconds(5), .heartbeat = milliseconds(500)});
  StartLinked();
  const std::string volume = CreateVolume("kept");
  Jump(hours(GetParam()));
  const std::string target = PublishFromAfar(volume);
  const uint64_t heartbeats = Told().heartbeats;
  // For longer than a lease holds.
  scheduler().WaitNode(kNode, "heartbeats",
                       [&](const TestScheduler::Node& node) { return node.heartbeats >= heartbeats + 15; });
  const auto jumped = Now() - std::chrono::system_clock::now();
  EXPECT_GT(std::chrono::abs(jumped), hours(5)) << "the clock did not jump";
  EXPECT_EQ(Link().lease(), v1::LEASE_VALID);
  EXPECT_EQ(Told().streams, 1U);
  EXPECT_EQ(Events("lease.granted").size(), 1U);
  EXPECT_EQ(Events("lease.expired").size(), 0U);
  EXPECT_EQ(MountsAt(target), 1);
  ExpectServed("meanwhile");
}

TEST_P(FaultWallClockTest, Fault34ALeaseThatIsNotRenewedRunsOutInItsTime) {
  StartScheduler({.lease = seconds(5)});
  StartLinked();
  // The last lease was asked for a moment before this at the earliest.
  const auto began = std::chrono::steady_clock::now();
  scheduler().GrantLeases(false);
  Jump(hours(GetParam()));
  scheduler().WaitNode(kNode, "the lease to run out", [](const TestScheduler::Node& node) {
    return node.state.lease() == v1::LEASE_EXPIRED;
  });
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_GT(took, seconds(2));
  EXPECT_LT(took, seconds(15));
  scheduler().GrantLeases(true);
  WaitLinked();
}

TEST_P(FaultWallClockTest, Fault34TheNextAttemptComesAfterItsPause) {
  StartLinked();
  proxy().Refuse(true);
  proxy().Cut();
  WaitFor("a pause", [this] { return Link().has_next_attempt_at(); });
  Jump(hours(GetParam()));
  proxy().Refuse(false);
  const auto began = std::chrono::steady_clock::now();
  WaitLinked(2);
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(10));
}

TEST_P(FaultWallClockTest, Fault34OnlyCertificatesAreJudgedByTheWallClock) {
  const TestCertificate brief =
      ca_.Issue({.names = {"DNS:scheduler.example"}, .valid_from = -hours(1), .valid_to = hours(1)});
  StartScheduler({}, brief, ca_);
  StartLinked();
  Jump(hours(GetParam()));
  WaitLinkError(GetParam() > 0 ? "certificate has expired" : "certificate is not yet valid");
  ExpectServed("meanwhile");
  Jump(hours(0));
  WaitLinked(2);
}

}  // namespace
}  // namespace berth
