#include "rpc/uplink/link_logs.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rpc/testing/node_api_fixture.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A plugin's log: the lines `first` to `end`, handed out one at a time so that turns can be seen. A follower
// waits for more.
struct WrittenLines {
  explicit WrittenLines(asio::any_io_executor executor) : changed(std::move(executor)) {}

  uint64_t first = 0;
  uint64_t end = 0;
  Condition changed;

  void Write(uint64_t lines) {
    end += lines;
    changed.NotifyAll();
  }
  // The oldest go, as in a ring that is full.
  void KeepNewest(uint64_t lines) { first = end - lines; }
};

// The logs that a scheduler follows, and the test for the stream that they leave by.
class LinkLogsTest : public NodeApiTest {
 protected:
  LinkLogsTest() {
    control_.read_log = [this](const std::string& plugin, const LogQuery& query, TimePoint deadline) {
      return ReadLines(*written_.at(plugin), plugin, query, deadline);
    };
  }
  ~LinkLogsTest() override { RunOn(loop_, logs_.Shutdown()); }

  WrittenLines& AddLog(const std::string& plugin, uint64_t lines = 0) {
    control_.Add(plugin);
    auto& log = written_[plugin];
    log = std::make_unique<WrittenLines>(loop_.get_executor());
    log->end = lines;
    return *log;
  }

  static Awaitable<absl::StatusOr<LogBatch>> ReadLines(WrittenLines& log, std::string plugin, LogQuery query,
                                                       TimePoint deadline) {
    uint64_t next = query.after ? query.after->position : log.first;
    if (query.follow && next >= log.end) {
      co_await log.changed.WaitUntil([&log, next] { return next < log.end; }, deadline);
    }
    LogBatch batch;
    if (next < log.first) batch.missed_lines = log.first - next;
    next = std::max(next, log.first);
    if (next < log.end) {
      batch.lines.push_back({.position = next, .number = next, .text = fmt::format("{} {}", plugin, next)});
      ++next;
    }
    batch.next = {.position = next, .number = next};
    batch.at_end = next == log.end;
    co_return batch;
  }

  // A log is asked for; of the plugin from its beginning on, followed.
  void RequestPlugin(uint64_t number, const std::string& plugin, uint32_t credit, bool follow = true) {
    v1::LogRequest request;
    request.set_number(number);
    request.mutable_plugin()->set_id(plugin);
    request.mutable_plugin()->set_follow(follow);
    request.set_credit(credit);
    logs_.Request(request);
  }
  void RequestOwn(uint64_t number, const std::string& level, uint32_t credit) {
    v1::LogRequest request;
    request.set_number(number);
    request.mutable_node()->set_level(level);
    request.set_credit(credit);
    logs_.Request(request);
  }
  void RequestEnd(uint64_t number) {
    v1::LogRequest request;
    request.set_number(number);
    request.set_end(true);
    logs_.Request(request);
  }
  void GiveCredit(uint64_t number, uint32_t messages) {
    v1::LogCredit credit;
    credit.set_number(number);
    credit.set_messages(messages);
    logs_.Credit(credit);
  }

  // Until nothing moves any more.
  void Settle() {
    loop_.restart();
    loop_.poll();
  }
  // The next message that leaves; unset: none.
  std::optional<v1::LogLines> Take() {
    Settle();
    const bool any = logs_.anything_to_send();
    auto lines = logs_.NextToSend();
    EXPECT_EQ(lines.has_value(), any);
    return lines;
  }
  std::vector<v1::LogLines> TakeAll(size_t most = 1000) {
    std::vector<v1::LogLines> all;
    while (all.size() < most) {
      auto lines = Take();
      if (!lines) break;
      all.push_back(*std::move(lines));
    }
    return all;
  }
  static std::vector<uint64_t> NumbersOf(const std::vector<v1::LogLines>& messages) {
    std::vector<uint64_t> numbers;
    for (const v1::LogLines& message : messages) numbers.push_back(message.number());
    return numbers;
  }
  static std::vector<std::string> TextsOf(const std::vector<v1::LogLines>& messages) {
    std::vector<std::string> texts;
    for (const v1::LogLines& message : messages) {
      for (const v1::PluginLogLine& line : message.plugin().lines()) texts.push_back(line.text());
      for (const v1::LogEntry& entry : message.node().entries()) texts.push_back(entry.text());
    }
    return texts;
  }
  static absl::StatusCode EndOf(const std::optional<v1::LogLines>& message) {
    EXPECT_TRUE(message && message->has_end());
    return message ? static_cast<absl::StatusCode>(message->end().code()) : absl::StatusCode::kUnknown;
  }

  std::map<std::string, std::unique_ptr<WrittenLines>> written_;
  std::shared_ptr<LogFeed> feed_ = std::make_shared<LogFeed>();
  NodeApi node_{{}, parts_, feed_};
  int ready_ = 0;
  LinkLogs logs_{loop_.get_executor(), node_, [this] { ++ready_; }};
};

TEST_F(LinkLogsTest, SeveralLogsTakeTurns) {
  AddLog("a", 3);
  AddLog("b", 3);
  AddLog("c", 3);
  RequestPlugin(1, "a", 100);
  RequestPlugin(2, "b", 100);
  RequestPlugin(3, "c", 100);
  const auto sent = TakeAll();
  EXPECT_THAT(NumbersOf(sent), ElementsAre(1, 2, 3, 1, 2, 3, 1, 2, 3));
  EXPECT_THAT(TextsOf(sent), ElementsAre("a 0", "b 0", "c 0", "a 1", "b 1", "c 1", "a 2", "b 2", "c 2"));
  EXPECT_EQ(ready_, 9) << "the stream learns of each";
  written_["b"]->Write(1);
  EXPECT_THAT(TextsOf(TakeAll()), ElementsAre("b 3"));
}

TEST_F(LinkLogsTest, TheEndOfALogWaitsForNoOtherLog) {
  AddLog("busy", 1000);
  RequestPlugin(2, "busy", 1000);
  RequestPlugin(1, "missing", 1);
  RequestPlugin(3, "missing", 1);
  const auto sent = TakeAll(5);
  ASSERT_THAT(NumbersOf(sent), ElementsAre(1, 2, 3, 2, 2));
  EXPECT_TRUE(sent[0].has_end());
  EXPECT_TRUE(sent[2].has_end());
}

TEST_F(LinkLogsTest, ACreditHoldsOneLogBackAndNoOther) {
  AddLog("slow", 10);
  AddLog("fast", 4);
  RequestPlugin(1, "slow", 0);
  RequestPlugin(2, "fast", 100);
  EXPECT_THAT(NumbersOf(TakeAll()), ElementsAre(2, 2, 2, 2));
  GiveCredit(1, 2);
  GiveCredit(7, 2);  // it does not exist
  EXPECT_THAT(TextsOf(TakeAll()), ElementsAre("slow 0", "slow 1"));
  GiveCredit(1, std::numeric_limits<uint32_t>::max());
  GiveCredit(1, std::numeric_limits<uint32_t>::max());  // as much as can be counted
  EXPECT_THAT(TakeAll(), SizeIs(8));
}

TEST_F(LinkLogsTest, WhatAPluginsLogDropsMeanwhileIsCounted) {
  WrittenLines& log = AddLog("a", 1);
  RequestPlugin(1, "a", 1);
  EXPECT_THAT(TextsOf(TakeAll()), ElementsAre("a 0"));
  log.Write(100);
  EXPECT_THAT(TakeAll(), IsEmpty()) << "there is no credit";
  log.KeepNewest(10);
  GiveCredit(1, 2);
  const auto sent = TakeAll();
  // One was on its way already.
  ASSERT_THAT(TextsOf(sent), ElementsAre("a 1", "a 91"));
  EXPECT_EQ(sent[0].plugin().missed_lines(), 0U);
  EXPECT_EQ(sent[1].plugin().missed_lines(), 89U);
}

TEST_F(LinkLogsTest, ASecondRequestOfANumberTakesTheFirstsPlace) {
  AddLog("a", 5);
  AddLog("b", 2);
  RequestPlugin(1, "a", 100);
  Settle();
  EXPECT_TRUE(logs_.anything_to_send());
  RequestPlugin(1, "b", 100);
  EXPECT_FALSE(logs_.anything_to_send()) << "what was at hand was the first's";
  EXPECT_THAT(TextsOf(TakeAll()), ElementsAre("b 0", "b 1"));
  written_["a"]->Write(1);
  EXPECT_THAT(TakeAll(), IsEmpty()) << "and its end is not reported";
}

TEST_F(LinkLogsTest, ALogThatIsNotWantedAnyMoreEndsWithoutAWord) {
  AddLog("a", 5);
  RequestPlugin(1, "a", 100);
  EXPECT_TRUE(Take().has_value());
  Settle();
  RequestEnd(1);
  RequestEnd(2);  // it does not exist
  EXPECT_THAT(TakeAll(), IsEmpty());
  written_["a"]->Write(1);
  GiveCredit(1, 5);
  EXPECT_THAT(TakeAll(), IsEmpty());
}

TEST_F(LinkLogsTest, MoreLogsThanMayBeFollowedAreRefused) {
  AddLog("a", 1);
  for (uint64_t number = 1; number <= LinkLogs::kFollowed; ++number) RequestPlugin(number, "a", 0);
  RequestPlugin(100, "a", 1);
  const auto refused = Take();
  ASSERT_EQ(EndOf(refused), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused->number(), 100U);
  EXPECT_THAT(refused->end().message(), HasSubstr("16 logs"));
  // Those that are followed are as they were.
  GiveCredit(1, 1);
  EXPECT_THAT(TextsOf(TakeAll()), ElementsAre("a 0"));
}

TEST_F(LinkLogsTest, WhoFollowsAsManyAsMayBeFollowedChangesOneAtOnce) {
  AddLog("a", 1);
  AddLog("b", 1);
  for (uint64_t number = 1; number <= LinkLogs::kFollowed; ++number) RequestPlugin(number, "a", 0);
  Settle();
  // All in one go, as messages may arrive.
  RequestPlugin(5, "b", 1);
  RequestEnd(6);
  RequestPlugin(100, "b", 1);
  const auto sent = TakeAll();
  EXPECT_THAT(NumbersOf(sent), ElementsAre(5, 100));
  EXPECT_THAT(TextsOf(sent), ElementsAre("b 0", "b 0"));
}

TEST_F(LinkLogsTest, OneWhoChangesHisMindAllTheTimeIsBoundedToo) {
  AddLog("a", 1);
  for (int i = 0; i < 1000; ++i) RequestPlugin(1, "a", 0);
  EXPECT_EQ(EndOf(Take()), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(TakeAll(), IsEmpty());
  RequestPlugin(1, "a", 1);
  EXPECT_THAT(TextsOf(TakeAll()), ElementsAre("a 0"));
}

TEST_F(LinkLogsTest, HowALogEndsIsTold) {
  AddLog("a", 2);
  RequestPlugin(1, "a", 100, /*follow=*/false);
  const auto sent = TakeAll();
  ASSERT_THAT(sent, SizeIs(3));
  EXPECT_THAT(TextsOf(sent), ElementsAre("a 0", "a 1"));
  EXPECT_EQ(EndOf(sent[2]), absl::StatusCode::kOk) << "it was read to its end";

  RequestPlugin(2, "missing", 0);
  EXPECT_EQ(EndOf(Take()), absl::StatusCode::kNotFound) << "an end takes no credit";
  RequestOwn(3, "loud", 0);
  EXPECT_EQ(EndOf(Take()), absl::StatusCode::kInvalidArgument);
  v1::LogRequest neither;
  neither.set_number(4);
  logs_.Request(neither);
  EXPECT_EQ(EndOf(Take()), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(TakeAll(), IsEmpty());
}

// berthd's own log, as spdlog writes it in this process.
class LinkOwnLogTest : public LinkLogsTest {
 protected:
  LinkOwnLogTest() { EXPECT_TRUE(InitLog("test", "off", feed_).ok()); }
  ~LinkOwnLogTest() override { spdlog::set_default_logger(before_); }

  std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_F(LinkOwnLogTest, EachReaderHasItsOwnLevel) {
  RequestOwn(1, "debug", 100);
  RequestOwn(2, "info", 100);
  RequestOwn(3, "", 100);
  RequestOwn(4, "error", 100);
  Settle();
  spdlog::debug("fine print");
  SPDLOG_INFO("news");
  SPDLOG_ERROR("fire");
  std::map<uint64_t, std::vector<std::string>> read;
  for (const v1::LogLines& message : TakeAll()) {
    for (const v1::LogEntry& entry : message.node().entries()) {
      read[message.number()].push_back(entry.level() + " " + entry.text());
    }
  }
  EXPECT_THAT(read[1], ElementsAre("debug fine print", "info news", "error fire"));
  EXPECT_THAT(read[2], ElementsAre("info news", "error fire"));
  EXPECT_THAT(read[3], ElementsAre("info news", "error fire")) << "the default is info";
  EXPECT_THAT(read[4], ElementsAre("error fire"));
}

TEST_F(LinkOwnLogTest, WhatASlowReaderMissesIsCounted) {
  RequestOwn(1, "info", 0);
  RequestOwn(2, "info", 1'000'000);
  Settle();
  constexpr size_t kWritten = 3 * LogFeed::kQueueLimit;
  size_t read = 0;
  for (size_t i = 0; i < kWritten; ++i) {
    SPDLOG_INFO("entry {}", i);
    read += TextsOf(TakeAll()).size();
  }
  EXPECT_EQ(read, kWritten) << "the other one misses nothing";
  GiveCredit(1, 1000);
  size_t missed = 0;
  size_t late = 0;
  for (const v1::LogLines& message : TakeAll()) {
    missed += message.node().missed();
    late += static_cast<size_t>(message.node().entries_size());
  }
  EXPECT_GE(missed, kWritten - LogFeed::kQueueLimit - 128) << "but what is kept, and one message";
  EXPECT_EQ(missed + late, kWritten);
}

}  // namespace
}  // namespace berth
