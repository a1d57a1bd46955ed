// The events of a whole node: their history and their numbers go on when berthd does not.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <sstream>
#include <stdexcept>

#include "tests/harness/node.h"
#include "tests/harness/reboot.h"

namespace berth {
namespace {

class EventsTest : public testing::Test {
 protected:
  void SetUp() override {
    node_.WriteHostpath();
    node_.Start();
    node_.WaitReady("hostpath");
  }
  // All that are kept, from the first number on.
  std::vector<v1::Event> All() {
    const auto context = Node::Context();
    const auto reader = node_.stub().WatchEvents(context.get(), v1::WatchEventsRequest());
    std::vector<v1::Event> events;
    v1::WatchEventsResponse response;
    while (reader->Read(&response)) {
      EXPECT_EQ(response.missed(), 0U);
      if (response.has_event()) events.push_back(response.event());
    }
    EXPECT_TRUE(reader->Finish().ok());
    return events;
  }
  // Kills berthd once its history has all events: what is not written yet would be lost.
  void Kill() {
    const size_t events = All().size();
    WaitFor("the history", [&] {
      const std::string history = ReadText(node_.state_dir() + "/events");
      return static_cast<size_t>(std::count(history.begin(), history.end(), '\n')) >= events;
    });
    node_.Kill();
  }
  // Exactly `before`, and more after it; no number is left out.
  void ExpectGoesOn(const std::vector<v1::Event>& before, const std::vector<v1::Event>& after) {
    ASSERT_GT(after.size(), before.size());
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(after[i].sequence(), after[0].sequence() + i);
      if (i < before.size()) {
        EXPECT_EQ(after[i].SerializeAsString(), before[i].SerializeAsString());
      }
    }
  }
  // What a berthctl prints into `path` until it is ended.
  [[nodiscard]] pid_t Follow(const std::string& path) const {
    const std::string socket = node_.socket();
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork");
    if (child != 0) return child;
    const int out = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(out, STDOUT_FILENO);
    execl(BERTHCTL, BERTHCTL, "--socket", socket.c_str(), "-o", "json", "events", "-f",
          static_cast<char*>(nullptr));
    _exit(127);
  }
  static std::vector<v1::Event> PrintableName(const std::string& path) {
    std::vector<v1::Event> events;
    std::istringstream lines(ReadText(path));
    for (std::string line; std::getline(lines, line) && !lines.eof();) {
      v1::WatchEventsResponse response;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &response).ok()) << line;
      if (response.has_event()) events.push_back(response.event());
    }
    return events;
  }

  Node node_;
};

TEST_F(EventsTest, GoOnAfterBerthdWasKilled) {
  const std::vector<v1::Event> before = All();
  ASSERT_FALSE(before.empty());
  Kill();
  node_.Start();
  node_.WaitReady("hostpath");
  ExpectGoesOn(before, All());
}

TEST_F(EventsTest, GoOnAfterARestartAndAnOrderlyReboot) {
  std::vector<v1::Event> before = All();
  node_.Stop();
  node_.Start();
  node_.WaitReady("hostpath");
  std::vector<v1::Event> after = All();
  ExpectGoesOn(before, after);
  const Reboot reboot(node_, Reboot::Ending::kOrderly);
  node_.Start();
  node_.WaitReady("hostpath");
  ExpectGoesOn(after, All());
}

TEST_F(EventsTest, AFollowerSeesEachOnceThoughBerthdIsKilled) {
  const std::string path = node_.dir() + "/followed";
  const pid_t follower = Follow(path);
  WaitFor("the first events", [&] { return PrintableName(path).size() >= All().size(); });
  Kill();
  node_.Start();
  node_.WaitReady("hostpath");
  const std::vector<v1::Event> all = All();
  WaitFor("all events", [&] { return PrintableName(path).size() >= all.size(); });
  const std::vector<v1::Event> shown = PrintableName(path);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(shown[i].sequence(), all[i].sequence());
  kill(follower, SIGKILL);
  waitpid(follower, nullptr, 0);
}

}  // namespace
}  // namespace berth
