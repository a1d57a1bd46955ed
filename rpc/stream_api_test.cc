// NodeApi's streams: events, plugins' logs, berthd's own log.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "rpc/testing/node_api_fixture.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class NodeApiStreamTest : public NodeApiTest {
 protected:
  absl::Status Watch(uint64_t after, FakeStream<v1::WatchEventsResponse>& out,
                     const std::string& volume = "") {
    v1::WatchEventsRequest request;
    request.set_after_sequence(after);
    request.set_volume_id(volume);
    return RunOn(loop_, api_.streams.WatchEvents(request, CallInfo{}, out));
  }

  absl::Status ReadLog(const v1::ReadPluginLogRequest& request, FakeStream<v1::ReadPluginLogResponse>& out) {
    return RunOn(loop_, api_.streams.ReadPluginLog(
                            request, {.deadline = Clock::now() + std::chrono::seconds(20)}, out));
  }
};

TEST_F(NodeApiStreamTest, WatchBeginsWithTheOldestThatIsKeptAndMissesNothing) {
  for (int i = 0; i < 25; ++i) events_.Append({.type = "t"});  // 10 are kept.
  FakeStream<v1::WatchEventsResponse> out;
  EXPECT_TRUE(Watch(0, out).ok());
  ASSERT_THAT(out.sent, SizeIs(10));
  EXPECT_EQ(out.sent[0].event().sequence(), 16U);
  EXPECT_EQ(out.sent[0].missed(), 0U);
}

TEST_F(NodeApiStreamTest, WatchResumesAndTellsWhatWasMissed) {
  for (int i = 0; i < 25; ++i) events_.Append({.type = "t"});
  FakeStream<v1::WatchEventsResponse> late;
  EXPECT_TRUE(Watch(5, late).ok());
  ASSERT_THAT(late.sent, SizeIs(10));
  EXPECT_EQ(late.sent[0].missed(), 10U);
  EXPECT_EQ(late.sent[1].missed(), 0U);
  FakeStream<v1::WatchEventsResponse> in_time;
  EXPECT_TRUE(Watch(20, in_time).ok());
  ASSERT_THAT(in_time.sent, SizeIs(5));
  EXPECT_EQ(in_time.sent[0].event().sequence(), 21U);
  EXPECT_EQ(in_time.sent[0].missed(), 0U);
  FakeStream<v1::WatchEventsResponse> done;
  EXPECT_TRUE(Watch(25, done).ok());
  EXPECT_THAT(done.sent, IsEmpty());
}

TEST_F(NodeApiStreamTest, WatchBeginsAtATime) {
  std::vector<Event> history;
  for (int i = 1; i <= 5; ++i) {
    history.push_back(
        {.sequence = static_cast<uint64_t>(i), .time = WallTime(std::chrono::seconds(i * 10)), .type = "t"});
  }
  events_.BeginAt(100, history);
  v1::WatchEventsRequest request;
  request.mutable_since()->set_seconds(30);
  FakeStream<v1::WatchEventsResponse> exact;
  EXPECT_TRUE(RunOn(loop_, api_.streams.WatchEvents(request, CallInfo{}, exact)).ok());
  ASSERT_THAT(exact.sent, SizeIs(3));
  EXPECT_EQ(exact.sent[0].event().sequence(), 3U);
  EXPECT_EQ(exact.sent[0].missed(), 0U);
  request.mutable_since()->set_nanos(1);
  FakeStream<v1::WatchEventsResponse> between;
  EXPECT_TRUE(RunOn(loop_, api_.streams.WatchEvents(request, CallInfo{}, between)).ok());
  EXPECT_THAT(between.sent, SizeIs(2));
  request.mutable_since()->set_seconds(60);
  FakeStream<v1::WatchEventsResponse> later;
  EXPECT_TRUE(RunOn(loop_, api_.streams.WatchEvents(request, CallInfo{}, later)).ok());
  EXPECT_THAT(later.sent, IsEmpty());
}

TEST_F(NodeApiStreamTest, WatchFiltersAndStillTellsWhatWasMissed) {
  for (int i = 0; i < 25; ++i) events_.Append({.type = "t", .volume_id = i == 20 ? "v" : "w"});
  FakeStream<v1::WatchEventsResponse> one;
  EXPECT_TRUE(Watch(5, one, "v").ok());
  ASSERT_THAT(one.sent, SizeIs(1));
  EXPECT_EQ(one.sent[0].event().sequence(), 21U);
  EXPECT_EQ(one.sent[0].missed(), 10U);
  FakeStream<v1::WatchEventsResponse> none;
  EXPECT_TRUE(Watch(5, none, "x").ok());
  ASSERT_THAT(none.sent, SizeIs(1));
  EXPECT_FALSE(none.sent[0].has_event());
  EXPECT_EQ(none.sent[0].missed(), 10U);
}

TEST_F(NodeApiStreamTest, WatchFromAFutureNumberIsRefused) {
  events_.Append({.type = "t"});
  FakeStream<v1::WatchEventsResponse> out;
  EXPECT_EQ(Watch(2, out).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(NodeApiStreamTest, WatchEndsWhenItsCallerHasGone) {
  for (int i = 0; i < 5; ++i) events_.Append({.type = "t"});
  FakeStream<v1::WatchEventsResponse> out;
  out.take = 2;
  EXPECT_EQ(Watch(0, out).code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(out.sent, SizeIs(2));
}

// A log of numbered lines, without the oldest ones. Answers as PluginLogs would.
struct FakeLog {
  uint64_t first = 0;
  uint64_t end = 0;
  size_t batch = 10;
  WallTime time = WallTime(std::chrono::seconds(1'700'000'000));
  // Called when a reader that follows has come to the end.
  std::function<void()> at_end = [] {};

  Awaitable<absl::StatusOr<LogBatch>> Read(LogQuery query) {
    uint64_t next = first;
    if (query.after) {
      next = query.after->position;
    } else if (query.last) {
      next = end - std::min(end - first, *query.last);
    }
    if (query.follow && next >= end) at_end();
    LogBatch answer;
    if (next < first) answer.missed_lines = first - next;
    for (next = std::max(next, first); next < end && answer.lines.size() < batch; ++next) {
      answer.lines.push_back(
          {.position = next, .number = next, .time = time, .text = fmt::format("line {}", next)});
    }
    answer.next = {.position = next, .number = next};
    answer.at_end = next == end;
    co_return answer;
  }
};

class PluginLogTest : public NodeApiStreamTest {
 protected:
  PluginLogTest() {
    control_.Add("p");
    control_.read_log = [this](std::string, LogQuery query, TimePoint) {
      return log_.Read(std::move(query));
    };
    request_.set_id("p");
  }

  // The numbers of the lines that were sent.
  static std::vector<uint64_t> Numbers(const FakeStream<v1::ReadPluginLogResponse>& out) {
    std::vector<uint64_t> numbers;
    for (const auto& message : out.sent) {
      for (const v1::PluginLogLine& line : message.lines()) numbers.push_back(line.number());
    }
    return numbers;
  }

  FakeLog log_;
  v1::ReadPluginLogRequest request_;
};

TEST_F(PluginLogTest, AllThatIsKeptComesInBatches) {
  log_.end = 25;
  FakeStream<v1::ReadPluginLogResponse> out;
  EXPECT_TRUE(ReadLog(request_, out).ok());
  EXPECT_THAT(out.sent, SizeIs(3));
  EXPECT_THAT(Numbers(out), SizeIs(25));
  EXPECT_EQ(out.sent[0].lines(0).text(), "line 0");
  EXPECT_EQ(out.sent[0].lines(0).time().seconds(), 1'700'000'000);
  EXPECT_EQ(out.sent[2].next().position(), 25U);
  EXPECT_EQ(out.sent[2].next().number(), 25U);
}

TEST_F(PluginLogTest, TheBeginningIsPassedOn) {
  log_.end = 25;
  FakeStream<v1::ReadPluginLogResponse> out;
  request_.set_last_lines(2);
  EXPECT_TRUE(ReadLog(request_, out).ok());
  EXPECT_THAT(Numbers(out), ElementsAre(23, 24));

  request_.clear_last_lines();
  request_.mutable_since()->set_seconds(5);
  control_.queries.clear();
  EXPECT_TRUE(ReadLog(request_, out).ok());
  EXPECT_EQ(control_.queries.front().since, WallTime(std::chrono::seconds(5)));

  request_.set_last_lines(2);
  const absl::Status both = ReadLog(request_, out);
  EXPECT_EQ(both.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(both), HasSubstr("at most one"));
}

TEST_F(PluginLogTest, AReaderGoesOnWhereItStoppedAndIsToldWhatItMissed) {
  log_.end = 25;
  log_.first = 20;
  request_.mutable_after()->set_position(7);
  request_.mutable_after()->set_number(7);
  FakeStream<v1::ReadPluginLogResponse> out;
  EXPECT_TRUE(ReadLog(request_, out).ok());
  EXPECT_THAT(Numbers(out), ElementsAre(20, 21, 22, 23, 24));
  EXPECT_EQ(out.sent[0].missed_lines(), 13U);
}

TEST_F(PluginLogTest, AReaderThatFollowsIsToldWhereItStandsAndThenWhatComes) {
  request_.set_follow(true);
  request_.set_last_lines(0);
  log_.end = 5;
  log_.at_end = [&] { log_.end += 2; };
  FakeStream<v1::ReadPluginLogResponse> out;
  out.take = 3;
  EXPECT_EQ(ReadLog(request_, out).code(), absl::StatusCode::kCancelled);
  ASSERT_THAT(out.sent, SizeIs(3));
  EXPECT_EQ(out.sent[0].lines_size(), 0);
  EXPECT_FALSE(control_.queries[0].follow) << "where it stands waits for no line";
  EXPECT_TRUE(control_.queries[1].follow);
  EXPECT_THAT(Numbers(out), testing::Not(testing::Contains(4)));
  for (size_t i = 1; i < out.sent.size(); ++i) {
    EXPECT_EQ(out.sent[i].lines(0).number(), out.sent[i - 1].next().number()) << "none lost, none doubled";
  }
}

TEST_F(PluginLogTest, APluginThatWritesForEverDoesNotKeepAReaderThatDoesNotFollow) {
  log_.end = 25;
  FakeStream<v1::ReadPluginLogResponse> out;
  out.on_message = [&] {
    log_.end += 100;
    log_.time = WallClock::now();
  };
  EXPECT_TRUE(ReadLog(request_, out).ok());
  EXPECT_THAT(out.sent, SizeIs(testing::Le(4)));
}

TEST_F(PluginLogTest, OneThatHasNotWrittenYetIsWaitedFor) {
  request_.set_follow(true);
  int reads = 0;
  control_.read_log = [&](std::string, LogQuery query, TimePoint) -> Awaitable<absl::StatusOr<LogBatch>> {
    if (++reads == 1)
      return [](auto) -> Awaitable<absl::StatusOr<LogBatch>> { co_return absl::NotFoundError("no log"); }(0);
    log_.end = 1;
    return log_.Read(std::move(query));
  };
  FakeStream<v1::ReadPluginLogResponse> out;
  out.take = 2;
  EXPECT_EQ(ReadLog(request_, out).code(), absl::StatusCode::kCancelled);
  ASSERT_THAT(out.sent, SizeIs(2));
  EXPECT_EQ(out.sent[0].next().position(), 0U);
  EXPECT_THAT(Numbers(out), ElementsAre(0));
}

TEST_F(PluginLogTest, FollowingEndsWithThePlugin) {
  request_.set_follow(true);
  log_.at_end = [&] { control_.plugins_by_id.clear(); };
  FakeStream<v1::ReadPluginLogResponse> out;
  const absl::Status ended = ReadLog(request_, out);
  EXPECT_EQ(ended.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(ended), HasSubstr("gone from this node"));
}

TEST_F(PluginLogTest, WhatHasNoLogHereIsRefused) {
  FakeStream<v1::ReadPluginLogResponse> out;
  control_.plugins_by_id["p"].external = true;
  EXPECT_EQ(ReadLog(request_, out).code(), absl::StatusCode::kFailedPrecondition);
  request_.set_id("x");
  EXPECT_EQ(ReadLog(request_, out).code(), absl::StatusCode::kNotFound);
  request_.clear_id();
  EXPECT_EQ(ReadLog(request_, out).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(out.sent, IsEmpty());
}

TEST_F(NodeApiStreamTest, WithoutALogThereIsNoneToWatch) {
  FakeStream<v1::WatchLogResponse> out;
  EXPECT_EQ(RunOn(loop_, api_.streams.WatchLog({}, {}, out)).code(), absl::StatusCode::kUnimplemented);
}

TEST_F(NodeApiStreamTest, BerthdsLogIsWatchedAtTheReadersLevel) {
  const auto before = spdlog::default_logger();
  const auto feed = std::make_shared<LogFeed>();
  ASSERT_TRUE(InitLog("test", "off", feed).ok());
  NodeApi api({}, parts_, feed);
  v1::WatchLogRequest request;
  request.set_level("warning");
  FakeStream<v1::WatchLogResponse> out;
  out.take = 1;
  TaskScope scope(loop_.get_executor(), "test");
  absl::Status ended;
  scope.Spawn("watch",
              [](NodeApi& its, v1::WatchLogRequest asked, auto& to, absl::Status& end) -> Awaitable<void> {
                end = co_await its.streams.WatchLog(std::move(asked), {}, to);
              }(api, request, out, ended));
  loop_.poll();
  SPDLOG_INFO("this is not wanted");
  SPDLOG_WARN("smoke\n");
  RunOn(loop_, scope.WaitEmpty());
  spdlog::set_default_logger(before);
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
  ASSERT_THAT(out.sent, SizeIs(1));
  ASSERT_EQ(out.sent[0].entries_size(), 1);
  EXPECT_EQ(out.sent[0].entries(0).level(), "warning");
  EXPECT_THAT(out.sent[0].entries(0).text(), AllOf(HasSubstr("smoke"), testing::Not(HasSubstr("\n"))));

  request.set_level("loud");
  EXPECT_EQ(RunOn(loop_, api.streams.WatchLog(request, {}, out)).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace berth
