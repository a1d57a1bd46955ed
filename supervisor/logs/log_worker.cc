#include "supervisor/logs/log_worker.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "supervisor/logs/plugin_log.h"

namespace berth {
namespace {

constexpr auto kRest = std::chrono::milliseconds(10);
// What may lie unread while a plugin writes on; then reading goes on without rest.
constexpr uint64_t kMostLeftLying = uint64_t{64} * 1024 * 1024;
// A log that was silent for so long is settled.
constexpr auto kSettleAfter = std::chrono::seconds(1);
// How often silent logs are looked at where they cannot be watched.
constexpr auto kUnwatchedInterval = std::chrono::seconds(1);
constexpr auto kLossInterval = std::chrono::seconds(10);
constexpr size_t kMostPosted = 4096;
// 32 MiB.
constexpr int kCatchUpSteps = 128;

}  // namespace

LogWorker::LogWorker(std::string dir, const RecentSecrets& secrets, std::string journal_socket,
                     Duration check_interval, std::function<void(News)> tell)
    : dir_(std::move(dir)),
      secrets_(secrets),
      check_interval_(check_interval),
      tell_(std::move(tell)),
      journal_(std::move(journal_socket)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      inotify_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
      buffer_(kLogChunk),
      next_check_(Clock::now() + check_interval) {
  // Signals are for the thread of the loop.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LogWorker::~LogWorker() {
  Stop({});
  thread_.join();
}

absl::Status LogWorker::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return absl::CancelledError("the logs are being closed");
    if (posted_.size() >= kMostPosted) {
      return absl::ResourceExhaustedError(fmt::format("{} reads of logs wait already", posted_.size()));
    }
    posted_.push_back(std::move(work));
  }
  (void)eventfd_write(wake_.get(), 1);
  return absl::OkStatus();
}

void LogWorker::Stop(std::function<void()> stopped) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    stop_ = true;
    stopped_ = std::move(stopped);
  }
  (void)eventfd_write(wake_.get(), 1);
}

absl::StatusOr<LogIntake*> LogWorker::Follow(const std::string& id, const LogLimits* limits, bool create) {
  if (const auto found = logs_.find(id); found != logs_.end()) {
    if (limits != nullptr) found->second.intake->Configure(*limits);
    return found->second.intake.get();
  }
  // Ids come from requests too.
  if (id.empty() || id.starts_with('.') || id.find('/') != std::string::npos) {
    return absl::NotFoundError(fmt::format("there is no plugin \"{}\"", Printable(id, 64)));
  }
  if (create) BERTH_RETURN_IF_ERROR(MakeDirectories(dir_, 0700));
  BERTH_ASSIGN_OR_RETURN(std::unique_ptr<LogFile> file, LogFile::Open(PluginLogPath(dir_, id), create));
  Log& log = logs_[id];
  log.intake = std::make_unique<LogIntake>(id, std::move(file), limits == nullptr ? LogLimits{} : *limits);
  Tell(id, log);
  return log.intake.get();
}

LogIntake* LogWorker::Find(const std::string& id) {
  const auto found = logs_.find(id);
  return found == logs_.end() ? nullptr : found->second.intake.get();
}

void LogWorker::CatchUp(const std::string& id) {
  const auto found = logs_.find(id);
  if (found == logs_.end()) return;
  Log& log = found->second;
  for (int i = 0; i < kCatchUpSteps; ++i) {
    if (log.intake->Run(secrets_, journal_, buffer_) != LogIntake::Step::kMore) break;
  }
  // Whatever phase it was in: it is looked at soon, and settles from there.
  if (log.phase == Phase::kIdle && log.intake->end() > log.seen_end) Wake(log);
  Tell(id, log);
}

void LogWorker::Close(const std::string& id) {
  CatchUp(id);
  const auto found = logs_.find(id);
  if (found == logs_.end()) return;
  Unwatch(found->second);
  logs_.erase(found);
}

void LogWorker::Run() {
  while (RunPosted()) {
    const TimePoint now = Clock::now();
    if (next_check_ <= now) CheckIdle();
    TimePoint next = logs_.empty() ? TimePoint::max() : next_check_;
    for (auto& [id, log] : logs_) {
      if (log.phase == Phase::kBusy || (log.phase == Phase::kResting && log.look_at <= now)) {
        Look(id, log);
      } else if (log.phase == Phase::kIdle && log.look_at <= now) {
        Settle(id, log);
      }
      next = std::min(next, log.phase == Phase::kBusy ? TimePoint::min() : log.look_at);
    }
    Wait(next);
  }
  std::function<void()> stopped;
  {
    const std::lock_guard lock(mutex_);
    stopped = std::move(stopped_);
    posted_.clear();
  }
  if (stopped) stopped();
}

// False: stop.
bool LogWorker::RunPosted() {
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return false;
    work = std::exchange(posted_, {});
  }
  for (const auto& each : work) each();
  return true;
}

void LogWorker::Look(const std::string& id, Log& log) {
  const LogIntake::Step step = log.intake->Run(secrets_, journal_, buffer_);
  const bool grown = log.intake->end() != std::exchange(log.seen_end, log.intake->end());
  Tell(id, log);
  const uint64_t unread = log.intake->end() - log.intake->file().state().position;
  if (step == LogIntake::Step::kMore && (!grown || unread > kMostLeftLying)) {
    log.phase = Phase::kBusy;
  } else if (step != LogIntake::Step::kCaughtUp || grown) {
    // Also while it is being written to faster than it is read: memory bandwidth and the file's locks are
    // the plugin's first.
    log.phase = Phase::kResting;
    log.look_at = Clock::now() + kRest;
  } else {
    BeginIdle(id, log);
  }
}

void LogWorker::BeginIdle(const std::string& id, Log& log) {
  log.phase = Phase::kIdle;
  log.look_at = Clock::now() + kSettleAfter;
  // The file itself, whatever lies at its path by now.
  const std::string file = fmt::format("/proc/self/fd/{}", log.intake->file().fd());
  log.watch = inotify_add_watch(inotify_.get(), file.c_str(), IN_MODIFY);
  if (log.watch < 0) {
    if (!std::exchange(said_no_watch_, true)) {
      SPDLOG_WARN("logs of plugins cannot be watched, and are looked at once a second: {}",
                  std::strerror(errno));
    }
    log.phase = Phase::kResting;
    log.look_at = Clock::now() + kUnwatchedInterval;
    log.intake->Settle(journal_);
    return;
  }
  watches_[log.watch] = id;
  // No event reports what was written before the watch was there.
  if (log.intake->file().End(WallClock::now()) != log.seen_end) Wake(log);
}

void LogWorker::Wake(Log& log) {
  Unwatch(log);
  log.phase = Phase::kBusy;
}

void LogWorker::Unwatch(Log& log) {
  if (log.watch < 0) return;
  watches_.erase(log.watch);
  // EINVAL: the kernel has removed it already.
  (void)inotify_rm_watch(inotify_.get(), std::exchange(log.watch, -1));
}

void LogWorker::CheckIdle() {
  next_check_ = Clock::now() + check_interval_;
  for (auto& [id, log] : logs_) {
    if (log.phase != Phase::kIdle || log.intake->file().End(WallClock::now()) == log.seen_end) continue;
    SPDLOG_WARN("log of {}: the kernel did not report that it was written to", id);
    Wake(log);
  }
}

void LogWorker::Settle(const std::string& id, Log& log) {
  log.look_at = TimePoint::max();
  log.intake->Settle(journal_);
  Tell(id, log);
  if (log.intake->any_losses()) log.look_at = log.tell_loss_at;
}

void LogWorker::Tell(const std::string& id, Log& log) {
  News news{
      .plugin_id = id, .position = log.intake->file().state().position, .end = log.intake->end(), .loss = {}};
  const TimePoint now = Clock::now();
  if (log.intake->any_losses() && now >= log.tell_loss_at) {
    news.loss = log.intake->TakeLosses();
    log.tell_loss_at = now + kLossInterval;
  }
  if (news.position == log.told && news.loss.empty()) return;
  log.told = news.position;
  tell_(std::move(news));
}

void LogWorker::Wait(TimePoint until) {
  int timeout = -1;
  if (until != TimePoint::max()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(std::max(until, TimePoint{}) - Clock::now());
    timeout = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
  }
  std::array<pollfd, 2> fds{{{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                             {.fd = inotify_.get(), .events = POLLIN, .revents = 0}}};
  if (poll(fds.data(), fds.size(), timeout) <= 0) return;
  if (fds[0].revents != 0) {
    eventfd_t count = 0;
    (void)eventfd_read(wake_.get(), &count);
  }
  if (fds[1].revents != 0) TakeWatchEvents();
}

void LogWorker::TakeWatchEvents() {
  alignas(inotify_event) std::array<char, 4096> events{};
  while (true) {
    const ssize_t count = read(inotify_.get(), events.data(), events.size());
    if (count <= 0) return;
    for (size_t at = 0; at + sizeof(inotify_event) <= static_cast<size_t>(count);) {
      inotify_event event{};
      std::memcpy(&event, events.data() + at, sizeof event);
      at += sizeof event + event.len;
      if ((event.mask & IN_Q_OVERFLOW) != 0) {
        for (auto& [id, log] : logs_) Wake(log);
        continue;
      }
      // IN_MODIFY; or IN_IGNORED, should a watch go that this thread has not removed.
      if (const auto watch = watches_.find(event.wd); watch != watches_.end()) Wake(logs_.at(watch->second));
    }
  }
}

}  // namespace berth
