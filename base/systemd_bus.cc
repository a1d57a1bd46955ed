#include "base/systemd_bus.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "base/descriptor_wait.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

constexpr const char* kDestination = "org.freedesktop.systemd1";
constexpr const char* kPath = "/org/freedesktop/systemd1";
constexpr const char* kManager = "org.freedesktop.systemd1.Manager";
// Our own deadlines end a call; sd-bus keeps no second clock.
constexpr uint64_t kNoTimeout = UINT64_MAX;

struct MessageDeleter {
  void operator()(sd_bus_message* message) const { sd_bus_message_unref(message); }
};
using Message = std::unique_ptr<sd_bus_message, MessageDeleter>;

absl::Status BusStatus(int result, std::string_view what) {
  // Whatever keeps a bus from answering, the bus is not there for us.
  return absl::UnavailableError(ErrnoStatus(-result, what).message());
}

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

// One connection, from the call that needs it to its end.
class Session {
 public:
  Session(sd_bus* bus, bool message_bus) : bus_(bus), message_bus_(message_bus) {}
  // Does not wait for anything that is still to be sent.
  ~Session() { sd_bus_close_unref(bus_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] sd_bus* bus() const { return bus_; }
  [[nodiscard]] const char* sender() const { return message_bus_ ? kDestination : nullptr; }

  // Drives the connection until `done()`.
  Awaitable<absl::Status> Until(std::function<bool()> done, std::string what, TimePoint deadline) {
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
      [[maybe_unused]] const bool ready = co_await WaitDescriptor(*descriptor_, wanted, deadline);
    }
  }

  Awaitable<absl::StatusOr<Message>> Call(Message request, std::string what, TimePoint deadline) {
    Message reply;
    const auto keep = [](sd_bus_message* message, void* place, sd_bus_error* /*error*/) {
      static_cast<Message*>(place)->reset(sd_bus_message_ref(message));
      return 0;
    };
    sd_bus_slot* slot = nullptr;
    const int sent = sd_bus_call_async(bus_, &slot, request.get(), keep, &reply, kNoTimeout);
    if (sent < 0) co_return BusStatus(sent, what);
    // The answer must find no place once this coroutine is gone.
    const std::unique_ptr<sd_bus_slot, sd_bus_slot* (*)(sd_bus_slot*)> owned(slot, sd_bus_slot_unref);
    auto answered = [&reply] { return reply != nullptr; };
    BERTH_CO_RETURN_IF_ERROR(co_await Until(std::move(answered), what, deadline));
    if (const sd_bus_error* error = sd_bus_message_get_error(reply.get()); error != nullptr) {
      co_return StatusOfError(*error, what);
    }
    co_return reply;
  }

 private:
  sd_bus* bus_;
  bool message_bus_;
  std::optional<asio::posix::stream_descriptor> descriptor_;
};

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

Awaitable<absl::StatusOr<std::unique_ptr<Session>>> Connect(std::vector<SystemdBus::Address> addresses,
                                                            TimePoint deadline) {
  absl::Status failure = absl::UnavailableError("systemd: no address");
  for (size_t i = 0; i < addresses.size(); ++i) {
    // A bus that is there and does not speak leaves time for the next one.
    const auto share = (deadline - Clock::now()) / static_cast<int64_t>(addresses.size() - i);
    absl::StatusOr<std::unique_ptr<Session>> session =
        co_await ConnectTo(addresses[i], std::min(deadline, Clock::now() + share));
    if (session.ok()) co_return session;
    failure =
        i == 0
            ? session.status()
            : absl::UnavailableError(fmt::format("{}; {}", MessageOf(failure), MessageOf(session.status())));
  }
  co_return failure;
}

absl::StatusOr<Message> NewCall(sd_bus* bus, const char* interface, const char* method) {
  sd_bus_message* message = nullptr;
  const int result = sd_bus_message_new_method_call(bus, &message, kDestination, kPath, interface, method);
  if (result < 0) return BusStatus(result, fmt::format("call {}", method));
  return Message(message);
}

// The properties of a scope as StartTransientUnit takes them. Remembers the first failure.
class PropertyWriter {
 public:
  explicit PropertyWriter(sd_bus_message* message) : message_(message) {}

  void Text(const char* name, const std::string& value) {
    Take(sd_bus_message_append(message_, "(sv)", name, "s", value.c_str()));
  }
  void Number(const char* name, uint64_t value) {
    Take(sd_bus_message_append(message_, "(sv)", name, "t", value));
  }
  void Flag(const char* name, bool value) {
    Take(sd_bus_message_append(message_, "(sv)", name, "b", value ? 1 : 0));
  }
  void Strings(const char* name, const std::string& value) {
    Take(sd_bus_message_append(message_, "(sv)", name, "as", 1, value.c_str()));
  }
  void Pid(const char* name, pid_t pid) {
    Take(sd_bus_message_append(message_, "(sv)", name, "au", 1, static_cast<uint32_t>(pid)));
  }
  void Take(int result) {
    if (result < 0 && result_ >= 0) result_ = result;
  }
  [[nodiscard]] int result() const { return result_; }

 private:
  sd_bus_message* message_;
  int result_ = 0;
};

int WriteScope(sd_bus_message* message, const ScopeRequest& request) {
  PropertyWriter write(message);
  write.Take(sd_bus_message_append(message, "ss", request.name.c_str(), "fail"));
  write.Take(sd_bus_message_open_container(message, 'a', "(sv)"));
  write.Text("Description", request.description);
  write.Text("Slice", request.slice);
  write.Pid("PIDs", request.pid);
  // Gone with its last process, so that its name is free for the next launch whatever the end was.
  write.Text("CollectMode", "inactive-or-failed");
  write.Flag("MemoryAccounting", true);
  write.Flag("TasksAccounting", true);
  if (request.memory_max.has_value()) write.Number("MemoryMax", *request.memory_max);
  if (request.tasks_max.has_value()) write.Number("TasksMax", *request.tasks_max);
  if (request.cpus.has_value()) {
    write.Flag("CPUAccounting", true);
    write.Number("CPUQuotaPerSecUSec", static_cast<uint64_t>(*request.cpus * 1e6));
  }
  if (request.oom_policy.has_value()) write.Text("OOMPolicy", *request.oom_policy);
  // What systemd does at the machine's end, for berthd ends its plugins itself.
  write.Text("KillMode", "control-group");
  write.Number("TimeoutStopUSec", 30'000'000);
  if (!request.before.empty()) write.Strings("Before", request.before);
  write.Take(sd_bus_message_close_container(message));
  write.Take(sd_bus_message_append(message, "a(sa(sv))", 0));
  return write.result();
}

// How the jobs of one unit ended, as they were told.
struct Jobs {
  std::string unit;
  std::map<std::string, std::string> results;  // by the job's object path

  static int OnRemoved(sd_bus_message* message, void* self, sd_bus_error* /*error*/) {
    auto* jobs = static_cast<Jobs*>(self);
    uint32_t id = 0;
    const char* job = nullptr;
    const char* unit = nullptr;
    const char* result = nullptr;
    if (sd_bus_message_read(message, "uoss", &id, &job, &unit, &result) < 0) return 0;
    if (jobs->unit == unit) jobs->results[job] = result;
    return 0;
  }
};

}  // namespace

std::string EscapeUnitName(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '/') {
      escaped += '-';
    } else if (std::isalnum(byte) != 0 || c == ':' || c == '_' || (c == '.' && !escaped.empty())) {
      escaped += c;
    } else {
      escaped += fmt::format("\\x{:02x}", byte);
    }
  }
  return escaped;
}

SystemdBus::SystemdBus()
    : addresses_{Address{"/run/dbus/system_bus_socket", true}, Address{"/run/systemd/private", false}} {}

Awaitable<absl::StatusOr<std::string>> SystemdBus::Version(TimePoint deadline) const {
  BERTH_CO_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, co_await Connect(addresses_, deadline));
  const std::string what = "ask systemd for its version";
  BERTH_CO_ASSIGN_OR_RETURN(Message request,
                            NewCall(session->bus(), "org.freedesktop.DBus.Properties", "Get"));
  const int written = sd_bus_message_append(request.get(), "ss", kManager, "Version");
  if (written < 0) co_return BusStatus(written, what);
  BERTH_CO_ASSIGN_OR_RETURN(const Message reply, co_await session->Call(std::move(request), what, deadline));
  const char* version = nullptr;
  const int read = sd_bus_message_read(reply.get(), "v", "s", &version);
  if (read < 0) co_return BusStatus(read, what);
  co_return Printable(version, 128);
}

Awaitable<absl::Status> SystemdBus::StartScope(ScopeRequest request, TimePoint deadline) const {
  BERTH_CO_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, co_await Connect(addresses_, deadline));
  const std::string what = fmt::format("start {}", request.name);
  Jobs jobs{.unit = request.name, .results = {}};
  // Before the call, so that the end of its job cannot be missed.
  sd_bus_slot* slot = nullptr;
  const int matched = sd_bus_match_signal_async(session->bus(), &slot, session->sender(), kPath, kManager,
                                                "JobRemoved", Jobs::OnRemoved, nullptr, &jobs);
  if (matched < 0) co_return BusStatus(matched, what);
  const std::unique_ptr<sd_bus_slot, sd_bus_slot* (*)(sd_bus_slot*)> owned(slot, sd_bus_slot_unref);

  BERTH_CO_ASSIGN_OR_RETURN(Message call, NewCall(session->bus(), kManager, "StartTransientUnit"));
  const int written = WriteScope(call.get(), request);
  if (written < 0) co_return BusStatus(written, what);
  BERTH_CO_ASSIGN_OR_RETURN(const Message reply, co_await session->Call(std::move(call), what, deadline));
  const char* path = nullptr;
  const int read = sd_bus_message_read(reply.get(), "o", &path);
  if (read < 0) co_return BusStatus(read, what);

  const std::string job = path;
  auto done = [&jobs, job] { return jobs.results.contains(job); };
  BERTH_CO_RETURN_IF_ERROR(co_await session->Until(std::move(done), what, deadline));
  if (jobs.results[job] == "done") co_return absl::OkStatus();
  co_return absl::FailedPreconditionError(
      fmt::format("{}: systemd's job ended as \"{}\"", what, Printable(jobs.results[job], 64)));
}

Awaitable<absl::Status> SystemdBus::KillUnit(std::string name, TimePoint deadline) const {
  BERTH_CO_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, co_await Connect(addresses_, deadline));
  const std::string what = fmt::format("kill {}", name);
  BERTH_CO_ASSIGN_OR_RETURN(Message request, NewCall(session->bus(), kManager, "KillUnit"));
  const int written = sd_bus_message_append(request.get(), "ssi", name.c_str(), "all", SIGKILL);
  if (written < 0) co_return BusStatus(written, what);
  co_return (co_await session->Call(std::move(request), what, deadline)).status();
}

}  // namespace berth
