#include "supervisor/logs/plugin_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <map>
#include <mutex>
#include <utility>

#include "base/status.h"
#include "supervisor/logs/log_file.h"
#include "supervisor/logs/log_reader.h"
#include "supervisor/logs/log_worker.h"

namespace berth {
namespace {

// Local disk; beyond this something is badly wrong, and the launch fails with that reason.
constexpr auto kOpenWithin = std::chrono::seconds(30);
// Where nothing comes but remarks on what is not shown, a follower gets one a second.
constexpr auto kNoticeInterval = std::chrono::seconds(1);

}  // namespace

std::string PluginLogDir(std::string_view state_dir) { return fmt::format("{}/logs", state_dir); }

std::string PluginLogPath(std::string_view dir, std::string_view id) {
  return fmt::format("{}/{}.log", dir, id);
}

// Shared with what is on its way to the loop.
struct PluginLogs::Core : std::enable_shared_from_this<Core> {
  Core(asio::any_io_executor loop, PluginLogsOptions opts)
      : executor(std::move(loop)), options(std::move(opts)), changed(executor) {}

  struct Known {
    uint64_t position = 0;
    uint64_t end = 0;
  };

  asio::any_io_executor executor;
  PluginLogsOptions options;
  std::map<std::string, Known> known;
  Condition changed;  // news, an answer, or the end
  bool stopping = false;
  bool stopped = false;

  // From the worker to the loop: what is new of each plugin, at most one delivery under way.
  std::mutex mutex;
  std::map<std::string, LogWorker::News> news;

  std::unique_ptr<LogWorker> worker;

  // On the worker.
  void TakeNews(LogWorker::News fresh) {
    {
      const std::lock_guard lock(mutex);
      const bool under_way = !news.empty();
      LogWorker::News& waiting = news[fresh.plugin_id];
      if (!waiting.loss.empty()) {
        fresh.loss = fresh.loss.empty() ? waiting.loss : fmt::format("{}; {}", waiting.loss, fresh.loss);
      }
      waiting = std::move(fresh);
      if (under_way) return;
    }
    asio::post(executor, [core = shared_from_this()] { core->DeliverNews(); });
  }

  void DeliverNews() {
    std::map<std::string, LogWorker::News> fresh;
    {
      const std::lock_guard lock(mutex);
      fresh = std::exchange(news, {});
    }
    for (auto& [id, each] : fresh) {
      Known& log = known[id];
      log.position = std::max(log.position, each.position);
      log.end = std::max(log.end, each.end);
      if (!each.loss.empty() && options.on_loss) options.on_loss(LogLoss{.plugin_id = id, .text = each.loss});
    }
    changed.NotifyAll();
  }

  // Has `work` done by the worker and waits for what it returns.
  template <class T>
  static Awaitable<absl::StatusOr<T>> Ask(std::shared_ptr<Core> core, std::string what,
                                          std::function<absl::StatusOr<T>(LogWorker&)> work,
                                          TimePoint deadline) {
    auto answer = std::make_shared<std::optional<absl::StatusOr<T>>>();
    const absl::Status posted =
        core->worker->Post([raw = core.get(), worker = core->worker.get(), answer, work = std::move(work)] {
          auto result = std::make_shared<absl::StatusOr<T>>(work(*worker));
          asio::post(raw->executor, [held = raw->shared_from_this(), answer, result] {
            answer->emplace(std::move(*result));
            held->changed.NotifyAll();
          });
        });
    BERTH_CO_RETURN_IF_ERROR(posted);
    co_await core->changed.WaitUntil([core, answer] { return answer->has_value() || core->stopping; },
                                     deadline);
    if (answer->has_value()) co_return std::move(**answer);
    if (core->stopping) co_return absl::CancelledError(fmt::format("{}: berthd is stopping", what));
    co_return absl::DeadlineExceededError(fmt::format("{}: the disk does not answer", what));
  }
};

PluginLogs::PluginLogs(asio::any_io_executor executor, std::string dir, const RecentSecrets& secrets,
                       PluginLogsOptions options)
    : core_(std::make_shared<Core>(std::move(executor), std::move(options))) {
  core_->worker = std::make_unique<LogWorker>(
      std::move(dir), secrets, core_->options.journal_socket, core_->options.check_interval,
      [core = core_.get()](LogWorker::News news) { core->TakeNews(std::move(news)); });
}

PluginLogs::~PluginLogs() { core_->worker.reset(); }

Awaitable<absl::StatusOr<UniqueFd>> PluginLogs::Open(std::string id, LogLimits limits) {
  struct Opened {
    UniqueFd fd;
    uint64_t end = 0;
  };
  const std::shared_ptr<Core> core = core_;
  const std::function<absl::StatusOr<Opened>(LogWorker&)> open =
      [id, limits](LogWorker& worker) -> absl::StatusOr<Opened> {
    BERTH_ASSIGN_OR_RETURN(LogIntake * intake, worker.Follow(id, &limits, true));
    BERTH_RETURN_IF_ERROR(intake->file().EndUnfinishedLine());
    Opened opened;
    BERTH_ASSIGN_OR_RETURN(opened.fd, intake->file().OpenToAppend());
    opened.end = intake->file().End(WallClock::now());
    return opened;
  };
  absl::StatusOr<Opened> opened =
      co_await Core::Ask<Opened>(core, fmt::format("log of {}", id), open, Clock::now() + kOpenWithin);
  if (!opened.ok()) co_return opened.status();
  core->known[id].end = opened->end;
  co_return std::move(opened->fd);
}

Awaitable<absl::Status> PluginLogs::Follow(std::string id, LogLimits limits) {
  const std::shared_ptr<Core> core = core_;
  const std::function<absl::StatusOr<uint64_t>(LogWorker&)> follow =
      [id, limits](LogWorker& worker) -> absl::StatusOr<uint64_t> {
    BERTH_ASSIGN_OR_RETURN(LogIntake * intake, worker.Follow(id, &limits, true));
    return intake->end();
  };
  const absl::StatusOr<uint64_t> end =
      co_await Core::Ask<uint64_t>(core, fmt::format("log of {}", id), follow, Clock::now() + kOpenWithin);
  if (!end.ok()) co_return end.status();
  core->known[id].end = std::max(core->known[id].end, *end);
  co_return absl::OkStatus();
}

void PluginLogs::Configure(const std::string& id, LogLimits limits) {
  (void)core_->worker->Post([worker = core_->worker.get(), id, limits] {
    if (LogIntake* const intake = worker->Find(id)) intake->Configure(limits);
  });
}

void PluginLogs::SetPid(const std::string& id, pid_t pid) {
  (void)core_->worker->Post([worker = core_->worker.get(), id, pid] {
    if (LogIntake* const intake = worker->Find(id)) intake->SetPid(pid);
  });
}

void PluginLogs::Close(const std::string& id) {
  (void)core_->worker->Post([worker = core_->worker.get(), id] { worker->Close(id); });
  core_->known.erase(id);
}

uint64_t PluginLogs::End(const std::string& id) const {
  const auto found = core_->known.find(id);
  return found == core_->known.end() ? 0 : found->second.end;
}

Awaitable<std::vector<std::string>> PluginLogs::LastLines(std::string id, uint64_t from_position,
                                                          TimePoint deadline) {
  using Lines = std::vector<std::string>;
  const std::function<absl::StatusOr<Lines>(LogWorker&)> last =
      [id, from_position](LogWorker& worker) -> absl::StatusOr<Lines> {
    LogIntake* const intake = worker.Find(id);
    if (intake == nullptr) return Lines{};
    const uint64_t end = intake->file().End(WallClock::now());
    Lines lines = LastLogLines(intake->file(), from_position, end, *worker.secrets().Of(id), worker.buffer());
    (void)intake->file().EndUnfinishedLine();
    return lines;
  };
  absl::StatusOr<Lines> lines =
      co_await Core::Ask<Lines>(core_, fmt::format("log of {}", id), last, deadline);
  if (!lines.ok()) co_return Lines{};
  co_return *std::move(lines);
}

Awaitable<absl::StatusOr<LogBatch>> PluginLogs::Read(std::string id, LogQuery query, TimePoint deadline) {
  const std::shared_ptr<Core> core = core_;
  uint64_t missed_lines = 0;
  uint64_t missed_bytes = 0;
  while (true) {
    const std::function<absl::StatusOr<LogBatch>(LogWorker&)> read =
        [id, query](LogWorker& worker) -> absl::StatusOr<LogBatch> {
      BERTH_ASSIGN_OR_RETURN(LogIntake * intake, worker.Follow(id, nullptr, false));
      worker.CatchUp(id);
      return ReadLog(intake->file(), query, intake->limits(), *worker.secrets().Of(id), worker.buffer());
    };
    absl::StatusOr<LogBatch> batch =
        co_await Core::Ask<LogBatch>(core, fmt::format("log of {}", id), read, deadline);
    // Between two looks of one that follows, the deadline is not the disk's fault.
    if (!batch.ok()) {
      if (!query.follow || !query.after || batch.status().code() != absl::StatusCode::kDeadlineExceeded) {
        co_return batch.status();
      }
      batch = LogBatch{.next = *query.after, .at_end = true};
    }
    missed_lines += batch->missed_lines;
    missed_bytes += batch->missed_bytes;
    batch->missed_lines = missed_lines;
    batch->missed_bytes = missed_bytes;
    if (!query.follow) co_return *std::move(batch);
    if (!batch->lines.empty()) {
      const bool only_notices = std::all_of(batch->lines.begin(), batch->lines.end(),
                                            [](const LogLine& line) { return line.notice; });
      if (only_notices && batch->at_end)
        co_await SleepUntil(std::min(deadline, Clock::now() + kNoticeInterval));
      co_return *std::move(batch);
    }
    query.after = batch->next;
    query.since.reset();
    query.last.reset();
    const uint64_t position = batch->next.position;
    co_await core->changed.WaitUntil(
        [core, &id, position] {
          const auto found = core->known.find(id);
          return core->stopping || (found != core->known.end() && found->second.position > position);
        },
        deadline);
    if (core->stopping) co_return absl::CancelledError(fmt::format("log of {}: berthd is stopping", id));
    if (Clock::now() >= deadline) co_return *std::move(batch);
  }
}

Awaitable<void> PluginLogs::Shutdown() {
  const std::shared_ptr<Core> core = core_;
  if (!std::exchange(core->stopping, true)) {
    core->changed.NotifyAll();
    core->worker->Stop([raw = core.get()] {
      asio::post(raw->executor, [held = raw->shared_from_this()] {
        held->stopped = true;
        held->changed.NotifyAll();
      });
    });
  }
  co_await core->changed.WaitUntil([core] { return core->stopped; }, Clock::now() + kOpenWithin);
}

}  // namespace berth
