// The built berthctl: health.
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/unique_fd.h"
#include "cli/testing/fake_node.h"
#include "cli/testing/run_berthctl.h"

namespace berth::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class HealthCommandTest : public testing::Test {
 protected:
  HealthCommandTest() {
    node_.status.set_node_id("node-1");
    node_.status.set_plugins(2);
    node_.status.set_plugins_ready(2);
    node_.status.set_volumes(7);
    node_.status.set_health(v1::HEALTHY);
  }
  Ended Health(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"--socket", node_.socket(), "health"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunBerthctl(std::move(arguments));
  }

  FakeNode node_;
};

TEST_F(HealthCommandTest, ANodeThatIsWellIsOneLineAndExitCode0) {
  const Ended run = Health();
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out,
            "BERTH OK - node-1: 2 of 2 plugins ready, 7 volumes | plugins=2 plugins_ready=2 volumes=7 "
            "publications=0 problems=0\n");
  EXPECT_THAT(run.err, IsEmpty());
}

TEST_F(HealthCommandTest, TheWorstFindingMakesTheExitCode) {
  node_.status.set_health(v1::DEGRADED);
  node_.status.add_problems("plugin nfs | is unhealthy:\nslow");
  const Ended warning = Health();
  EXPECT_EQ(warning.exit_code, 1);
  EXPECT_THAT(warning.out,
              StartsWith("BERTH WARNING - node-1: plugin nfs / is unhealthy:\\x0aslow | plugins=2"));
  EXPECT_THAT(warning.err, IsEmpty());
  node_.status.set_health(v1::FAILING);
  node_.status.add_problems("another");
  const Ended critical = Health();
  EXPECT_EQ(critical.exit_code, 2);
  EXPECT_THAT(critical.out,
              AllOf(StartsWith("BERTH CRITICAL - "), HasSubstr("(and 1 more: berthctl status)")));
}

TEST_F(HealthCommandTest, ADrainIsOkAndIsNamed) {
  node_.status.mutable_drain()->set_reason("a new disk");
  const Ended run = Health();
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, HasSubstr("being drained"));
}

TEST_F(HealthCommandTest, ANodeThatDoesNotAnswerIsCritical) {
  node_.Stop();
  const Ended run = Health();
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.out,
              AllOf(StartsWith("BERTH CRITICAL - cannot reach berthd at "), HasSubstr(node_.socket())));
  EXPECT_THAT(run.err, IsEmpty());
}

TEST_F(HealthCommandTest, ANodeThatHangsIsCriticalInTime) {
  // It takes the connection, and says nothing.
  const TempDir dir;
  sockaddr_un address{.sun_family = AF_UNIX};
  const std::string path = dir.Path("silent.sock");
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const UniqueFd silent(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(silent.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(silent.get(), 8), 0);
  const Ended run = RunBerthctl({"--socket", path, "health", "--timeout", "200ms"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.out, AllOf(StartsWith("BERTH CRITICAL - "), HasSubstr("does not answer in time")));
}

TEST_F(HealthCommandTest, WhatCouldNotBeAskedIsUnknown) {
  node_.failure = {grpc::StatusCode::PERMISSION_DENIED, "to read takes a right"};
  const Ended refused = Health();
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.out, StartsWith("BERTH UNKNOWN - to read takes a right"));
  EXPECT_EQ(Health({"--bogus"}).exit_code, 3);
  EXPECT_EQ(Health({"--timeout", "soon"}).exit_code, 3);
}

TEST_F(HealthCommandTest, JsonSaysTheSame) {
  node_.status.set_health(v1::DEGRADED);
  node_.status.add_problems("plugin nfs is unhealthy");
  const Ended run = Health({"-o", "json"});
  EXPECT_EQ(run.exit_code, 1);
  google::protobuf::Struct document;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(run.out, &document).ok()) << run.out;
  const auto& fields = document.fields();
  EXPECT_EQ(fields.at("state").string_value(), "WARNING");
  EXPECT_EQ(fields.at("exit_code").number_value(), 1);
  EXPECT_EQ(fields.at("message").string_value(), "node-1: plugin nfs is unhealthy");
  EXPECT_EQ(fields.at("problems").list_value().values(0).string_value(), "plugin nfs is unhealthy");
  node_.Stop();
  const Ended away = Health({"-o", "json"});
  EXPECT_EQ(away.exit_code, 2);
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(away.out, &document).ok()) << away.out;
}

}  // namespace
}  // namespace berth::cli
