#include "consumers/consumer_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "base/backoff.h"
#include "base/blocking.h"
#include "base/process.h"
#include "base/status.h"
#include "base/systemd_units.h"
#include "base/unique_fd.h"
#include "consumers/consumer_fds.h"

namespace berth {
namespace consumer_internal {

absl::StatusOr<UniqueFd> OpenProcess(int64_t pid, uint64_t* start_time) {
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
  if (!pidfd.valid()) {
    const int error = errno;
    if (error == ESRCH) return absl::NotFoundError(fmt::format("there is no process {}", pid));
    if (error == EINVAL || error == ENOENT) {
      return absl::InvalidArgumentError(fmt::format("{} is a thread, not a process", pid));
    }
    return ErrnoStatus(error, fmt::format("watch process {}", pid));
  }
  const absl::StatusOr<uint64_t> started = StartTimeOf(static_cast<pid_t>(pid));
  // Only the pidfd shows that all of its threads have ended: the first one may be gone, and its memory freed,
  // while others run or its files are still being closed.
  pollfd ended{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  if (absl::IsNotFound(started.status()) || poll(&ended, 1, 0) > 0) {
    return absl::NotFoundError(fmt::format("process {} has ended", pid));
  }
  if (!started.ok()) return started.status();
  if (*start_time != 0 && *started != *start_time) {
    return absl::FailedPreconditionError(
        fmt::format("process {} has ended, and its number was given to another one", pid));
  }
  *start_time = *started;
  return pidfd;
}

absl::StatusOr<UniqueFd> OpenCgroup(const std::string& path) {
  const UniqueFd directory(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) {
    if (errno == ENOENT) return absl::NotFoundError(fmt::format("there is no cgroup {}", path));
    if (errno == ENOTDIR) return absl::InvalidArgumentError(fmt::format("{} is no directory", path));
    return ErrnoStatus(errno, fmt::format("open cgroup {}", path));
  }
  struct statfs system{};
  if (fstatfs(directory.get(), &system) != 0) return ErrnoStatus(errno, fmt::format("cgroup {}", path));
  if (system.f_type != CGROUP2_SUPER_MAGIC) {
    return absl::InvalidArgumentError(fmt::format("{} is not a directory of the cgroup v2 hierarchy", path));
  }
  UniqueFd events(openat(directory.get(), "cgroup.events", O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (events.valid()) return events;
  if (errno != ENOENT && errno != ENODEV)
    return ErrnoStatus(errno, fmt::format("open {}/cgroup.events", path));
  // It has been removed since, or it is the one group that has no such file.
  if (access(path.c_str(), F_OK) != 0) return absl::NotFoundError(fmt::format("there is no cgroup {}", path));
  return absl::InvalidArgumentError(fmt::format("{} is the root of its hierarchy, which never ends", path));
}

}  // namespace consumer_internal

namespace {

using consumer_internal::OpenCgroup;
using consumer_internal::OpenProcess;
using WaitType = asio::posix::stream_descriptor::wait_type;

constexpr Duration kOpenWithin = std::chrono::seconds(10);
constexpr Duration kFirstPause = std::chrono::milliseconds(200);
constexpr Duration kLongestPause = std::chrono::seconds(30);
// The kernel reports a cgroup's changes every 10 ms at most. A change that it has held back is lost if the
// group is removed meanwhile, so look once more after each time that it may have reported something.
constexpr Duration kLookOnceMore = std::chrono::milliseconds(50);
// And a slow check, should an event be lost for an unknown reason: of all cgroups at once, so that the node
// wakes up once for all of them.
constexpr Duration kCheckInterval = std::chrono::seconds(30);

TimePoint NextCheck() {
  const Duration now = Clock::now().time_since_epoch();
  return TimePoint((now / kCheckInterval + 1) * kCheckInterval);
}

// False: no process is in it, or it is gone. After a read the kernel reports only newer changes.
bool Populated(int events) {
  std::array<char, 256> text{};
  const ssize_t count = pread(events, text.data(), text.size(), 0);
  if (count < 0) return errno != ENODEV;
  const std::string_view lines(text.data(), static_cast<size_t>(count));
  return lines.find("populated 0") == std::string_view::npos;
}

// Calls `ended` once when the descriptor says so. A pidfd stays readable once its process has ended, so
// nothing can be lost there. The wait is a plain callback on shared state: its destructor has nothing to
// join.
class EndWatch {
 public:
  EndWatch(const asio::any_io_executor& executor, UniqueFd fd, bool cgroup, std::function<void()> ended)
      : state_(std::make_shared<State>(executor, fd.Release(), cgroup, std::move(ended))) {
    Look(state_);
  }
  ~EndWatch() {
    state_->ended = nullptr;
    state_->once_more.cancel();
    boost::system::error_code ignored;
    [[maybe_unused]] const auto closed = state_->fd.close(ignored);
  }
  EndWatch(const EndWatch&) = delete;
  EndWatch& operator=(const EndWatch&) = delete;

 private:
  struct State {
    State(const asio::any_io_executor& executor, int number, bool is_cgroup, std::function<void()> on_end)
        : fd(executor, number), once_more(executor), cgroup(is_cgroup), ended(std::move(on_end)) {}
    asio::posix::stream_descriptor fd;
    asio::steady_timer once_more;
    bool cgroup;
    std::function<void()> ended;
  };

  static void Look(std::shared_ptr<State> state) {
    State& waiting = *state;
    if (waiting.cgroup && !Populated(waiting.fd.native_handle())) {
      asio::post(waiting.fd.get_executor(), [state = std::move(state)] { End(state); });
      return;
    }
    if (waiting.cgroup) LookAgain(state, Clock::now() + kLookOnceMore);
    waiting.fd.async_wait(waiting.cgroup ? WaitType::wait_error : WaitType::wait_read,
                          [state = std::move(state)](const boost::system::error_code& error) {
                            if (error) return;
                            if (state->cgroup) {
                              Look(state);
                            } else {
                              End(state);
                            }
                          });
  }
  static void LookAgain(const std::shared_ptr<State>& state, TimePoint at) {
    state->once_more.expires_at(at);
    state->once_more.async_wait([state](const boost::system::error_code& error) {
      if (error || state->ended == nullptr) return;
      if (!Populated(state->fd.native_handle())) return End(state);
      LookAgain(state, NextCheck());
    });
  }
  static void End(const std::shared_ptr<State>& state) {
    if (auto ended = std::exchange(state->ended, nullptr)) ended();
  }

  std::shared_ptr<State> state_;
};

}  // namespace

std::string DescribeLife(const ConsumerLife& life) {
  switch (life.kind_case()) {
    case ConsumerLife::KIND_NOT_SET:
      return "";
    case ConsumerLife::kPid:
      return fmt::format("process {}", life.pid());
    case ConsumerLife::kCgroup:
      return fmt::format("cgroup {}", Printable(life.cgroup(), 1024));
    case ConsumerLife::kUnit:
      return fmt::format("unit {}", Printable(life.unit(), 256));
  }
  return "";
}

class ConsumerWatch::Impl {
 public:
  Impl(asio::any_io_executor executor, std::vector<SystemdBus::Address> systemd, bool booted)
      : executor_(executor),
        booted_(booted),
        units_(executor, std::move(systemd)),
        changed_(executor),
        tasks_(executor, "consumers") {}

  Awaitable<absl::StatusOr<ConsumerLife>> Identify(ConsumerLife asked, TimePoint deadline) {
    switch (asked.kind_case()) {
      case ConsumerLife::KIND_NOT_SET:
        break;
      case ConsumerLife::kPid: {
        uint64_t start_time = asked.start_time();
        BERTH_CO_RETURN_IF_ERROR(OpenProcess(asked.pid(), &start_time).status());
        asked.set_start_time(start_time);
        break;
      }
      case ConsumerLife::kCgroup: {
        std::string& path = *asked.mutable_cgroup();
        path = std::filesystem::path(path).lexically_normal().string();
        while (path.size() > 1 && path.ends_with('/')) path.pop_back();
        // Any path may be named, also one on a file system that does not answer.
        auto look = [path]() -> absl::Status {
          BERTH_ASSIGN_OR_RETURN(const UniqueFd events, OpenCgroup(path));
          if (Populated(events.get())) return absl::OkStatus();
          return absl::FailedPreconditionError(fmt::format("no process is in cgroup {}", path));
        };
        const std::string what = DescribeLife(asked);
        BERTH_CO_RETURN_IF_ERROR(co_await RunBlocking(what, std::move(look), deadline));
        break;
      }
      case ConsumerLife::kUnit: {
        if (!booted_) {
          co_return absl::FailedPreconditionError(
              fmt::format("{} cannot be watched: systemd does not run this machine", DescribeLife(asked)));
        }
        BERTH_CO_ASSIGN_OR_RETURN(const UnitState state, co_await units_.Ask(asked.unit(), deadline));
        if (state.load == "not-found") {
          co_return absl::NotFoundError(fmt::format("systemd knows no unit {}", asked.unit()));
        }
        if (state.ended()) {
          co_return absl::FailedPreconditionError(fmt::format("unit {} is {}", asked.unit(), state.active));
        }
        break;
      }
    }
    co_return asked;
  }

  void Watch(std::string id, ConsumerLife life, std::function<void(std::string)> on_end) {
    Forget(id);
    if (!IsSet(life)) return;
    const Key key = life.SerializeAsString();
    of_[id] = key;
    std::shared_ptr<Subject>& subject = subjects_[key];
    const bool fresh = subject == nullptr;
    if (fresh) {
      subject = std::make_shared<Subject>();
      subject->life = std::move(life);
    }
    subject->on_end[std::move(id)] = std::move(on_end);
    if (!fresh) return;
    if (subject->life.kind_case() == ConsumerLife::kUnit) {
      units_.Watch(subject->life.unit(), [this, key, name = subject->life.unit()](const UnitState& state) {
        if (!state.ended()) return;
        End(key, state.load == "not-found" ? fmt::format("unit {} is no more", name)
                                           : fmt::format("unit {} is {}", name, state.active));
      });
      return;
    }
    tasks_.Spawn("begin to watch", Begin(key, subject));
  }

  void Forget(const std::string& id) {
    const auto found = of_.find(id);
    if (found == of_.end()) return;
    const Key key = found->second;
    of_.erase(found);
    const auto subject = subjects_.find(key);
    if (subject == subjects_.end()) return;
    subject->second->on_end.erase(id);
    if (subject->second->on_end.empty()) Drop(subject);
  }

  Awaitable<bool> WaitEnded(ConsumerLife life, TimePoint deadline) {
    if (!IsSet(life)) co_return true;
    const auto ended = std::make_shared<bool>(false);
    // Names of our own: no id begins with a NUL.
    const std::string id = std::string(1, '\0') + std::to_string(++waits_);
    Watch(id, std::move(life), [this, ended](const std::string& /*why*/) {
      *ended = true;
      changed_.NotifyAll();
    });
    const Forgetting forgetting{this, id};
    auto has_ended = [ended] { return *ended; };
    co_return co_await changed_.WaitUntil(std::move(has_ended), deadline);
  }

  Awaitable<void> Shutdown() {
    of_.clear();
    subjects_.clear();
    co_await units_.Shutdown();
    co_await tasks_.Join();
  }

 private:
  using Key = std::string;  // the life, serialized
  struct Subject {
    ConsumerLife life;
    std::map<std::string, std::function<void(std::string)>> on_end;  // by id
    std::unique_ptr<EndWatch> watch;
  };
  using Subjects = std::map<Key, std::shared_ptr<Subject>>;

  struct Forgetting {
    Impl* impl;
    std::string id;
    ~Forgetting() { impl->Forget(id); }
  };

  void Drop(Subjects::iterator subject) {
    if (subject->second->life.kind_case() == ConsumerLife::kUnit) units_.Forget(subject->second->life.unit());
    subjects_.erase(subject);
  }

  void End(const Key& key, const std::string& why) {
    const auto found = subjects_.find(key);
    if (found == subjects_.end()) return;
    const std::shared_ptr<Subject> subject = found->second;
    const auto told = std::exchange(subject->on_end, {});
    for (const auto& [id, on_end] : told) of_.erase(id);
    Drop(found);
    for (const auto& [id, on_end] : told) on_end(why);
  }

  // Until it is watched, has ended, or is not to be watched any more.
  Awaitable<void> Begin(Key key, std::shared_ptr<Subject> subject) {
    BackoffTimer backoff(kFirstPause, kLongestPause);
    const std::string what = DescribeLife(subject->life);
    while (true) {
      absl::StatusOr<UniqueFd> opened = co_await Open(subject->life);
      const auto still = subjects_.find(key);
      if (still == subjects_.end() || still->second != subject) co_return;
      if (opened.ok()) {
        const bool cgroup = subject->life.kind_case() == ConsumerLife::kCgroup;
        subject->watch = std::make_unique<EndWatch>(
            executor_, *std::move(opened), cgroup,
            [this, key, why = what + (cgroup ? " has no process any more" : " has ended")] {
              End(key, why);
            });
        co_return;
      }
      const absl::StatusCode code = opened.status().code();
      if (code == absl::StatusCode::kNotFound || code == absl::StatusCode::kFailedPrecondition ||
          code == absl::StatusCode::kInvalidArgument) {
        End(key, std::string(MessageOf(opened.status())));
        co_return;
      }
      if (backoff.failures() == 0) SPDLOG_WARN("{} cannot be watched: {}", what, MessageOf(opened.status()));
      co_await SleepUntil(Clock::now() + backoff.Next());
    }
  }

  static Awaitable<absl::StatusOr<UniqueFd>> Open(ConsumerLife life) {
    if (life.kind_case() == ConsumerLife::kPid) {
      uint64_t start_time = life.start_time();
      co_return OpenProcess(life.pid(), &start_time);
    }
    auto open = [path = life.cgroup()] { return OpenCgroup(path); };
    const std::string what = DescribeLife(life);
    co_return co_await RunBlocking(what, std::move(open), Clock::now() + kOpenWithin);
  }

  asio::any_io_executor executor_;
  bool booted_;
  SystemdUnits units_;
  Subjects subjects_;
  std::map<std::string, Key> of_;  // by id
  uint64_t waits_ = 0;
  Condition changed_;
  TaskScope tasks_;
};

ConsumerWatch::ConsumerWatch(asio::any_io_executor executor)
    : impl_(std::make_unique<Impl>(std::move(executor), SystemdBus::DefaultAddresses(), sd_booted() > 0)) {}

ConsumerWatch::ConsumerWatch(asio::any_io_executor executor, std::vector<SystemdBus::Address> systemd)
    : impl_(std::make_unique<Impl>(std::move(executor), std::move(systemd), true)) {}

ConsumerWatch::~ConsumerWatch() = default;

Awaitable<absl::StatusOr<ConsumerLife>> ConsumerWatch::Identify(ConsumerLife asked, TimePoint deadline) {
  return impl_->Identify(std::move(asked), deadline);
}
void ConsumerWatch::Watch(std::string id, ConsumerLife life, std::function<void(std::string why)> on_end) {
  impl_->Watch(std::move(id), std::move(life), std::move(on_end));
}
void ConsumerWatch::Forget(const std::string& id) { impl_->Forget(id); }
Awaitable<bool> ConsumerWatch::WaitEnded(ConsumerLife life, TimePoint deadline) {
  return impl_->WaitEnded(std::move(life), deadline);
}
Awaitable<void> ConsumerWatch::Shutdown() { return impl_->Shutdown(); }

}  // namespace berth
