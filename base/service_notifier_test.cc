#include "base/service_notifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>

#include "base/testing/datagram_queue.h"
#include "base/testing/run_on.h"
#include "base/testing/temp_dir.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A service manager at `name`, a path or "@…", that reads when it is asked to.
class Manager {
 public:
  explicit Manager(const std::string& name)
      : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    address_.sun_family = AF_UNIX;
    name.copy(address_.sun_path, sizeof address_.sun_path - 1);
    if (name.front() == '@') address_.sun_path[0] = '\0';
    size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address_), size_), 0);
  }
  // As others may: until there is no space for a message.
  void FillQueue() const { FillDatagramQueue(reinterpret_cast<const sockaddr*>(&address_), size_); }
  [[nodiscard]] std::vector<std::string> Read() const {
    std::vector<std::string> messages;
    char message[256];
    ssize_t size = 0;
    while ((size = recv(fd_.get(), message, sizeof message, 0)) >= 0) messages.emplace_back(message, size);
    std::erase(messages, "other");
    return messages;
  }

 private:
  UniqueFd fd_;
  sockaddr_un address_{};
  socklen_t size_ = 0;
};

class ServiceNotifierTest : public ::testing::Test {
 protected:
  asio::io_context loop_{1};
  TempDir temp_;
};

TEST_F(ServiceNotifierTest, SendsInOrderToAPathOrAName) {
  for (const std::string& name : {temp_.Path("notify"), std::string("@") + temp_.Path("notify")}) {
    const Manager manager(name);
    ServiceNotifier notifier(loop_.get_executor(), name);
    notifier.Send("READY=1");
    notifier.Send("STOPPING=1");
    EXPECT_THAT(manager.Read(), ElementsAre("READY=1", "STOPPING=1"));
    RunOn(loop_, notifier.Join());
  }
}

TEST_F(ServiceNotifierTest, WithoutAManagerNothingIsSent) {
  ServiceNotifier none(loop_.get_executor(), "");
  none.Send("READY=1");
  RunOn(loop_, none.Join());
  ServiceNotifier absent(loop_.get_executor(), temp_.Path("none"));
  absent.Send("READY=1");
  ServiceNotifier too_long(loop_.get_executor(), "/" + std::string(200, 'x'));
  too_long.Send("READY=1");
  RunOn(loop_, absent.Join());
  RunOn(loop_, too_long.Join());
}

TEST_F(ServiceNotifierTest, Fault43FullQueueDelaysTheLastStateAndBlocksNothing) {
  const Manager manager(temp_.Path("notify"));
  ServiceNotifier notifier(loop_.get_executor(), temp_.Path("notify"));
  manager.FillQueue();
  notifier.Send("RELOADING=1");
  notifier.Send("READY=1");
  loop_.poll();
  EXPECT_THAT(manager.Read(), IsEmpty());
  std::vector<std::string> messages;
  const TimePoint bound = Clock::now() + std::chrono::seconds(20);
  while (messages.empty() && Clock::now() < bound) {
    loop_.restart();
    loop_.run_one_for(std::chrono::milliseconds(100));
    messages = manager.Read();
  }
  EXPECT_THAT(messages, ElementsAre("READY=1"));
  notifier.Send("STOPPING=1");
  EXPECT_THAT(manager.Read(), ElementsAre("STOPPING=1"));
  RunOn(loop_, notifier.Join());
}

TEST_F(ServiceNotifierTest, WhatIsPendingAtTheEndIsDropped) {
  const Manager manager(temp_.Path("notify"));
  ServiceNotifier notifier(loop_.get_executor(), temp_.Path("notify"));
  manager.FillQueue();
  notifier.Send("STOPPING=1");
  RunOn(loop_, notifier.Join());
  EXPECT_THAT(manager.Read(), IsEmpty());
}

}  // namespace
}  // namespace berth
