#include "base/systemd_bus.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-login.h>

#include <cctype>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>

#include "base/status.h"
#include "base/systemd_session.h"

namespace berth {
namespace {

using systemd_internal::BusStatus;
using systemd_internal::Connect;
using systemd_internal::FromFirst;
using systemd_internal::kManager;
using systemd_internal::kPath;
using systemd_internal::Message;
using systemd_internal::NewCall;
using systemd_internal::Session;
using systemd_internal::Slot;

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

// How the jobs of one unit ended, as systemd reported them.
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

// Sends `call`, a method of the manager's that queues a job for `unit`, and returns once that job has ended.
Awaitable<absl::Status> RunJob(Session* session, std::string unit, Message call, std::string what,
                               TimePoint deadline) {
  Jobs jobs{.unit = std::move(unit), .results = {}};
  // Before the call, so that the end of its job cannot be missed.
  sd_bus_slot* slot = nullptr;
  const int matched = sd_bus_match_signal_async(session->bus(), &slot, session->sender(), kPath, kManager,
                                                "JobRemoved", Jobs::OnRemoved, nullptr, &jobs);
  if (matched < 0) co_return BusStatus(matched, what);
  const Slot owned(slot);
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

// A property of the manager's, from one address.
Awaitable<absl::StatusOr<std::string>> AskManager(SystemdBus::Address address, std::string property,
                                                  TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, co_await Connect({address}, deadline));
  const std::string what = fmt::format("ask systemd for its {}", property);
  BERTH_CO_ASSIGN_OR_RETURN(Message request, NewCall(session->bus(), systemd_internal::kProperties, "Get"));
  const int written = sd_bus_message_append(request.get(), "ss", kManager, property.c_str());
  if (written < 0) co_return BusStatus(written, what);
  BERTH_CO_ASSIGN_OR_RETURN(const Message reply, co_await session->Call(std::move(request), what, deadline));
  const char* value = nullptr;
  const int read = sd_bus_message_read(reply.get(), "v", "s", &value);
  if (read < 0) co_return BusStatus(read, what);
  co_return Printable(value, 128);
}

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

std::vector<SystemdBus::Address> SystemdBus::DefaultAddresses() {
  return {Address{"/run/dbus/system_bus_socket", true}, Address{"/run/systemd/private", false}};
}

Awaitable<absl::StatusOr<std::string>> SystemdBus::ManagerText(std::string property,
                                                               TimePoint deadline) const {
  auto ask = [property = std::move(property)](Address address, TimePoint until) {
    return AskManager(std::move(address), property, until);
  };
  co_return co_await FromFirst<std::string>(addresses_, deadline, std::move(ask));
}

Awaitable<absl::StatusOr<std::string>> SystemdBus::Version(TimePoint deadline) const {
  return ManagerText("Version", deadline);
}

Awaitable<absl::StatusOr<bool>> SystemdBus::IsStopping(TimePoint deadline) const {
  BERTH_CO_ASSIGN_OR_RETURN(const std::string state, co_await ManagerText("SystemState", deadline));
  co_return state == "stopping";
}

Awaitable<absl::Status> SystemdBus::StartScope(ScopeRequest request, TimePoint deadline) const {
  BERTH_CO_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, co_await Connect(addresses_, deadline));
  const std::string what = fmt::format("start {}", request.name);
  BERTH_CO_ASSIGN_OR_RETURN(Message call, NewCall(session->bus(), kManager, "StartTransientUnit"));
  const int written = WriteScope(call.get(), request);
  if (written < 0) co_return BusStatus(written, what);
  co_return co_await RunJob(session.get(), request.name, std::move(call), what, deadline);
}

Awaitable<absl::Status> SystemdBus::StopUnit(std::string name, TimePoint deadline) const {
  BERTH_CO_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, co_await Connect(addresses_, deadline));
  const std::string what = fmt::format("stop {}", name);
  BERTH_CO_ASSIGN_OR_RETURN(Message call, NewCall(session->bus(), kManager, "StopUnit"));
  const int written = sd_bus_message_append(call.get(), "ss", name.c_str(), "replace");
  if (written < 0) co_return BusStatus(written, what);
  co_return co_await RunJob(session.get(), name, std::move(call), what, deadline);
}

Awaitable<absl::Status> SystemdBus::ReloadUnits(TimePoint deadline) const {
  BERTH_CO_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, co_await Connect(addresses_, deadline));
  const std::string what = "ask systemd to read its units again";
  BERTH_CO_ASSIGN_OR_RETURN(Message request, NewCall(session->bus(), kManager, "Reload"));
  co_return (co_await session->Call(std::move(request), what, deadline)).status();
}

Awaitable<absl::Status> SystemdBus::KillUnit(std::string name, TimePoint deadline) const {
  BERTH_CO_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, co_await Connect(addresses_, deadline));
  const std::string what = fmt::format("kill {}", name);
  BERTH_CO_ASSIGN_OR_RETURN(Message request, NewCall(session->bus(), kManager, "KillUnit"));
  const int written = sd_bus_message_append(request.get(), "ssi", name.c_str(), "all", SIGKILL);
  if (written < 0) co_return BusStatus(written, what);
  co_return (co_await session->Call(std::move(request), what, deadline)).status();
}

std::string OwnServiceUnit() {
  char* unit = nullptr;
  if (sd_pid_get_unit(0, &unit) < 0) return "";
  std::string name = unit;
  free(unit);
  return name.ends_with(".service") ? name : "";
}

Awaitable<bool> MachineIsStopping(TimePoint deadline) {
  if (sd_booted() <= 0) co_return false;
  const SystemdBus bus;
  const absl::StatusOr<bool> stopping = co_await bus.IsStopping(deadline);
  if (!stopping.ok()) SPDLOG_WARN("whether the machine is shutting down: {}", MessageOf(stopping.status()));
  co_return stopping.ok() && *stopping;
}

}  // namespace berth
