#include "base/systemd_session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/multiple_exceptions.hpp>
#include <cerrno>
#include <exception>
#include <utility>

#include "base/descriptor_wait.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth::systemd_internal {
namespace {

// Our own deadlines end a call; sd-bus keeps no second clock.
constexpr uint64_t kNoTimeout = UINT64_MAX;

absl::Status StatusOfError(const sd_bus_error& error, std::string_view what) {
  const std::string_view name = error.name == nullptr ? "" : error.name;
  const std::string text =
      fmt::format("{}: {}", what, Printable(error.message == nullptr ? name : error.message, 512));
  constexpr std::string_view kUnit = "org.freedesktop.systemd1.";
  constexpr std::string_view kBus = "org.freedesktop.DBus.Error.";
  if (name.starts_with(kUnit)) {
    const std::string_view kind = name.substr(kUnit.size());
    if (kind == "UnitExists") return absl::AlreadyExistsError(text);
    if (kind == "NoSuchUnit") return absl::NotFoundError(text);
  }
  if (name.starts_with(kBus)) {
    const std::string_view kind = name.substr(kBus.size());
    if (kind == "PropertyReadOnly" || kind == "UnknownProperty") return absl::InvalidArgumentError(text);
    if (kind == "AccessDenied" || kind == "InteractiveAuthorizationRequired") {
      return absl::PermissionDeniedError(text);
    }
    if (kind == "NoReply" || kind == "Disconnected" || kind == "ServiceUnknown" || kind == "NameHasNoOwner" ||
        kind == "Timeout") {
      return absl::UnavailableError(text);
    }
  }
  return absl::FailedPreconditionError(text);
}

Awaitable<absl::StatusOr<std::unique_ptr<Session>>> ConnectTo(SystemdBus::Address address,
                                                              TimePoint deadline) {
  const std::string what = fmt::format("connect to {}", address.path);
  sd_bus* bus = nullptr;
  int result = sd_bus_new(&bus);
  if (result < 0) co_return BusStatus(result, what);
  auto session = std::make_unique<Session>(bus, address.message_bus);
  result = sd_bus_set_address(bus, fmt::format("unix:path={}", address.path).c_str());
  if (result >= 0) result = sd_bus_set_bus_client(bus, address.message_bus ? 1 : 0);
  if (result >= 0) result = sd_bus_start(bus);
  if (result < 0) co_return BusStatus(result, what);
  auto ready = [bus] { return sd_bus_is_ready(bus) > 0; };
  BERTH_CO_RETURN_IF_ERROR(co_await session->Until(std::move(ready), what, deadline));
  co_return session;
}

}  // namespace

absl::Status BusStatus(int result, std::string_view what) {
  return absl::UnavailableError(ErrnoStatus(-result, what).message());
}

Awaitable<absl::Status> Session::Until(std::function<bool()> done, std::string what, TimePoint deadline,
                                       Condition* changed) {
  using boost::asio::experimental::awaitable_operators::operator||;
  while (true) {
    const int processed = sd_bus_process(bus_, nullptr);
    if (processed < 0) co_return BusStatus(processed, what);
    if (done()) co_return absl::OkStatus();
    if (Clock::now() >= deadline) co_return absl::DeadlineExceededError(what + ": no answer in time");
    if (processed > 0) continue;
    if (sd_bus_is_open(bus_) <= 0) co_return absl::UnavailableError(what + ": the connection was closed");
    if (!descriptor_.has_value()) {
      // A duplicate: sd-bus closes its own.
      UniqueFd copy(fcntl(sd_bus_get_fd(bus_), F_DUPFD_CLOEXEC, 3));
      if (!copy.valid()) co_return ErrnoStatus(errno, what);
      descriptor_.emplace(co_await asio::this_coro::executor, copy.Release());
    }
    const int events = sd_bus_get_events(bus_);
    if (events < 0) co_return BusStatus(events, what);
    const auto wanted = (events & POLLOUT) != 0 ? asio::posix::stream_descriptor::wait_write
                                                : asio::posix::stream_descriptor::wait_read;
    // Which of the two it was is seen above.
    if (changed == nullptr) {
      [[maybe_unused]] const bool ready = co_await WaitDescriptor(*descriptor_, wanted, deadline);
    } else {
      try {
        [[maybe_unused]] const auto first =
            co_await (WaitDescriptor(*descriptor_, wanted, deadline) || changed->WaitUntil(done, deadline));
      } catch (const asio::multiple_exceptions& both) {
        // A cancellation ends both, and is one.
        std::rethrow_exception(both.first_exception());
      }
    }
  }
}

Awaitable<absl::StatusOr<Message>> Session::Call(Message request, std::string what, TimePoint deadline) {
  Message reply;
  const auto keep = [](sd_bus_message* message, void* place, sd_bus_error* /*error*/) {
    static_cast<Message*>(place)->reset(sd_bus_message_ref(message));
    return 0;
  };
  sd_bus_slot* slot = nullptr;
  const int sent = sd_bus_call_async(bus_, &slot, request.get(), keep, &reply, kNoTimeout);
  if (sent < 0) co_return BusStatus(sent, what);
  // The answer must find no place once this coroutine is gone.
  const Slot owned(slot);
  auto answered = [&reply] { return reply != nullptr; };
  BERTH_CO_RETURN_IF_ERROR(co_await Until(std::move(answered), what, deadline));
  if (const sd_bus_error* error = sd_bus_message_get_error(reply.get()); error != nullptr) {
    co_return StatusOfError(*error, what);
  }
  co_return reply;
}

Awaitable<absl::StatusOr<std::unique_ptr<Session>>> Connect(std::vector<SystemdBus::Address> addresses,
                                                            TimePoint deadline) {
  co_return co_await FromFirst<std::unique_ptr<Session>>(std::move(addresses), deadline, ConnectTo);
}

absl::StatusOr<Message> NewCall(sd_bus* bus, const char* interface, const char* method) {
  sd_bus_message* message = nullptr;
  const int result = sd_bus_message_new_method_call(bus, &message, kDestination, kPath, interface, method);
  if (result < 0) return BusStatus(result, fmt::format("call {}", method));
  return Message(message);
}

}  // namespace berth::systemd_internal
