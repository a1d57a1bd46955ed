#include "supervisor/served_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "base/process.h"
#include "base/testing/run_on.h"
#include "base/testing/temp_dir.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

UniqueFd Listen(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << strerror(errno);
  EXPECT_EQ(listen(fd.get(), 8), 0);
  return fd;
}

class ServedSocketTest : public ::testing::Test {
 protected:
  ~ServedSocketTest() override { RunOn(loop_, scope_.Join()); }

  void Wait(Duration check_interval = std::chrono::hours(1)) { scope_.Spawn("wait", DoWait(check_interval)); }
  Awaitable<void> DoWait(Duration check_interval) {
    served_ = co_await WaitForServer(
        path_, {.longest_retry = milliseconds(20),
                .check_interval = check_interval,
                .waiting = [this](const std::string& why) { reported_.push_back(why); }});
  }
  // Runs the loop until `done` says so, or for `bound`.
  bool RunUntil(const std::function<bool()>& done, Duration bound = seconds(20)) {
    const TimePoint end = Clock::now() + bound;
    loop_.restart();
    while (!done() && Clock::now() < end) loop_.run_one_until(std::min(end, Clock::now() + milliseconds(5)));
    return done();
  }
  bool Served() const { return served_.has_value(); }

  TempDir temp_;
  std::string path_ = temp_.Path("a/b/csi.sock");
  asio::io_context loop_;
  TaskScope scope_{loop_.get_executor(), "test"};
  std::optional<absl::StatusOr<ServedSocket>> served_;
  std::vector<std::string> reported_;
};

TEST_F(ServedSocketTest, Fault58APathThatIsRemovedOrSomebodyElsesIsSaid) {
  std::filesystem::create_directories(temp_.Path("a/b"));
  SocketPath path;
  EXPECT_EQ(path.Trouble(), "") << "nothing is kept yet";
  UniqueFd server = Listen(path_);
  path.Keep(path_, *TryConnect(path_));
  EXPECT_EQ(path.Trouble(), "");
  ASSERT_EQ(unlink(path_.c_str()), 0);
  EXPECT_THAT(path.Trouble(), HasSubstr("was removed"));
  EXPECT_FALSE(path.Replaced());
  // The same process has bound it again: that is as good.
  server = Listen(path_);
  EXPECT_EQ(path.Trouble(), "");
  ASSERT_EQ(unlink(path_.c_str()), 0);
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  EXPECT_THAT(path.Trouble(), HasSubstr("is another file now"));
  EXPECT_TRUE(path.Replaced());
}

TEST_F(ServedSocketTest, DirectoriesMayComeLater) {
  Wait();
  EXPECT_FALSE(RunUntil([this] { return Served(); }, milliseconds(20)));
  ASSERT_EQ(mkdir(temp_.Path("a").c_str(), 0755), 0);
  EXPECT_FALSE(RunUntil([this] { return Served(); }, milliseconds(20)));
  ASSERT_EQ(mkdir(temp_.Path("a/b").c_str(), 0755), 0);
  const UniqueFd server = Listen(path_);
  ASSERT_TRUE(RunUntil([this] { return Served(); }));
  ASSERT_TRUE(served_->ok()) << served_->status();
  EXPECT_EQ((*served_)->pid, getpid());
  EXPECT_EQ((*served_)->start_time, IdentifyProcess(getpid())->start_time);
  EXPECT_THAT(reported_, ElementsAre("there is no " + path_));
}

TEST_F(ServedSocketTest, DirectoriesMayGoAndComeAgain) {
  std::filesystem::create_directories(temp_.Path("a/b"));
  Wait();
  EXPECT_FALSE(RunUntil([this] { return Served(); }, milliseconds(20)));
  ASSERT_EQ(rmdir(temp_.Path("a/b").c_str()), 0);
  ASSERT_EQ(rmdir(temp_.Path("a").c_str()), 0);
  EXPECT_FALSE(RunUntil([this] { return Served(); }, milliseconds(20)));
  std::filesystem::create_directories(temp_.Path("a/b"));
  const UniqueFd server = Listen(path_);
  EXPECT_TRUE(RunUntil([this] { return Served(); }));
}

// Known defect: no event reports that a directory above was replaced, and the socket was never seen.
TEST_F(ServedSocketTest, ADirectoryThatIsReplacedUnderAnotherOneIsFound) {
  std::filesystem::create_directories(temp_.Path("a/b"));
  Wait(milliseconds(50));
  EXPECT_FALSE(RunUntil([this] { return Served(); }, milliseconds(20)));
  ASSERT_EQ(rename(temp_.Path("a").c_str(), temp_.Path("old").c_str()), 0);
  std::filesystem::create_directories(temp_.Path("a/b"));
  const UniqueFd server = Listen(path_);
  EXPECT_TRUE(RunUntil([this] { return Served(); }));
}

TEST_F(ServedSocketTest, ADirectoryThatWasReplacedIsWatchedItself) {
  std::filesystem::create_directories(temp_.Path("a/b"));
  Wait();
  EXPECT_FALSE(RunUntil([this] { return Served(); }, milliseconds(20)));
  ASSERT_EQ(rename(temp_.Path("a/b").c_str(), temp_.Path("a/old").c_str()), 0);
  ASSERT_EQ(mkdir(temp_.Path("a/b").c_str(), 0755), 0);
  EXPECT_FALSE(RunUntil([this] { return Served(); }, milliseconds(20)));
  const UniqueFd server = Listen(path_);
  EXPECT_TRUE(RunUntil([this] { return Served(); }));
}

TEST_F(ServedSocketTest, WhatIsNotServedIsSaidInWords) {
  std::filesystem::create_directories(temp_.Path("a/b"));
  Listen(path_).Reset();
  Wait();
  EXPECT_FALSE(RunUntil([this] { return Served(); }, milliseconds(30)));
  EXPECT_THAT(reported_, ElementsAre("nothing listens at " + path_));
  reported_.clear();
  ASSERT_EQ(unlink(path_.c_str()), 0);
  ASSERT_EQ(mkdir(path_.c_str(), 0755), 0);
  EXPECT_TRUE(RunUntil([this] { return !reported_.empty() && reported_.back() == path_ + " is no socket"; }));
  ASSERT_EQ(rmdir(path_.c_str()), 0);
  const UniqueFd server = Listen(path_);
  EXPECT_TRUE(RunUntil([this] { return Served(); }));
}

Awaitable<void> Note(Awaitable<void> what, bool* done) {
  co_await std::move(what);
  *done = true;
}

TEST_F(ServedSocketTest, TheEndOfTheServerIsSeenAtOnce) {
  std::filesystem::create_directories(temp_.Path("a/b"));
  UniqueFd server = Listen(path_);
  std::optional<ServedSocket> served = TryConnect(path_);
  ASSERT_TRUE(served.has_value());
  bool ended = false;
  scope_.Spawn("end", Note(WaitForEnd(std::move(served->connection)), &ended));
  const UniqueFd accepted(accept4(server.get(), nullptr, nullptr, SOCK_CLOEXEC));
  // What the server says first, as every HTTP/2 server does, is not its end.
  ASSERT_EQ(write(accepted.get(), "settings", 8), 8);
  EXPECT_FALSE(RunUntil([&] { return ended; }, milliseconds(20)));
  const TimePoint before = Clock::now();
  ASSERT_EQ(shutdown(accepted.get(), SHUT_RDWR), 0);
  ASSERT_TRUE(RunUntil([&] { return ended; }));
  EXPECT_LT(Clock::now() - before, seconds(5));
}

TEST_F(ServedSocketTest, AConnectionThatWasNeverAcceptedEndsWithItsServerToo) {
  std::filesystem::create_directories(temp_.Path("a/b"));
  UniqueFd server = Listen(path_);
  std::optional<ServedSocket> served = TryConnect(path_);
  ASSERT_TRUE(served.has_value());
  bool ended = false;
  scope_.Spawn("end", Note(WaitForEnd(std::move(served->connection)), &ended));
  EXPECT_FALSE(RunUntil([&] { return ended; }, milliseconds(20)));
  server.Reset();
  EXPECT_TRUE(RunUntil([&] { return ended; }));
  EXPECT_FALSE(TryConnect(path_).has_value());
}

}  // namespace
}  // namespace berth
