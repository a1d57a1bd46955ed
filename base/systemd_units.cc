#include "base/systemd_units.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <systemd/sd-bus.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/backoff.h"
#include "base/status.h"
#include "base/systemd_session.h"

namespace berth {

using systemd_internal::BusStatus;
using systemd_internal::Connect;
using systemd_internal::kDestination;
using systemd_internal::kManager;
using systemd_internal::kPath;
using systemd_internal::kProperties;
using systemd_internal::Message;
using systemd_internal::NewCall;
using systemd_internal::Session;
using systemd_internal::Slot;

namespace {

constexpr Duration kAnswersWithin = std::chrono::seconds(10);
constexpr Duration kFirstPause = std::chrono::milliseconds(200);
constexpr Duration kLongestPause = std::chrono::seconds(30);

// ListUnitsByNames' answer for one name: a(ssssssouso).
absl::StatusOr<UnitState> ReadUnit(sd_bus_message* reply, const std::string& what) {
  int result = sd_bus_message_enter_container(reply, 'a', "(ssssssouso)");
  const char* id = nullptr;
  const char* description = nullptr;
  const char* load = nullptr;
  const char* active = nullptr;
  const char* sub = nullptr;
  const char* following = nullptr;
  const char* path = nullptr;
  uint32_t job = 0;
  const char* job_type = nullptr;
  const char* job_path = nullptr;
  if (result >= 0) {
    result = sd_bus_message_read(reply, "(ssssssouso)", &id, &description, &load, &active, &sub, &following,
                                 &path, &job, &job_type, &job_path);
  }
  if (result < 0) return BusStatus(result, what);
  // A name that systemd finds nothing to say of is no unit's.
  if (result == 0) return UnitState{.load = "not-found", .active = "inactive", .job = false, .path = ""};
  return UnitState{.load = Printable(load, 64),
                   .active = Printable(active, 64),
                   .job = job != 0,
                   .path = std::string(path).substr(0, 1024)};
}

Awaitable<absl::StatusOr<UnitState>> AskOver(Session* session, std::string unit, TimePoint deadline) {
  const std::string what = fmt::format("ask systemd for {}", unit);
  BERTH_CO_ASSIGN_OR_RETURN(Message request, NewCall(session->bus(), kManager, "ListUnitsByNames"));
  const int written = sd_bus_message_append(request.get(), "as", 1, unit.c_str());
  if (written < 0) co_return BusStatus(written, what);
  BERTH_CO_ASSIGN_OR_RETURN(const Message reply, co_await session->Call(std::move(request), what, deadline));
  co_return ReadUnit(reply.get(), what);
}

}  // namespace

bool IsUnitName(std::string_view name) {
  constexpr std::string_view kTypes[] = {"service", "scope",  "slice", "socket", "target",   "mount",
                                         "swap",    "device", "timer", "path",   "automount"};
  const size_t dot = name.rfind('.');
  if (name.empty() || name.size() > 255 || dot == std::string_view::npos || dot == 0) return false;
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view(":-_.\\@").find(c) != std::string_view::npos;
  };
  return std::all_of(name.begin(), name.end(), allowed) &&
         std::find(std::begin(kTypes), std::end(kTypes), name.substr(dot + 1)) != std::end(kTypes);
}

// One unit. A signal's slot keeps it alive, also after it was forgotten here.
struct SystemdUnits::Watched {
  std::function<void(const UnitState&)> told;
};

// A connection, and what is subscribed to over it.
struct SystemdUnits::Link {
  struct Subscription {
    Link* link = nullptr;
    std::string unit;
    std::string path;
    Slot slot;

    static int OnChanged(sd_bus_message* /*message*/, void* self, sd_bus_error* /*error*/) {
      const auto* subscription = static_cast<Subscription*>(self);
      subscription->link->owner->to_ask_.insert(subscription->unit);
      return 0;
    }
  };

  static int OnUnitRemoved(sd_bus_message* message, void* self, sd_bus_error* /*error*/) {
    auto* link = static_cast<Link*>(self);
    const char* id = nullptr;
    const char* path = nullptr;
    if (sd_bus_message_read(message, "so", &id, &path) < 0) return 0;
    for (const auto& [unit, subscription] : link->subscriptions) {
      if (subscription->path == path) link->owner->to_ask_.insert(unit);
    }
    return 0;
  }
  // systemd was executed again, or the like: it may have forgotten our subscriptions.
  static int OnOwnerChanged(sd_bus_message* message, void* self, sd_bus_error* /*error*/) {
    const char* name = nullptr;
    if (sd_bus_message_read(message, "s", &name) < 0) return 0;
    if (std::string_view(name) == kDestination) static_cast<Link*>(self)->lost = true;
    return 0;
  }

  SystemdUnits* owner = nullptr;
  std::unique_ptr<Session> session;
  // After the session: slots go first.
  Slot removed;
  Slot owner_changed;
  std::map<std::string, std::unique_ptr<Subscription>> subscriptions;
  bool lost = false;
};

SystemdUnits::SystemdUnits(asio::any_io_executor executor, std::vector<SystemdBus::Address> addresses)
    : addresses_(std::move(addresses)), changed_(executor), tasks_(executor, "systemd's units") {}

Awaitable<absl::StatusOr<UnitState>> SystemdUnits::Ask(std::string unit, TimePoint deadline) const {
  BERTH_CO_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, co_await Connect(addresses_, deadline));
  co_return co_await AskOver(session.get(), unit, deadline);
}

void SystemdUnits::Watch(const std::string& unit, std::function<void(const UnitState&)> told) {
  auto watched = std::make_shared<Watched>();
  watched->told = std::move(told);
  watched_[unit] = std::move(watched);
  to_ask_.insert(unit);
  changed_.NotifyAll();
  if (following_) return;
  following_ = true;
  tasks_.Spawn("follow", Follow());
}

void SystemdUnits::Forget(const std::string& unit) {
  watched_.erase(unit);
  changed_.NotifyAll();
}

Awaitable<void> SystemdUnits::Shutdown() {
  watched_.clear();
  co_await tasks_.Join();
}

Awaitable<void> SystemdUnits::Follow() {
  BackoffTimer backoff(kFirstPause, kLongestPause);
  while (!watched_.empty()) {
    const TimePoint began = Clock::now();
    const absl::Status ended = co_await FollowOnce();
    if (ended.ok()) continue;
    if (Clock::now() - began > kLongestPause) backoff.Reset();
    if (backoff.failures() == 0) SPDLOG_WARN("units of consumers cannot be watched: {}", MessageOf(ended));
    co_await SleepUntil(Clock::now() + backoff.Next());
  }
  following_ = false;
}

Awaitable<absl::Status> SystemdUnits::FollowOnce() {
  const TimePoint deadline = Clock::now() + kAnswersWithin;
  // On the heap: the slots have its address.
  const auto link = std::make_unique<Link>();
  link->owner = this;
  BERTH_CO_ASSIGN_OR_RETURN(link->session, co_await Connect(addresses_, deadline));
  sd_bus* bus = link->session->bus();

  sd_bus_slot* slot = nullptr;
  int matched = sd_bus_match_signal_async(bus, &slot, link->session->sender(), kPath, kManager, "UnitRemoved",
                                          Link::OnUnitRemoved, nullptr, link.get());
  if (matched < 0) co_return BusStatus(matched, "watch units");
  link->removed.reset(slot);
  if (link->session->sender() != nullptr) {
    matched = sd_bus_add_match_async(bus, &slot,
                                     "type='signal',sender='org.freedesktop.DBus',"
                                     "member='NameOwnerChanged',arg0='org.freedesktop.systemd1'",
                                     Link::OnOwnerChanged, nullptr, link.get());
    if (matched < 0) co_return BusStatus(matched, "watch systemd");
    link->owner_changed.reset(slot);
  }
  BERTH_CO_ASSIGN_OR_RETURN(Message subscribe, NewCall(bus, kManager, "Subscribe"));
  const absl::StatusOr<Message> subscribed =
      co_await link->session->Call(std::move(subscribe), "subscribe to systemd", deadline);
  BERTH_CO_RETURN_IF_ERROR(subscribed.status());

  for (const auto& [unit, watched] : watched_) to_ask_.insert(unit);
  while (!watched_.empty()) {
    auto something = [this, &link] { return !to_ask_.empty() || link->lost || watched_.empty(); };
    BERTH_CO_RETURN_IF_ERROR(
        co_await link->session->Until(std::move(something), "watch units", TimePoint::max(), &changed_));
    if (link->lost) co_return absl::UnavailableError("systemd has left the bus");
    std::erase_if(link->subscriptions, [this](const auto& entry) { return !watched_.contains(entry.first); });
    if (to_ask_.empty()) continue;
    const std::string unit = *to_ask_.begin();
    to_ask_.erase(to_ask_.begin());
    if (watched_.contains(unit)) BERTH_CO_RETURN_IF_ERROR(co_await Look(link.get(), unit));
  }
  co_return absl::OkStatus();
}

Awaitable<absl::Status> SystemdUnits::Look(Link* link, std::string unit) {
  absl::StatusOr<UnitState> state =
      co_await AskOver(link->session.get(), unit, Clock::now() + kAnswersWithin);
  if (!state.ok() && !absl::IsUnavailable(state.status()) && !absl::IsDeadlineExceeded(state.status())) {
    // It is this unit's affair, and the others are watched on.
    SPDLOG_WARN("{}", MessageOf(state.status()));
    co_return absl::OkStatus();
  }
  BERTH_CO_RETURN_IF_ERROR(state.status());
  const auto known = link->subscriptions.find(unit);
  if (!state->path.empty() && (known == link->subscriptions.end() || known->second->path != state->path)) {
    // The unit's object, independent of its names, is known only now: ask once more after its changes are
    // subscribed to, so that none is missed between the two.
    auto subscription = std::make_unique<Link::Subscription>();
    subscription->link = link;
    subscription->unit = unit;
    subscription->path = state->path;
    sd_bus_slot* slot = nullptr;
    const int matched = sd_bus_match_signal_async(link->session->bus(), &slot, link->session->sender(),
                                                  state->path.c_str(), kProperties, "PropertiesChanged",
                                                  Link::Subscription::OnChanged, nullptr, subscription.get());
    if (matched < 0) co_return BusStatus(matched, fmt::format("watch {}", unit));
    subscription->slot.reset(slot);
    link->subscriptions[unit] = std::move(subscription);
    state = co_await AskOver(link->session.get(), unit, Clock::now() + kAnswersWithin);
    BERTH_CO_RETURN_IF_ERROR(state.status());
  }
  const auto watched = watched_.find(unit);
  if (watched == watched_.end()) co_return absl::OkStatus();
  // It may forget itself.
  const std::shared_ptr<Watched> kept = watched->second;
  kept->told(*state);
  co_return absl::OkStatus();
}

}  // namespace berth
