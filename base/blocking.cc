#include "base/blocking.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace berth::blocking_internal {
namespace {

constexpr std::chrono::seconds kIdleThreadStays{10};

// One call. What the loop alone touches is `done` and `changed`; the rest belongs to the Threads' mutex.
struct Job {
  Job(asio::any_io_executor loop, std::function<void()> work)
      : executor(loop), body(std::move(work)), changed(std::move(loop)) {}

  enum class State { kQueued, kRunning, kLeftBehind, kEnded };

  State state = State::kQueued;
  asio::any_io_executor executor;  // not used any more once the waiter has left: the loop may be gone
  std::function<void()> body;
  bool done = false;
  Condition changed;
};

// The helper threads. Detached, and this is never destroyed: they may still be at work when main returns.
class Threads {
 public:
  static Threads& Instance() {
    static auto* const threads = new Threads;
    return *threads;
  }

  absl::Status Submit(const std::shared_ptr<Job>& job) {
    const std::lock_guard lock(mutex_);
    if (left_behind_ >= kBlockingLeftBehind) {
      return absl::ResourceExhaustedError(fmt::format("{} earlier calls hang", left_behind_));
    }
    if (queue_.size() >= kBlockingQueue) {
      return absl::ResourceExhaustedError(fmt::format("{} calls are waiting already", queue_.size()));
    }
    queue_.push_back(job);
    if (const absl::Status started = StartThreadIfNeeded(); !started.ok() && serving_ == 0) {
      queue_.pop_back();
      return started;
    }
    wake_.notify_one();
    return absl::OkStatus();
  }

  void Leave(const std::shared_ptr<Job>& job) {
    const std::lock_guard lock(mutex_);
    switch (job->state) {
      case Job::State::kQueued:
        queue_.erase(std::find(queue_.begin(), queue_.end(), job));
        job->state = Job::State::kEnded;
        break;
      case Job::State::kRunning:
        job->state = Job::State::kLeftBehind;
        ++left_behind_;
        --serving_;
        // Where no thread can be had, the next Submit tries again.
        StartThreadIfNeeded().IgnoreError();
        break;
      case Job::State::kLeftBehind:
      case Job::State::kEnded:
        break;
    }
  }

 private:
  absl::Status StartThreadIfNeeded() {
    if (idle_ >= queue_.size() || serving_ >= kBlockingThreads) return absl::OkStatus();
    // Signals are the loop's.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    absl::Status started = absl::OkStatus();
    try {
      std::thread([this] { Serve(); }).detach();
      ++serving_;
    } catch (const std::system_error& error) {
      started = absl::ResourceExhaustedError(fmt::format("start a thread: {}", error.what()));
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  void Serve() noexcept {
    std::unique_lock lock(mutex_);
    while (true) {
      ++idle_;
      const bool called = wake_.wait_for(lock, kIdleThreadStays, [this] { return !queue_.empty(); });
      --idle_;
      if (!called) {
        --serving_;
        return;
      }
      std::shared_ptr<Job> job = std::move(queue_.front());
      queue_.pop_front();
      job->state = Job::State::kRunning;
      lock.unlock();
      job->body();
      job->body = nullptr;
      lock.lock();
      const bool left_behind = job->state == Job::State::kLeftBehind;
      if (!left_behind) {
        // Under the mutex: the waiter, and with it the loop, cannot leave meanwhile.
        asio::post(job->executor, [job] {
          job->done = true;
          job->changed.NotifyAll();
        });
      }
      job->state = Job::State::kEnded;
      job.reset();
      if (!left_behind) continue;
      --left_behind_;
      if (serving_ >= kBlockingThreads) return;
      ++serving_;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> queue_;
  size_t idle_ = 0;      // threads that wait for a call
  int serving_ = 0;      // threads that wait for a call, or run one with a waiter
  int left_behind_ = 0;  // threads that run a call without a waiter
};

class LeaveOnExit {
 public:
  explicit LeaveOnExit(std::shared_ptr<Job> job) : job_(std::move(job)) {}
  ~LeaveOnExit() { Threads::Instance().Leave(job_); }
  LeaveOnExit(const LeaveOnExit&) = delete;
  LeaveOnExit& operator=(const LeaveOnExit&) = delete;

 private:
  std::shared_ptr<Job> job_;
};

}  // namespace

Awaitable<absl::Status> RunOnThread(std::string what, std::function<void()> body, TimePoint deadline) {
  const auto executor = co_await asio::this_coro::executor;
  auto job = std::make_shared<Job>(executor, std::move(body));
  if (const absl::Status begun = Threads::Instance().Submit(job); !begun.ok()) {
    co_return absl::ResourceExhaustedError(
        fmt::format("{}: {}", what, std::string_view(begun.message().data(), begun.message().size())));
  }
  const LeaveOnExit leave(job);
  if (co_await job->changed.WaitUntil([job] { return job->done; }, deadline)) co_return absl::OkStatus();
  co_return absl::DeadlineExceededError(fmt::format("{}: not done in time", what));
}

}  // namespace berth::blocking_internal
