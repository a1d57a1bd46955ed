#include "base/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/systemd_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <utility>

#include "base/status.h"

namespace berth {
namespace {

constexpr size_t kMaxText = 4096;

struct NamedLevel {
  LogLevel level;
  std::string_view name;
  spdlog::level::level_enum spdlog_level;
};

constexpr std::array<NamedLevel, 6> kLevels{{
    {LogLevel::kTrace, "trace", spdlog::level::trace},
    {LogLevel::kDebug, "debug", spdlog::level::debug},
    {LogLevel::kInfo, "info", spdlog::level::info},
    {LogLevel::kWarning, "warning", spdlog::level::warn},
    {LogLevel::kError, "error", spdlog::level::err},
    {LogLevel::kCritical, "critical", spdlog::level::critical},
}};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  return kLevels.at(static_cast<size_t>(level)).spdlog_level;
}

LogLevel FromSpdlog(spdlog::level::level_enum level) {
  for (const NamedLevel& each : kLevels) {
    if (each.spdlog_level == level) return each.level;
  }
  return LogLevel::kCritical;
}

std::string Source(const spdlog::source_loc& place) {
  if (place.empty()) return {};
  const std::string_view file(place.filename);
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), place.line);
}

}  // namespace

std::string_view LogLevelName(LogLevel level) { return kLevels.at(static_cast<size_t>(level)).name; }

absl::StatusOr<LogLevel> ParseLogLevel(std::string_view text) {
  for (const NamedLevel& each : kLevels) {
    if (each.name == text) return each.level;
  }
  return absl::InvalidArgumentError(fmt::format(
      "log level \"{}\" is unknown; trace, debug, info, warning, error or critical", Printable(text, 64)));
}

// One subscriber's. `mutex` is held for moments only, and never while anything else is locked or called.
struct LogSubscription::Queue {
  Queue(asio::any_io_executor loop, LogLevel lowest)
      : executor(std::move(loop)), level(lowest), arrived(executor) {}

  asio::any_io_executor executor;
  LogLevel level;
  std::mutex mutex;
  std::deque<LogEntry> entries;
  uint64_t missed = 0;
  bool told = false;  // a notification is on its way
  Condition arrived;  // loop thread only

  [[nodiscard]] bool Any() {
    const std::lock_guard lock(mutex);
    return !entries.empty();
  }

  // Any thread. Returns whether the loop has to be woken.
  [[nodiscard]] bool Push(LogEntry entry) {
    const std::lock_guard lock(mutex);
    if (entries.size() >= LogFeed::kQueueLimit) {
      entries.pop_front();
      ++missed;
    }
    entries.push_back(std::move(entry));
    return !std::exchange(told, true);
  }
};

// What spdlog knows of the feed.
class LogFeed::Sink : public spdlog::sinks::sink {
 public:
  using Queue = LogSubscription::Queue;

  // Any thread.
  void log(const spdlog::details::log_msg& message) override {
    LogEntry entry;
    const LogLevel level = FromSpdlog(message.level);
    std::vector<std::shared_ptr<Queue>> queues;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& queue : queues_) {
        if (level >= queue->level) queues.push_back(queue);
      }
      if (queues.empty()) return;
      entry.sequence = next_++;
    }
    entry.time = message.time;
    entry.level = level;
    entry.text = Printable({message.payload.data(), message.payload.size()}, kMaxText);
    entry.source = Source(message.source);
    for (const std::shared_ptr<Queue>& queue : queues) {
      if (!queue->Push(entry)) continue;
      asio::post(queue->executor, [queue] {
        {
          const std::lock_guard lock(queue->mutex);
          queue->told = false;
        }
        queue->arrived.NotifyAll();
      });
    }
  }
  void flush() override {}
  void set_pattern(const std::string& /*pattern*/) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> /*formatter*/) override {}

  void SetLogger(const std::shared_ptr<spdlog::logger>& logger, spdlog::level::level_enum own) {
    const std::lock_guard lock(mutex_);
    logger_ = logger;
    own_ = own;
  }

  // Of stderr's sink, which is the logger's first.
  void SetOwnLevel(spdlog::level::level_enum own) {
    const std::lock_guard lock(mutex_);
    own_ = own;
    ApplyLevel();
  }

  void Add(std::shared_ptr<Queue> queue) {
    const std::lock_guard lock(mutex_);
    queues_.push_back(std::move(queue));
    ApplyLevel();
  }

  void Remove(const std::shared_ptr<Queue>& queue) {
    const std::lock_guard lock(mutex_);
    std::erase(queues_, queue);
    ApplyLevel();
  }

 private:
  // The logger lets through what the most curious asks for; stderr's sink has its own level.
  void ApplyLevel() {
    const std::shared_ptr<spdlog::logger> logger = logger_.lock();
    if (logger == nullptr) return;
    spdlog::level::level_enum lowest = own_;
    for (const auto& queue : queues_) lowest = std::min(lowest, ToSpdlog(queue->level));
    logger->set_level(lowest);
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Queue>> queues_;
  uint64_t next_ = 1;
  std::weak_ptr<spdlog::logger> logger_;
  spdlog::level::level_enum own_ = spdlog::level::info;
};

LogSubscription::LogSubscription(std::shared_ptr<LogFeed> feed, std::shared_ptr<Queue> queue)
    : feed_(std::move(feed)), queue_(std::move(queue)) {}

LogSubscription::~LogSubscription() { feed_->sink_->Remove(queue_); }

Awaitable<LogSubscription::Batch> LogSubscription::Next(size_t limit, TimePoint deadline) {
  const std::shared_ptr<Queue> queue = queue_;
  Batch batch;
  if (!co_await queue->arrived.WaitUntil([queue] { return queue->Any(); }, deadline)) co_return batch;
  const std::lock_guard lock(queue->mutex);
  const size_t count = std::min(limit, queue->entries.size());
  const auto end = queue->entries.begin() + static_cast<std::ptrdiff_t>(count);
  batch.entries.assign(std::make_move_iterator(queue->entries.begin()), std::make_move_iterator(end));
  queue->entries.erase(queue->entries.begin(), end);
  batch.missed = std::exchange(queue->missed, 0);
  co_return batch;
}

LogFeed::LogFeed() : sink_(std::make_shared<Sink>()) {}
LogFeed::~LogFeed() = default;

std::unique_ptr<LogSubscription> LogFeed::Subscribe(asio::any_io_executor executor, LogLevel level) {
  auto queue = std::make_shared<LogSubscription::Queue>(std::move(executor), level);
  sink_->Add(queue);
  return std::unique_ptr<LogSubscription>(new LogSubscription(shared_from_this(), std::move(queue)));
}

namespace {

absl::StatusOr<spdlog::level::level_enum> OwnLevel(std::string_view level) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed != spdlog::level::off || level == "off") return parsed;
  return absl::InvalidArgumentError(
      fmt::format("log level \"{}\" is unknown; trace, debug, info, warning, error, critical or off",
                  Printable(level, 64)));
}

}  // namespace

absl::Status CheckLogLevel(std::string_view level) { return OwnLevel(level).status(); }

absl::Status SetLogLevel(std::string_view level, const std::shared_ptr<LogFeed>& feed) {
  BERTH_ASSIGN_OR_RETURN(const spdlog::level::level_enum parsed, OwnLevel(level));
  spdlog::default_logger()->sinks().front()->set_level(parsed);
  if (feed != nullptr) {
    feed->sink_->SetOwnLevel(parsed);
  } else {
    spdlog::default_logger()->set_level(parsed);
  }
  return absl::OkStatus();
}

bool StderrIsTheJournal() {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat info{};
  if (stream == nullptr || fstat(STDERR_FILENO, &info) != 0) return false;
  return stream == fmt::format("{}:{}", info.st_dev, info.st_ino);
}

absl::Status InitLog(const std::string& program, std::string_view level,
                     const std::shared_ptr<LogFeed>& feed) {
  BERTH_ASSIGN_OR_RETURN(const spdlog::level::level_enum parsed, OwnLevel(level));
  spdlog::sink_ptr own;
  // Each entry carries its level and place as fields of its own there.
  if (StderrIsTheJournal()) {
    own = std::make_shared<spdlog::sinks::systemd_sink_mt>(program);
    own->set_pattern("%v");
  } else {
    own = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    own->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  }
  own->set_level(parsed);
  auto logger = std::make_shared<spdlog::logger>(program, own);
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::warn);
  if (feed != nullptr) {
    logger->sinks().push_back(feed->sink_);
    feed->sink_->SetLogger(logger, parsed);
  }
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

}  // namespace berth
