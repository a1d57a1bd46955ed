// Children that were killed and have no waiter.
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/process_launch.h"

namespace berth::process_internal {
namespace {

// Reaps on a thread of its own, which lives as long as there is anybody to reap. Never destroyed: the thread
// may still wait when main returns.
class Reaper {
 public:
  static Reaper& Instance() {
    static auto* const reaper = new Reaper;
    return *reaper;
  }

  void Add(UniqueFd pidfd) {
    const std::lock_guard lock(mutex_);
    children_.push_back(std::move(pidfd));
    if (running_) {
      eventfd_write(wake_.get(), 1);
      return;
    }
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { Run(); }).detach();
      running_ = true;
    } catch (const std::system_error& error) {
      // It stays a zombie until the next one comes.
      SPDLOG_WARN("reap a child: start a thread: {}", error.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

 private:
  void Run() noexcept {
    while (true) {
      std::vector<pollfd> watched{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
      {
        const std::lock_guard lock(mutex_);
        std::erase_if(children_, ReapIfEnded);
        if (children_.empty()) {
          running_ = false;
          return;
        }
        for (const UniqueFd& child : children_) {
          watched.push_back({.fd = child.get(), .events = POLLIN, .revents = 0});
        }
      }
      poll(watched.data(), watched.size(), -1);
      eventfd_t count = 0;
      if (watched.front().revents != 0) eventfd_read(wake_.get(), &count);
    }
  }

  // If it was reaped elsewhere, that counts.
  static bool ReapIfEnded(const UniqueFd& pidfd) {
    siginfo_t info{};
    return waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd.get()), &info, WEXITED | WNOHANG) !=
               0 ||
           info.si_pid != 0;
  }

  std::mutex mutex_;
  std::vector<UniqueFd> children_;
  UniqueFd wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  bool running_ = false;
};

}  // namespace

void KillAndReapLater(UniqueFd pidfd) {
  syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  Reaper::Instance().Add(std::move(pidfd));
}

}  // namespace berth::process_internal
