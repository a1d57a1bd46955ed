// Logs of plugins through the served API, over real PluginLogs on real files: many readers, slow ones, and
// the end of the server while they read.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/this_coro.hpp>
#include <future>
#include <thread>
#include <vector>

#include "base/testing/temp_dir.h"
#include "csi/recent_secrets.h"
#include "rpc/testing/served_node.h"
#include "supervisor/logs/plugin_log.h"

namespace berth {
namespace {

using std::chrono::seconds;

struct Context {
  explicit Context(seconds bound = seconds(60)) {
    value.set_deadline(std::chrono::system_clock::now() + bound);
  }
  grpc::ClientContext value;
};

class ServedLogTest : public testing::Test {
 protected:
  ~ServedLogTest() override {
    if (serving_) node_.Shutdown(Clock::now());
    writer_.Reset();
    node_.Await(logs_->Shutdown());
    node_.OnLoop([this] {
      logs_.reset();
      return true;
    });
  }

  void Start(LogLimits limits) {
    limits.journal = false;
    limits.rate = 0;
    node_.Await(Open(this, limits));
    ASSERT_TRUE(writer_.valid());
    node_.OnLoop([this] {
      node_.control().read_log = [this](std::string id, LogQuery query, TimePoint deadline) {
        return logs_->Read(std::move(id), std::move(query), deadline);
      };
      return node_.control().Add("p").ready;
    });
    const absl::Status started = node_.Start();
    ASSERT_TRUE(started.ok()) << started;
    serving_ = true;
  }
  // Lines from `first` on, as the plugin writes them.
  void Write(uint64_t first, uint64_t count, size_t length = 0) const {
    std::string text;
    for (uint64_t i = first; i < first + count; ++i) {
      text += fmt::format("line {} {}\n", i, std::string(length, 'x'));
    }
    for (size_t at = 0; at < text.size();) {
      const ssize_t written = write(writer_.get(), text.data() + at, text.size() - at);
      ASSERT_GT(written, 0);
      at += static_cast<size_t>(written);
    }
  }
  static v1::ReadPluginLogRequest Following() {
    v1::ReadPluginLogRequest request;
    request.set_id("p");
    request.set_follow(true);
    return request;
  }

  // How a reader fares that follows until line `last`, or the end.
  struct Told {
    uint64_t lines = 0;
    uint64_t missed = 0;
    bool in_order = true;  // each line was sent, or counted as missed, once
    bool reached = false;
    grpc::Status status;
  };
  using Reader = grpc::ClientReader<v1::ReadPluginLogResponse>;
  // From line `next` on.
  static Told ReadUntil(Context& context, Reader& reader, uint64_t last, uint64_t next = 0) {
    Told told;
    v1::ReadPluginLogResponse message;
    while (!told.reached && reader.Read(&message)) {
      told.missed += message.missed_lines();
      next += message.missed_lines();
      for (const v1::PluginLogLine& line : message.lines()) {
        told.in_order &= line.number() == next++;
        told.in_order &= line.text().starts_with(fmt::format("line {} ", line.number()));
        told.reached |= line.number() == last;
        ++told.lines;
      }
    }
    if (told.reached) context.value.TryCancel();
    while (reader.Read(&message)) {
    }
    told.status = reader.Finish();
    return told;
  }
  Duration Shutdown(TimePoint grace) {
    serving_ = false;
    return node_.Shutdown(grace);
  }

  ServedNode node_;

 private:
  static Awaitable<void> Open(ServedLogTest* test, LogLimits limits) {
    test->logs_ = std::make_unique<PluginLogs>(co_await asio::this_coro::executor, test->directory_.path(),
                                               test->secrets_);
    auto opened = co_await test->logs_->Open("p", limits);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (opened.ok()) test->writer_ = *std::move(opened);
  }

  TempDir directory_;
  RecentSecrets secrets_;
  std::unique_ptr<PluginLogs> logs_;
  UniqueFd writer_;
  bool serving_ = false;
};

TEST_F(ServedLogTest, ManyReadersGetEveryLineOnceAndInOrder) {
  Start({.keep = uint64_t{64} << 20});
  constexpr uint64_t kLines = 20'000;
  Write(0, kLines / 2);
  std::vector<std::future<Told>> readers;
  for (int i = 0; i < 8; ++i) {
    readers.push_back(std::async(std::launch::async, [this] {
      Context context;
      const auto stub = node_.Root();
      const auto reader = stub->ReadPluginLog(&context.value, Following());
      return ReadUntil(context, *reader, kLines - 1);
    }));
  }
  for (uint64_t first = kLines / 2; first < kLines; first += 100) Write(first, 100);
  for (std::future<Told>& reader : readers) {
    const Told told = reader.get();
    EXPECT_TRUE(told.reached) << told.status.error_message();
    EXPECT_TRUE(told.in_order);
    EXPECT_EQ(told.lines, kLines);
    EXPECT_EQ(told.missed, 0U);
  }
}

TEST_F(ServedLogTest, ASlowReaderIsToldWhatItMissedAndSlowsNobody) {
  Start({.keep = uint64_t{256} << 10});
  constexpr uint64_t kLines = 40'000;
  constexpr size_t kLength = 1000;
  Write(0, 1);
  // Both have begun before more is written: what was gone before would be no loss of theirs.
  v1::ReadPluginLogResponse first_line;
  Context slow_context;
  const auto slow_stub = node_.Root();
  const auto slow = slow_stub->ReadPluginLog(&slow_context.value, Following());
  ASSERT_TRUE(slow->Read(&first_line));
  Context fast_context;
  const auto fast_stub = node_.Root();
  const auto fast_reader = fast_stub->ReadPluginLog(&fast_context.value, Following());
  ASSERT_TRUE(fast_reader->Read(&first_line));
  auto fast =
      std::async(std::launch::async, [&] { return ReadUntil(fast_context, *fast_reader, kLines - 1, 1); });
  // Far more than is kept, and than fits into the flow-control windows.
  for (uint64_t first = 1; first < kLines; first += 1000) {
    Write(first, std::min<uint64_t>(1000, kLines - first), kLength);
  }
  const Told quick = fast.get();
  EXPECT_TRUE(quick.reached) << quick.status.error_message();
  EXPECT_TRUE(quick.in_order);
  const Told told = ReadUntil(slow_context, *slow, kLines - 1, 1);
  EXPECT_TRUE(told.reached) << told.status.error_message();
  EXPECT_TRUE(told.in_order);
  EXPECT_GT(told.missed, 0U);
  EXPECT_EQ(told.lines + told.missed, kLines - 1);
}

TEST_F(ServedLogTest, ShutdownEndsReadersThatFollow) {
  Start({});
  Write(0, 1);
  Context context;
  const auto stub = node_.Root();
  const auto reader = stub->ReadPluginLog(&context.value, Following());
  v1::ReadPluginLogResponse message;
  ASSERT_TRUE(reader->Read(&message));
  auto ended = std::async(std::launch::async, [&] {
    while (reader->Read(&message)) {
    }
    return reader->Finish();
  });
  EXPECT_LT(Shutdown(Clock::now() + std::chrono::hours(1)), seconds(10));
  EXPECT_EQ(ended.get().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace berth
