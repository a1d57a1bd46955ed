// The calls, against a peer that speaks D-Bus as systemd's private socket does. The real systemd is met in
// tests/machine.
#include "base/systemd_bus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "base/status.h"
#include "base/testing.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

using testing::HasSubstr;

// Serves one connection on a socket of its own, on a thread of its own.
class FakeSystemd {
 public:
  enum class Manner { kDone, kJobFails, kExists, kUnknownProperty, kSilent, kHangsUp };

  explicit FakeSystemd(Manner manner) : manner_(manner) {
    char directory[] = "/tmp/berth-bus-test.XXXXXX";
    if (mkdtemp(directory) == nullptr) abort();
    directory_ = directory;
    path_ = directory_ + "/private";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(path_.begin(), path_.end(), address.sun_path);
    listener_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) abort();
    if (listen(listener_.get(), 4) != 0) abort();
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeSystemd() {
    stop_ = true;
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    unlink(path_.c_str());
    rmdir(directory_.c_str());
  }
  FakeSystemd(const FakeSystemd&) = delete;
  FakeSystemd& operator=(const FakeSystemd&) = delete;

  [[nodiscard]] SystemdBus::Address address() const { return {path_, false}; }
  // Read once no call is under way.
  [[nodiscard]] const std::string& unit() const { return unit_; }

 private:
  void Serve() {
    while (!stop_) {
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
      while (!stop_ && !hang_up_ && sd_bus_is_open(bus) > 0) {
        const int processed = sd_bus_process(bus, nullptr);
        if (processed < 0) break;
        if (processed == 0) sd_bus_wait(bus, 20'000);
      }
      sd_bus_flush_close_unref(bus);
      hang_up_ = false;
    }
  }

  static int OnMessage(sd_bus_message* message, void* self, sd_bus_error* /*error*/) {
    return static_cast<FakeSystemd*>(self)->Answer(message);
  }

  int Answer(sd_bus_message* message) {
    if (sd_bus_message_is_method_call(message, "org.freedesktop.DBus.Properties", "Get") > 0) {
      return sd_bus_reply_method_return(message, "v", "s", "252.1-test");
    }
    if (sd_bus_message_is_method_call(message, "org.freedesktop.systemd1.Manager", "StartTransientUnit") <=
        0) {
      return 0;
    }
    const char* unit = nullptr;
    const char* mode = nullptr;
    sd_bus_message_read(message, "ss", &unit, &mode);
    unit_ = unit;
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
  std::string unit_;
  std::atomic<bool> stop_ = false;
  bool hang_up_ = false;
  std::thread thread_;
};

absl::Status StartScope(const std::vector<SystemdBus::Address>& addresses,
                        Duration within = std::chrono::seconds(20)) {
  asio::io_context loop;
  const SystemdBus bus(addresses);
  ScopeRequest request;
  request.name = "berth-plugin-a\\x2db.scope";
  request.slice = "berth-plugins.slice";
  request.description = "a test";
  request.pid = getpid();
  request.memory_max = 1 << 20;
  request.cpus = 0.5;
  request.oom_policy = "kill";
  request.before = "berthd.service";
  return RunOn(loop, bus.StartScope(request, Clock::now() + within));
}

TEST(SystemdBusTest, StartsAScope) {
  const FakeSystemd systemd(FakeSystemd::Manner::kDone);
  EXPECT_EQ(StartScope({systemd.address()}), absl::OkStatus());
  EXPECT_EQ(systemd.unit(), "berth-plugin-a\\x2db.scope");
}

TEST(SystemdBusTest, AsksTheVersion) {
  const FakeSystemd systemd(FakeSystemd::Manner::kDone);
  asio::io_context loop;
  const SystemdBus bus({systemd.address()});
  const auto version = RunOn(loop, bus.Version(Clock::now() + std::chrono::seconds(20)));
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, "252.1-test");
}

TEST(SystemdBusTest, TellsHowItsJobFailed) {
  const FakeSystemd systemd(FakeSystemd::Manner::kJobFails);
  const absl::Status status = StartScope({systemd.address()});
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ended as \"failed\""));
}

TEST(SystemdBusTest, TellsErrorsApart) {
  const FakeSystemd exists(FakeSystemd::Manner::kExists);
  EXPECT_TRUE(absl::IsAlreadyExists(StartScope({exists.address()})));
  const FakeSystemd old(FakeSystemd::Manner::kUnknownProperty);
  EXPECT_TRUE(absl::IsInvalidArgument(StartScope({old.address()})));
}

TEST(SystemdBusTest, SilentPeerMeetsTheDeadline) {
  const FakeSystemd systemd(FakeSystemd::Manner::kSilent);
  EXPECT_TRUE(absl::IsDeadlineExceeded(StartScope({systemd.address()}, std::chrono::milliseconds(300))));
}

TEST(SystemdBusTest, PeerThatHangsUpIsUnavailable) {
  const FakeSystemd systemd(FakeSystemd::Manner::kHangsUp);
  EXPECT_TRUE(absl::IsUnavailable(StartScope({systemd.address()})));
}

TEST(SystemdBusTest, NoBusIsUnavailable) {
  const absl::Status status = StartScope({{"/no/such/bus", true}, {"/no/such/private", false}});
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/bus"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/private"));
}

TEST(SystemdBusTest, TheSecondAddressServesWhereTheFirstDoesNot) {
  const FakeSystemd systemd(FakeSystemd::Manner::kDone);
  EXPECT_EQ(StartScope({{"/no/such/bus", true}, systemd.address()}), absl::OkStatus());
}

TEST(SystemdBusTest, EscapesAsSystemdEscapeDoes) {
  EXPECT_EQ(EscapeUnitName("a-b"), "a\\x2db");
  EXPECT_EQ(EscapeUnitName("nfs.csi_k8s:io"), "nfs.csi_k8s:io");
  EXPECT_EQ(EscapeUnitName(".hidden"), "\\x2ehidden");
  EXPECT_EQ(EscapeUnitName("a/b c\\"), "a-b\\x20c\\x5c");
}

}  // namespace
}  // namespace berth
