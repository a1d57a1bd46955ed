// `plugin logs` and `monitor` of the built berthctl, against a node on a real socket.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "cli/testing/fake_node.h"
#include "cli/testing/run_berthctl.h"

namespace berth::cli {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class LogCommandsTest : public testing::Test {
 protected:
  Ended Ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--socket", node_.socket()});
    return RunBerthctl(std::move(arguments), {.environment = {"TZ=UTC"}});
  }
  std::vector<std::string> Following(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"--socket", node_.socket(), "plugin", "logs", "-f", "nfs"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  FakeNode node_;
};

TEST_F(LogCommandsTest, LinesAreStampedForPeople) {
  node_.Write(2);
  const Ended run = Ctl({"plugin", "logs", "nfs"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "2023-11-14 22:13:20.007  line 0\n2023-11-14 22:13:20.007  line 1\n");
  EXPECT_THAT(run.err, IsEmpty());
  ASSERT_EQ(node_.log_requests.size(), 1U);
  EXPECT_EQ(node_.log_requests[0].id(), "nfs");
  EXPECT_FALSE(node_.log_requests[0].follow());
  EXPECT_FALSE(node_.log_requests[0].has_last_lines() || node_.log_requests[0].has_since());
}

TEST_F(LogCommandsTest, JsonIsOneAnswerALine) {
  node_.Write(2);
  const Ended run = Ctl({"-o", "json", "plugin", "logs", "nfs"});
  v1::ReadPluginLogResponse answer;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(run.out, &answer).ok()) << run.out;
  EXPECT_EQ(answer.lines_size(), 2);
  EXPECT_EQ(answer.next().position(), 2U);
  EXPECT_EQ(run.out.find('\n'), run.out.size() - 1);
}

TEST_F(LogCommandsTest, TheBeginningIsPassedOn) {
  EXPECT_EQ(Ctl({"plugin", "logs", "nfs", "-n", "3"}).exit_code, 0);
  EXPECT_EQ(node_.log_requests.back().last_lines(), 3U);
  EXPECT_EQ(Ctl({"plugin", "logs", "nfs", "-n", "0"}).exit_code, 0);
  EXPECT_TRUE(node_.log_requests.back().has_last_lines());
  EXPECT_EQ(Ctl({"plugin", "logs", "nfs", "--since", "2023-11-14T22:13:20.5Z"}).exit_code, 0);
  EXPECT_EQ(node_.log_requests.back().since().seconds(), 1'700'000'000);
  EXPECT_EQ(node_.log_requests.back().since().nanos(), 500'000'000);
  EXPECT_EQ(Ctl({"plugin", "logs", "nfs", "--after", "17"}).exit_code, 0);
  EXPECT_EQ(node_.log_requests.back().after().position(), 17U);
}

TEST_F(LogCommandsTest, WrongBeginningsAskNobody) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"-n", "-1"},
                                             {"-n", "x"},
                                             {"-n", "99999999999"},
                                             {"--since", "soon"},
                                             {"--after", "1x"},
                                             {"-n", "1", "--since", "1m"}}) {
    std::vector<std::string> arguments = {"plugin", "logs", "nfs"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    EXPECT_EQ(Ctl(arguments).exit_code, 2) << wrong[1];
  }
  EXPECT_THAT(node_.calls, IsEmpty());
}

TEST_F(LogCommandsTest, WhatWasMissedIsTold) {
  node_.Write(1);
  node_.LoseLines(1234);
  const Ended run = Ctl({"plugin", "logs", "nfs"});
  EXPECT_THAT(run.err, HasSubstr("1234 lines missed"));
  EXPECT_THAT(run.out, AllOf(HasSubstr("line 0"), Not(HasSubstr("missed"))));
}

TEST_F(LogCommandsTest, FollowingShowsLinesAsTheyCome) {
  node_.Write(30);
  RunningBerthctl ctl(Following(), RunningBerthctl::Stderr::kNull);
  EXPECT_THAT(ctl.ReadLine(), EndsWith("line 20")) << "ten at first, as tail does";
  for (int i = 21; i < 30; ++i) EXPECT_THAT(ctl.ReadLine(), EndsWith("line " + std::to_string(i)));
  node_.Write(1);
  EXPECT_THAT(ctl.ReadLine(), EndsWith("line 30"));
  ctl.Interrupt();
  EXPECT_EQ(ctl.Wait(), 130);
}

TEST_F(LogCommandsTest, FollowingGoesOnAfterARestartOfTheNode) {
  node_.Write(2);
  RunningBerthctl ctl(Following(), RunningBerthctl::Stderr::kTerminal);
  EXPECT_THAT(ctl.ReadLine(), EndsWith("line 0"));
  EXPECT_THAT(ctl.ReadLine(), EndsWith("line 1"));
  node_.Stop();
  EXPECT_TRUE(ctl.TerminalShows("berthd is away"));
  node_.Write(3);
  node_.Serve();
  EXPECT_TRUE(ctl.TerminalShows("berthd is back"));
  for (int i = 2; i < 5; ++i) EXPECT_THAT(ctl.ReadLine(), EndsWith("line " + std::to_string(i)));
  EXPECT_EQ(node_.log_requests.back().after().position(), 2U);
  EXPECT_FALSE(node_.log_requests.back().has_last_lines());
}

TEST_F(LogCommandsTest, FollowingGivesUpWhenTheNodeStaysAway) {
  node_.Write(1);
  RunningBerthctl ctl(Following({"--timeout", "300ms"}), RunningBerthctl::Stderr::kTerminal);
  EXPECT_THAT(ctl.ReadLine(), EndsWith("line 0"));
  node_.Stop();
  EXPECT_TRUE(ctl.TerminalShows("cannot reach berthd"));
  EXPECT_EQ(ctl.Wait(), 3);
}

TEST_F(LogCommandsTest, FollowingANodeThatIsNotThereFailsAtOnce) {
  node_.Stop();
  EXPECT_EQ(Ctl({"plugin", "logs", "-f", "nfs"}).exit_code, 3);
}

TEST_F(LogCommandsTest, FollowingDoesNotRepeatARefusal) {
  node_.failure = {grpc::StatusCode::NOT_FOUND, "no such plugin"};
  const Ended run = Ctl({"plugin", "logs", "-f", "nfs"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("no such plugin"));
  EXPECT_EQ(node_.calls.size(), 1U);
}

TEST_F(LogCommandsTest, MonitorShowsLevelsAndTexts) {
  v1::WatchLogResponse message;
  v1::LogEntry& entry = *message.add_entries();
  entry.mutable_time()->set_seconds(1'700'000'000);
  entry.set_level("warning");
  entry.set_text("plugin nfs: \033[31mit smokes");
  message.set_missed(5);
  node_.log_entries.push_back(message);
  const Ended run = Ctl({"monitor", "--level", "debug"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(node_.watch_log_request.level(), "debug");
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("2023-11-14 22:13:20.000  warning   plugin nfs"), Not(HasSubstr("\033"))));
  EXPECT_THAT(run.err, HasSubstr("5 entries missed"));
  EXPECT_EQ(Ctl({"monitor", "--level", "loud"}).exit_code, 2);
}

}  // namespace
}  // namespace berth::cli
