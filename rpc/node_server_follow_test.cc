// Where a reader of a plugin's log begins, and berthd's own log, over the socket.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <future>
#include <thread>

#include "rpc/testing/node_server_fixture.h"

namespace berth {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

// A log of ten numbered lines; the first three are no longer kept.
Awaitable<absl::StatusOr<LogBatch>> TenLines(std::string, LogQuery query, TimePoint) {
  constexpr uint64_t kFirst = 3;
  constexpr uint64_t kEnd = 10;
  const WallTime begin = WallTime(seconds(1'700'000'000));
  uint64_t next = kFirst;
  if (query.after) next = query.after->position;
  if (query.since) next = static_cast<uint64_t>((*query.since - begin) / seconds(1));
  if (query.last) next = kEnd - *query.last;
  LogBatch answer;
  if (next < kFirst) answer.missed_lines = kFirst - next;
  for (next = std::max(next, kFirst); next < kEnd; ++next) {
    answer.lines.push_back({.position = next,
                            .number = next,
                            .time = begin + seconds(next),
                            .text = fmt::format("line {}", next)});
  }
  answer.next = {.position = next, .number = next};
  answer.at_end = true;
  co_return answer;
}

class NodeServerLogTest : public NodeServerTest {
 protected:
  void SetUp() override {
    NodeServerTest::SetUp();
    if (IsSkipped()) return;
    node_.OnLoop([this] {
      node_.control().read_log = TenLines;
      return true;
    });
    Start();
  }

  struct Told {
    std::vector<uint64_t> numbers;
    uint64_t missed = 0;
    uint64_t next = 0;
    grpc::Status status;
  };
  static Told Read(v1::Node::Stub& stub, v1::ReadPluginLogRequest request) {
    request.set_id("p");
    Call call;
    const auto stream = stub.ReadPluginLog(&call.context, request);
    Told told;
    v1::ReadPluginLogResponse message;
    while (stream->Read(&message)) {
      for (const v1::PluginLogLine& line : message.lines()) told.numbers.push_back(line.number());
      told.missed += message.missed_lines();
      told.next = message.next().position();
    }
    told.status = stream->Finish();
    return told;
  }
};

TEST_F(NodeServerLogTest, AReaderBeginsWhereItsRequestSays) {
  const auto reader = node_.Reader();
  const Told all = Read(*reader, {});
  EXPECT_TRUE(all.status.ok()) << all.status.error_message();
  EXPECT_THAT(all.numbers, ElementsAre(3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(all.missed, 0U);
  EXPECT_EQ(all.next, 10U);

  v1::ReadPluginLogRequest newest;
  newest.set_last_lines(2);
  EXPECT_THAT(Read(*reader, newest).numbers, ElementsAre(8, 9));

  v1::ReadPluginLogRequest recent;
  recent.mutable_since()->set_seconds(1'700'000'007);
  EXPECT_THAT(Read(*reader, recent).numbers, ElementsAre(7, 8, 9));

  v1::ReadPluginLogRequest resumed;
  resumed.mutable_after()->set_position(1);
  resumed.mutable_after()->set_number(1);
  const Told rest = Read(*reader, resumed);
  EXPECT_THAT(rest.numbers, ElementsAre(3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(rest.missed, 2U);

  newest.mutable_since()->set_seconds(1'700'000'007);
  EXPECT_EQ(Read(*reader, newest).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(NodeServerLogTest, ALogThatCannotBeReadEndsTheStreamWithTheReason) {
  node_.OnLoop([this] {
    node_.control().read_log = [](std::string, LogQuery, TimePoint) -> Awaitable<absl::StatusOr<LogBatch>> {
      co_return absl::DeadlineExceededError("the disk does not answer");
    };
    return true;
  });
  const Told told = Read(*node_.Root(), {});
  EXPECT_EQ(told.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(told.status.error_message(), HasSubstr("the disk does not answer"));
}

// berthd's own log, which is the process's: it is put back as it was.
class NodeServerOwnLogTest : public NodeServerTest {
 protected:
  void SetUp() override {
    NodeServerTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_TRUE(InitLog("test", "off", node_.log()).ok());
    Start();
  }
  void TearDown() override { spdlog::set_default_logger(before_); }

  using Watch = grpc::ClientReader<v1::WatchLogResponse>;
  static std::unique_ptr<Watch> Begin(v1::Node::Stub& stub, Call& call, const std::string& level = "") {
    v1::WatchLogRequest request;
    request.set_level(level);
    return stub.WatchLog(&call.context, request);
  }
  // A watch begins "now", and its caller does not learn when: writes a line now and then until one has come.
  // Without a pause the writer would keep the log's mutex from a loop that shares its processor.
  static void AwaitFirst(Watch& watch) {
    std::promise<void> come;
    std::thread writer([has_come = come.get_future()] {
      const TimePoint until = Clock::now() + seconds(60);
      while (has_come.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready &&
             Clock::now() < until) {
        SPDLOG_WARN("hello");
      }
    });
    v1::WatchLogResponse message;
    EXPECT_TRUE(watch.Read(&message));
    come.set_value();
    writer.join();
  }

 private:
  std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_F(NodeServerOwnLogTest, AReaderFollowsItAtItsOwnLevel) {
  const auto reader = node_.Reader();
  Call call;
  const auto watch = Begin(*reader, call, "warning");
  AwaitFirst(*watch);
  SPDLOG_INFO("this is not wanted");
  SPDLOG_ERROR("smoke");
  v1::WatchLogResponse message;
  std::string found;
  while (found.empty() && watch->Read(&message)) {
    for (const v1::LogEntry& entry : message.entries()) {
      EXPECT_NE(entry.text(), "this is not wanted");
      if (entry.text() != "hello") found = entry.level() + ": " + entry.text();
    }
  }
  EXPECT_EQ(found, "error: smoke");
  call.context.TryCancel();
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(NodeServerOwnLogTest, ALevelThatIsNoneIsRefused) {
  const auto reader = node_.Reader();
  Call call;
  const auto watch = Begin(*reader, call, "loud");
  v1::WatchLogResponse message;
  EXPECT_FALSE(watch->Read(&message));
  const grpc::Status status = watch->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("level: "));
}

TEST_F(NodeServerOwnLogTest, ASlowReaderIsToldHowManyEntriesItMissed) {
  const auto reader = node_.Reader();
  Call call;
  call.context.set_deadline(std::chrono::system_clock::now() + seconds(120));
  const auto watch = Begin(*reader, call);
  AwaitFirst(*watch);
  // Far more than a queue holds and than fits into the flow-control windows.
  constexpr uint64_t kEntries = 20'000;
  for (uint64_t i = 0; i < kEntries; ++i) SPDLOG_INFO("entry {} {}", i, std::string(3000, 'x'));
  SPDLOG_INFO("the last");
  uint64_t received = 0;
  uint64_t missed = 0;
  bool last = false;
  v1::WatchLogResponse message;
  while (!last && watch->Read(&message)) {
    missed += message.missed();
    for (const v1::LogEntry& entry : message.entries()) {
      if (entry.text().starts_with("entry ")) ++received;
      last |= entry.text() == "the last";
    }
  }
  EXPECT_TRUE(last);
  EXPECT_GT(missed, 0U);
  EXPECT_GE(received + missed, kEntries) << "each is sent, or counted as missed";
  EXPECT_LT(received, kEntries);
  call.context.TryCancel();
  EXPECT_FALSE(watch->Finish().ok());
}

TEST_F(NodeServerOwnLogTest, ShutdownEndsThoseWhoFollow) {
  const auto root = node_.Root();
  Call call;
  const auto watch = Begin(*root, call);
  AwaitFirst(*watch);
  auto ended = std::async(std::launch::async, [&watch] {
    v1::WatchLogResponse message;
    while (watch->Read(&message)) {
    }
    return watch->Finish();
  });
  EXPECT_LT(node_.Shutdown(Clock::now() + std::chrono::hours(1)), seconds(10));
  EXPECT_EQ(ended.get().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace berth
