#include "base/service_notifier.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/descriptor_wait.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

// The kernel reports new space. This is for a manager that has made its socket again.
constexpr auto kTryAgain = std::chrono::seconds(5);

}  // namespace

ServiceNotifier::ServiceNotifier(asio::any_io_executor executor, std::string socket)
    : address_(std::move(socket)), socket_(executor), tasks_(executor, "service manager") {}

void ServiceNotifier::Send(std::string state) {
  if (address_.empty()) return;
  const bool waits = pending_.has_value();
  pending_ = std::move(state);
  if (!waits && !TrySend()) tasks_.Spawn("notify", SendPending());
}

bool ServiceNotifier::Connect() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (address_.size() >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return false;
  }
  std::memcpy(address.sun_path, address_.data(), address_.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  if (address_.front() == '@') address.sun_path[0] = '\0';
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return false;
  socket_.close();
  socket_.assign(fd.Release());
  return true;
}

bool ServiceNotifier::TrySend() {
  const bool sent =
      Connect() && send(socket_.native_handle(), pending_->data(), pending_->size(), MSG_NOSIGNAL) >= 0;
  if (!sent && (errno == EAGAIN || errno == ENOBUFS)) return false;
  if (!sent) SPDLOG_WARN("notify the service manager at {}: {}", address_, std::strerror(errno));
  pending_.reset();
  return true;
}

Awaitable<void> ServiceNotifier::SendPending() {
  do {
    [[maybe_unused]] const bool writable = co_await WaitDescriptor(
        socket_, asio::posix::stream_descriptor::wait_write, Clock::now() + kTryAgain);
  } while (!TrySend());
}

}  // namespace berth
