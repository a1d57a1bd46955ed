// One connection to systemd over D-Bus, driven from the loop. For systemd_bus.cc and systemd_units.cc alone.
#pragma once

#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <systemd/sd-bus.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/systemd_bus.h"
#include "base/task_scope.h"

namespace berth::systemd_internal {

inline constexpr const char* kDestination = "org.freedesktop.systemd1";
inline constexpr const char* kPath = "/org/freedesktop/systemd1";
inline constexpr const char* kManager = "org.freedesktop.systemd1.Manager";
inline constexpr const char* kProperties = "org.freedesktop.DBus.Properties";

struct MessageDeleter {
  void operator()(sd_bus_message* message) const { sd_bus_message_unref(message); }
};
using Message = std::unique_ptr<sd_bus_message, MessageDeleter>;

struct SlotDeleter {
  void operator()(sd_bus_slot* slot) const { sd_bus_slot_unref(slot); }
};
using Slot = std::unique_ptr<sd_bus_slot, SlotDeleter>;

// What sd-bus says of the connection: UNAVAILABLE, for whatever keeps a bus from answering, it is not there
// for us.
[[nodiscard]] absl::Status BusStatus(int result, std::string_view what);

// One connection, from the call that needs it to its end. Slots of it go before it does.
class Session {
 public:
  Session(sd_bus* bus, bool message_bus) : bus_(bus), message_bus_(message_bus) {}
  // Does not wait for anything that is still to be sent.
  ~Session() { sd_bus_close_unref(bus_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] sd_bus* bus() const { return bus_; }
  [[nodiscard]] const char* sender() const { return message_bus_ ? kDestination : nullptr; }

  // Drives the connection until `done()`, which is asked after each message, and when `changed` is notified.
  [[nodiscard]] Awaitable<absl::Status> Until(std::function<bool()> done, std::string what,
                                              TimePoint deadline, Condition* changed = nullptr);
  // The answer; or its error as a status.
  [[nodiscard]] Awaitable<absl::StatusOr<Message>> Call(Message request, std::string what,
                                                        TimePoint deadline);

 private:
  sd_bus* bus_;
  bool message_bus_;
  std::optional<asio::posix::stream_descriptor> descriptor_;
};

// What `ask` gets from the first of the addresses that answers. One that is there and does not answer leaves
// time for the next. UNAVAILABLE: none does, with each one's error.
template <class T>
[[nodiscard]] Awaitable<absl::StatusOr<T>> FromFirst(
    std::vector<SystemdBus::Address> addresses, TimePoint deadline,
    std::function<Awaitable<absl::StatusOr<T>>(SystemdBus::Address, TimePoint)> ask) {
  absl::Status failure = absl::UnavailableError("systemd: no address");
  for (size_t i = 0; i < addresses.size(); ++i) {
    const auto share = (deadline - Clock::now()) / static_cast<int64_t>(addresses.size() - i);
    absl::StatusOr<T> answer = co_await ask(addresses[i], std::min(deadline, Clock::now() + share));
    if (answer.ok()) co_return answer;
    failure =
        i == 0
            ? answer.status()
            : absl::UnavailableError(fmt::format("{}; {}", MessageOf(failure), MessageOf(answer.status())));
  }
  co_return failure;
}

// To the first of the addresses that answers.
[[nodiscard]] Awaitable<absl::StatusOr<std::unique_ptr<Session>>> Connect(
    std::vector<SystemdBus::Address> addresses, TimePoint deadline);

// A call to systemd's manager object.
[[nodiscard]] absl::StatusOr<Message> NewCall(sd_bus* bus, const char* interface, const char* method);

}  // namespace berth::systemd_internal
