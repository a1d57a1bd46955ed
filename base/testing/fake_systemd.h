// For tests only: a peer that speaks D-Bus as systemd's private socket does, on a socket and a thread of its
// own. The real systemd is met in tests/machine.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/systemd_bus.h"
#include "base/unique_fd.h"

namespace berth {

// Any thread.
class FakeSystemd {
 public:
  // What becomes of a unit that is to be started.
  enum class Manner { kDone, kJobFails, kExists, kUnknownProperty, kSilent, kHangsUp };

  explicit FakeSystemd(Manner manner = Manner::kDone) : manner_(manner) {
    char directory[] = "/tmp/berth-bus-test.XXXXXX";
    if (mkdtemp(directory) == nullptr) abort();
    directory_ = directory;
    path_ = directory_ + "/private";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(path_.begin(), path_.end(), address.sun_path);
    listener_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) abort();
    if (listen(listener_.get(), 16) != 0) abort();
    int wake[2];
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) abort();
    wake_read_ = UniqueFd(wake[0]);
    wake_write_ = UniqueFd(wake[1]);
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeSystemd() {
    stop_ = true;
    Wake();
    thread_.join();
    unlink(path_.c_str());
    rmdir(directory_.c_str());
  }
  FakeSystemd(const FakeSystemd&) = delete;
  FakeSystemd& operator=(const FakeSystemd&) = delete;

  [[nodiscard]] SystemdBus::Address address() const { return {path_, false}; }
  // The unit that was to be started last, and its property Before=.
  [[nodiscard]] std::string unit() const {
    const std::lock_guard lock(mutex_);
    return unit_;
  }
  [[nodiscard]] std::vector<std::string> before() const {
    const std::lock_guard lock(mutex_);
    return before_;
  }

  void SetSystemState(const std::string& state) {
    const std::lock_guard lock(mutex_);
    system_state_ = state;
  }
  // Changes the state of the unit; with `reported` its watchers get a signal.
  void SetUnit(const std::string& name, const std::string& active, bool job = false, bool reported = true) {
    {
      const std::lock_guard lock(mutex_);
      units_[name] = {active, job};
      if (reported) signals_.push_back({name, false});
    }
    Wake();
  }
  void RemoveUnit(const std::string& name) {
    {
      const std::lock_guard lock(mutex_);
      units_.erase(name);
      signals_.push_back({name, true});
    }
    Wake();
  }
  // It does not stop when it is asked to: only when it is killed.
  void MakeStubborn(const std::string& name) {
    const std::lock_guard lock(mutex_);
    stubborn_.insert(name);
  }
  // The units that were to be stopped and to be killed, "stop a.service", in order.
  [[nodiscard]] std::vector<std::string> ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  // What `name` is, by another name.
  void AddAlias(const std::string& alias, const std::string& name) {
    const std::lock_guard lock(mutex_);
    aliases_[alias] = name;
  }
  // Closes every connection; new ones are served.
  void Disconnect() {
    hang_up_ = true;
    Wake();
  }
  // How often some unit's state was asked for.
  [[nodiscard]] int asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  [[nodiscard]] int connections() const {
    const std::lock_guard lock(mutex_);
    return connections_;
  }

 private:
  struct Unit {
    std::string active;
    bool job = false;
  };
  struct Signal {
    std::string unit;
    bool removed = false;
  };

  void Wake() const { [[maybe_unused]] const ssize_t written = write(wake_write_.get(), "w", 1); }

  static std::string ObjectOf(const std::string& name) {
    char* path = nullptr;
    if (sd_bus_path_encode("/org/freedesktop/systemd1/unit", name.c_str(), &path) < 0) abort();
    std::string object = path;
    free(path);
    return object;
  }

  void Accept() {
    const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    sd_bus* bus = nullptr;
    sd_id128_t id{};
    sd_id128_randomize(&id);
    sd_bus_new(&bus);
    sd_bus_set_fd(bus, fd, fd);
    sd_bus_set_server(bus, 1, id);
    sd_bus_start(bus);
    sd_bus_add_filter(bus, nullptr, OnMessage, this);
    buses_.push_back(bus);
    const std::lock_guard lock(mutex_);
    ++connections_;
  }

  void Serve() {
    while (!stop_) {
      std::vector<pollfd> waits = {{listener_.get(), POLLIN, 0}, {wake_read_.get(), POLLIN, 0}};
      for (sd_bus* bus : buses_) {
        waits.push_back({sd_bus_get_fd(bus), static_cast<short>(sd_bus_get_events(bus)), 0});
      }
      poll(waits.data(), waits.size(), 100);
      char bytes[64];
      while (read(wake_read_.get(), bytes, sizeof bytes) > 0) {
      }
      Accept();
      Emit();
      for (sd_bus*& bus : buses_) {
        int processed = 1;
        while (processed > 0 && !hang_up_) processed = sd_bus_process(bus, nullptr);
        if (processed < 0 || hang_up_ || sd_bus_is_open(bus) <= 0) {
          sd_bus_flush_close_unref(bus);
          bus = nullptr;
        }
      }
      hang_up_ = false;
      std::erase(buses_, nullptr);
    }
    for (sd_bus* bus : buses_) sd_bus_flush_close_unref(bus);
  }

  void Emit() {
    std::vector<Signal> signals;
    {
      const std::lock_guard lock(mutex_);
      signals.swap(signals_);
    }
    for (const Signal& signal : signals) {
      const std::string object = ObjectOf(signal.unit);
      for (sd_bus* bus : buses_) {
        if (signal.removed) {
          sd_bus_emit_signal(bus, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager",
                             "UnitRemoved", "so", signal.unit.c_str(), object.c_str());
        } else {
          sd_bus_emit_signal(bus, object.c_str(), "org.freedesktop.DBus.Properties", "PropertiesChanged",
                             "sa{sv}as", "org.freedesktop.systemd1.Unit", 0, 0);
        }
      }
    }
  }

  static int OnMessage(sd_bus_message* message, void* self, sd_bus_error* /*error*/) {
    return static_cast<FakeSystemd*>(self)->Answer(message);
  }

  static bool Is(sd_bus_message* message, const char* method) {
    return sd_bus_message_is_method_call(message, "org.freedesktop.systemd1.Manager", method) > 0;
  }

  int Answer(sd_bus_message* message) {
    if (sd_bus_message_is_method_call(message, "org.freedesktop.DBus.Properties", "Get") > 0) {
      const char* interface = nullptr;
      const char* name = nullptr;
      sd_bus_message_read(message, "ss", &interface, &name);
      const std::lock_guard lock(mutex_);
      if (manner_ == Manner::kHangsUp) {
        hang_up_ = true;
        return 1;
      }
      const bool state = std::string(name) == "SystemState";
      return sd_bus_reply_method_return(message, "v", "s", state ? system_state_.c_str() : "252.1-test");
    }
    if (Is(message, "Subscribe")) return sd_bus_reply_method_return(message, "");
    if (Is(message, "ListUnitsByNames")) return AnswerUnits(message);
    if (Is(message, "StartTransientUnit")) return AnswerStart(message);
    if (Is(message, "StopUnit")) return AnswerStop(message);
    if (Is(message, "KillUnit")) return AnswerKill(message);
    return 0;
  }

  int AnswerStop(sd_bus_message* message) {
    const char* name = nullptr;
    const char* mode = nullptr;
    sd_bus_message_read(message, "ss", &name, &mode);
    const std::lock_guard lock(mutex_);
    ended_.push_back(std::string("stop ") + name);
    const auto unit = units_.find(name);
    if (unit == units_.end()) {
      return sd_bus_reply_method_errorf(message, "org.freedesktop.systemd1.NoSuchUnit", "Unit %s not loaded.",
                                        name);
    }
    constexpr const char* kJob = "/org/freedesktop/systemd1/job/9";
    const int answered = sd_bus_reply_method_return(message, "o", kJob);
    if (stubborn_.contains(name)) {
      unit->second.job = true;
      return answered;
    }
    unit->second = {"inactive", false};
    signals_.push_back({name, false});
    sd_bus_emit_signal(sd_bus_message_get_bus(message), "/org/freedesktop/systemd1",
                       "org.freedesktop.systemd1.Manager", "JobRemoved", "uoss", 9, kJob, name, "done");
    Wake();
    return answered;
  }

  int AnswerKill(sd_bus_message* message) {
    const char* name = nullptr;
    sd_bus_message_read(message, "s", &name);
    const std::lock_guard lock(mutex_);
    ended_.push_back(std::string("kill ") + name);
    units_[name] = {"failed", false};
    signals_.push_back({name, false});
    Wake();
    return sd_bus_reply_method_return(message, "");
  }

  int AnswerUnits(sd_bus_message* message) {
    char** names = nullptr;
    sd_bus_message_read_strv(message, &names);
    sd_bus_message* reply = nullptr;
    sd_bus_message_new_method_return(message, &reply);
    sd_bus_message_open_container(reply, 'a', "(ssssssouso)");
    for (char** name = names; name != nullptr && *name != nullptr; ++name) {
      const std::lock_guard lock(mutex_);
      ++asked_;
      const auto alias = aliases_.find(*name);
      const std::string id = alias == aliases_.end() ? *name : alias->second;
      const auto unit = units_.find(id);
      const bool there = unit != units_.end();
      sd_bus_message_append(reply, "(ssssssouso)", id.c_str(), "a unit", there ? "loaded" : "not-found",
                            there ? unit->second.active.c_str() : "inactive", "dead", "",
                            ObjectOf(id).c_str(), there && unit->second.job ? 7 : 0, "start", "/");
      free(*name);
    }
    free(names);
    sd_bus_message_close_container(reply);
    const int sent = sd_bus_send(nullptr, reply, nullptr);
    sd_bus_message_unref(reply);
    return sent < 0 ? sent : 1;
  }

  // What a scope's properties are, as far as tests ask.
  void ReadProperties(sd_bus_message* message) {
    before_.clear();
    sd_bus_message_enter_container(message, 'a', "(sv)");
    while (sd_bus_message_enter_container(message, 'r', "sv") > 0) {
      const char* name = nullptr;
      sd_bus_message_read(message, "s", &name);
      if (std::string(name) == "Before") {
        char** units = nullptr;
        sd_bus_message_enter_container(message, 'v', "as");
        sd_bus_message_read_strv(message, &units);
        sd_bus_message_exit_container(message);
        for (char** unit = units; unit != nullptr && *unit != nullptr; ++unit) {
          before_.emplace_back(*unit);
          free(*unit);
        }
        free(units);
      } else {
        sd_bus_message_skip(message, "v");
      }
      sd_bus_message_exit_container(message);
    }
    sd_bus_message_exit_container(message);
  }

  int AnswerStart(sd_bus_message* message) {
    const char* unit = nullptr;
    const char* mode = nullptr;
    sd_bus_message_read(message, "ss", &unit, &mode);
    const std::lock_guard lock(mutex_);
    unit_ = unit;
    ReadProperties(message);
    constexpr const char* kJob = "/org/freedesktop/systemd1/job/7";
    switch (manner_) {
      case Manner::kSilent:
        return 1;
      case Manner::kHangsUp:
        hang_up_ = true;
        return 1;
      case Manner::kExists:
        return sd_bus_reply_method_errorf(message, "org.freedesktop.systemd1.UnitExists", "Unit %s exists",
                                          unit);
      case Manner::kUnknownProperty:
        return sd_bus_reply_method_errorf(message, "org.freedesktop.DBus.Error.PropertyReadOnly",
                                          "Cannot set property OOMPolicy, or unknown property.");
      case Manner::kDone:
      case Manner::kJobFails:
        break;
    }
    sd_bus* bus = sd_bus_message_get_bus(message);
    const auto removed = [&](const char* job, const std::string& of, const char* result) {
      sd_bus_emit_signal(bus, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "JobRemoved",
                         "uoss", 7, job, of.c_str(), result);
    };
    // Another unit's, and another job of the same unit: neither is ours. Ours comes before the answer, as it
    // may.
    removed("/org/freedesktop/systemd1/job/5", "other.scope", "failed");
    removed("/org/freedesktop/systemd1/job/6", unit_, "canceled");
    removed(kJob, unit_, manner_ == Manner::kDone ? "done" : "failed");
    return sd_bus_reply_method_return(message, "o", kJob);
  }

  Manner manner_;
  std::string directory_;
  std::string path_;
  UniqueFd listener_;
  UniqueFd wake_read_;
  UniqueFd wake_write_;
  std::vector<sd_bus*> buses_;  // the thread's alone
  std::atomic<bool> stop_ = false;
  std::atomic<bool> hang_up_ = false;
  mutable std::mutex mutex_;
  std::string unit_;
  std::vector<std::string> before_;
  std::string system_state_ = "running";
  std::map<std::string, Unit> units_;
  std::map<std::string, std::string> aliases_;
  std::set<std::string> stubborn_;
  std::vector<std::string> ended_;
  std::vector<Signal> signals_;
  int asked_ = 0;
  int connections_ = 0;
  std::thread thread_;
};

}  // namespace berth
