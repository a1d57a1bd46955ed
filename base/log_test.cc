#include "base/log.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/testing/run_on.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LogTest : public testing::Test {
 protected:
  LogTest() : before_(spdlog::default_logger()), feed_(std::make_shared<LogFeed>()) {
    // Nothing of these tests is for stderr.
    EXPECT_TRUE(InitLog("log-test", "off", feed_).ok());
  }
  ~LogTest() override { spdlog::set_default_logger(before_); }
  LogTest(const LogTest&) = delete;
  LogTest& operator=(const LogTest&) = delete;

  std::unique_ptr<LogSubscription> Subscribe(LogLevel level) {
    return feed_->Subscribe(loop_.get_executor(), level);
  }
  LogSubscription::Batch Next(LogSubscription& subscription, size_t limit = 4096,
                              Duration patience = seconds(10)) {
    return RunOn(loop_, subscription.Next(limit, Clock::now() + patience));
  }

  asio::io_context loop_;
  std::shared_ptr<spdlog::logger> before_;
  std::shared_ptr<LogFeed> feed_;
};

TEST_F(LogTest, EveryLevelIsFoundByItsName) {
  for (const LogLevel level : {LogLevel::kTrace, LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning,
                               LogLevel::kError, LogLevel::kCritical}) {
    const absl::StatusOr<LogLevel> parsed = ParseLogLevel(LogLevelName(level));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, level);
  }
  EXPECT_EQ(ParseLogLevel("loud").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseLogLevel("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LogTest, TheJournalIsUsedOnlyWhereStderrLeadsThere) {
  const char* const before = getenv("JOURNAL_STREAM");
  const std::optional<std::string> kept =
      before == nullptr ? std::nullopt : std::optional<std::string>(before);
  struct stat info{};
  ASSERT_EQ(fstat(STDERR_FILENO, &info), 0);
  ASSERT_EQ(setenv("JOURNAL_STREAM", fmt::format("{}:{}", info.st_dev, info.st_ino).c_str(), 1), 0);
  EXPECT_TRUE(StderrIsTheJournal());
  for (const char* other : {"1:2", "", "none"}) {
    ASSERT_EQ(setenv("JOURNAL_STREAM", other, 1), 0);
    EXPECT_FALSE(StderrIsTheJournal()) << other;
  }
  ASSERT_EQ(unsetenv("JOURNAL_STREAM"), 0);
  EXPECT_FALSE(StderrIsTheJournal());
  if (kept.has_value()) setenv("JOURNAL_STREAM", kept->c_str(), 1);
}

TEST_F(LogTest, AnUnknownLevelChangesNothing) {
  EXPECT_EQ(InitLog("log-test", "loud").code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(SetLogLevel("error", feed_).ok());
  EXPECT_EQ(SetLogLevel("loud", feed_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(spdlog::default_logger()->level(), spdlog::level::err);
}

TEST_F(LogTest, ASubscriberGetsItsLevelAndAbove) {
  const auto subscription = Subscribe(LogLevel::kWarning);
  spdlog::info("too quiet");
  spdlog::warn("a warning");
  spdlog::error("an error");

  const LogSubscription::Batch batch = Next(*subscription);
  ASSERT_EQ(batch.entries.size(), 2U);
  EXPECT_EQ(batch.entries[0].text, "a warning");
  EXPECT_EQ(batch.entries[0].level, LogLevel::kWarning);
  EXPECT_EQ(batch.entries[1].text, "an error");
  EXPECT_EQ(batch.entries[1].level, LogLevel::kError);
  EXPECT_LT(batch.entries[0].sequence, batch.entries[1].sequence);
  EXPECT_EQ(batch.missed, 0U);
}

TEST_F(LogTest, TheProgramLogsAsMuchAsItsMostCuriousReaderAsksForAndNoMoreAfterwards) {
  ASSERT_TRUE(SetLogLevel("error", feed_).ok());
  auto curious = Subscribe(LogLevel::kDebug);
  EXPECT_EQ(spdlog::default_logger()->level(), spdlog::level::debug);
  EXPECT_EQ(spdlog::default_logger()->sinks().front()->level(), spdlog::level::err);
  curious.reset();
  EXPECT_EQ(spdlog::default_logger()->level(), spdlog::level::err);
}

TEST_F(LogTest, ANewLevelIsStderrsAndNotTheReaders) {
  const auto subscription = Subscribe(LogLevel::kInfo);
  ASSERT_TRUE(SetLogLevel("critical", feed_).ok());
  spdlog::info("still logged");
  const LogSubscription::Batch batch = Next(*subscription);
  ASSERT_EQ(batch.entries.size(), 1U);
  EXPECT_EQ(batch.entries[0].text, "still logged");
  EXPECT_EQ(spdlog::default_logger()->sinks().front()->level(), spdlog::level::critical);
}

TEST_F(LogTest, AReaderThatIsTooSlowLosesTheOldestAndIsToldHowMany) {
  const auto subscription = Subscribe(LogLevel::kInfo);
  for (size_t i = 0; i < LogFeed::kQueueLimit + 5; ++i) spdlog::info("entry {}", i);
  const LogSubscription::Batch batch = Next(*subscription);
  ASSERT_EQ(batch.entries.size(), LogFeed::kQueueLimit);
  EXPECT_EQ(batch.missed, 5U);
  EXPECT_EQ(batch.entries.front().text, "entry 5");

  spdlog::info("later");
  const LogSubscription::Batch next = Next(*subscription);
  ASSERT_EQ(next.entries.size(), 1U);
  EXPECT_EQ(next.missed, 0U);
}

TEST_F(LogTest, ABatchHasNoMoreThanWasAskedFor) {
  const auto subscription = Subscribe(LogLevel::kInfo);
  for (int i = 0; i < 3; ++i) spdlog::info("entry {}", i);
  EXPECT_EQ(Next(*subscription, 2).entries.size(), 2U);
  EXPECT_EQ(Next(*subscription, 2).entries.size(), 1U);
}

TEST_F(LogTest, WithoutAnEntryTheBatchIsEmptyAtTheDeadline) {
  const auto subscription = Subscribe(LogLevel::kInfo);
  EXPECT_TRUE(Next(*subscription, 10, milliseconds(1)).entries.empty());
}

TEST_F(LogTest, TextIsMadePrintableAndCut) {
  const auto subscription = Subscribe(LogLevel::kInfo);
  spdlog::info("{}", std::string("a\x1b[31mb"));
  spdlog::info("{}", std::string(10'000, 'x'));
  const LogSubscription::Batch batch = Next(*subscription);
  ASSERT_EQ(batch.entries.size(), 2U);
  EXPECT_EQ(batch.entries[0].text.find('\x1b'), std::string::npos);
  EXPECT_LT(batch.entries[1].text.size(), 4200U);
}

TEST_F(LogTest, EntriesOfOtherThreadsWakeTheReader) {
  const auto subscription = Subscribe(LogLevel::kInfo);
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([writer] {
      for (int i = 0; i < 50; ++i) spdlog::info("writer {}: {}", writer, i);
    });
  }
  std::vector<uint64_t> sequences;
  while (sequences.size() < 200) {
    const LogSubscription::Batch batch = Next(*subscription);
    if (batch.entries.empty()) break;
    for (const LogEntry& entry : batch.entries) sequences.push_back(entry.sequence);
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(sequences.size(), 200U);
}

}  // namespace
}  // namespace berth
