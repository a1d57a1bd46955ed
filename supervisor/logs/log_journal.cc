#include "supervisor/logs/log_journal.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <iterator>

namespace berth {
namespace {

constexpr auto kConnectInterval = std::chrono::seconds(5);
constexpr auto kPatience = std::chrono::seconds(5);
// Often its queue is full for a moment only.
constexpr auto kMoment = std::chrono::milliseconds(5);
constexpr auto kMomentInterval = std::chrono::milliseconds(50);

}  // namespace

bool LogJournal::Connect() {
  const TimePoint now = Clock::now();
  if (now < connect_again_at_) return false;
  connect_again_at_ = now + kConnectInterval;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.empty() || path_.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return false;
  // A restart of the journal keeps its socket, which systemd holds.
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return false;
  socket_ = std::move(fd);
  known_ = true;
  return true;
}

LogJournal::Outcome LogJournal::Send(const JournalLine& line) {
  if (!socket_.valid() && !Connect()) return known_ ? Outcome::kLost : Outcome::kAbsent;
  datagram_.clear();
  fmt::format_to(std::back_inserter(datagram_),
                 "PRIORITY={}\nSYSLOG_IDENTIFIER=berth-plugin\nBERTH_PLUGIN={}\nBERTH_LOG_POSITION={}\n",
                 line.priority, line.plugin_id, line.position);
  if (line.pid > 0) fmt::format_to(std::back_inserter(datagram_), "BERTH_PLUGIN_PID={}\n", line.pid);
  datagram_ += "MESSAGE=";
  datagram_ += line.message;
  datagram_ += '\n';

  while (true) {
    if (send(socket_.get(), datagram_.data(), datagram_.size(), MSG_NOSIGNAL) >= 0) {
      busy_since_ = {};
      return Outcome::kSent;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != ENOBUFS) {
      if (errno != EMSGSIZE) socket_.Reset();  // ECONNREFUSED and its like: connect again
      return Outcome::kLost;
    }
    const TimePoint now = Clock::now();
    if (busy_since_ == TimePoint{}) busy_since_ = now;
    if (now - busy_since_ > kPatience) return Outcome::kLost;
    if (now < wait_again_at_) return Outcome::kBusy;
    pollfd writable{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
    if (poll(&writable, 1, static_cast<int>(kMoment.count())) != 1) {
      wait_again_at_ = Clock::now() + kMomentInterval;
      return Outcome::kBusy;
    }
  }
}

}  // namespace berth
