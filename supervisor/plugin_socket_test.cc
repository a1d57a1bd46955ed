#include "supervisor/plugin_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <cstring>
#include <future>

#include "base/file.h"
#include "base/testing/temp_dir.h"
#include "base/unique_fd.h"
#include "supervisor/served_socket.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class PluginSocketTest : public ::testing::Test {
 protected:
  static UniqueFd Bind(const std::string& path, int type = SOCK_STREAM) {
    UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << strerror(errno);
    return fd;
  }

  std::future<absl::Status> Watch() { return asio::co_spawn(loop_, Served(socket_), asio::use_future); }
  static Awaitable<absl::Status> Served(std::string path) {
    const auto served = co_await WaitForServer(std::move(path), {});
    co_return served.status();
  }
  // Lets the loop run until `result` is there, or for `bound`.
  bool Answered(std::future<absl::Status>& result, Duration bound) {
    const TimePoint end = Clock::now() + bound;
    loop_.restart();
    while (result.wait_for(seconds(0)) != std::future_status::ready && Clock::now() < end) {
      loop_.run_one_until(end);
    }
    return result.wait_for(seconds(0)) == std::future_status::ready;
  }

  TempDir temp_;
  std::string dir_ = temp_.Path("nfs");
  std::string socket_ = dir_ + "/csi.sock";
  asio::io_context loop_;
};

TEST_F(PluginSocketTest, DirectoryIsMadeForRootAlone) {
  ASSERT_TRUE(PrepareSocket(socket_).ok());
  struct stat info{};
  ASSERT_EQ(stat(dir_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700U);
}

// Whatever an older berthd, or the file with another user in it, made of the directory.
TEST_F(PluginSocketTest, DirectoryBecomesRootsAloneAgain) {
  ASSERT_TRUE(MakeDirectories(dir_, 01770).ok());
  ASSERT_EQ(PrepareSocket(socket_, 64'998), absl::OkStatus());
  struct stat info{};
  ASSERT_EQ(stat(dir_.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, geteuid());
  EXPECT_EQ(info.st_mode & 01007, 01000U) << "what berthd writes there stays; others have no rights";
  ASSERT_EQ(PrepareSocket(socket_), absl::OkStatus());
  ASSERT_EQ(stat(dir_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700U);
}

TEST_F(PluginSocketTest, StaleSocketIsRemoved) {
  ASSERT_TRUE(MakeDirectories(dir_, 0755).ok());
  Bind(socket_);
  ASSERT_EQ(access(socket_.c_str(), F_OK), 0);
  EXPECT_TRUE(PrepareSocket(socket_).ok());
  EXPECT_NE(access(socket_.c_str(), F_OK), 0);
}

TEST_F(PluginSocketTest, AnythingElseIsLeftAloneAndNamed) {
  ASSERT_TRUE(MakeDirectories(dir_, 0755).ok());
  temp_.Write("nfs/csi.sock", "notes");
  absl::Status status = PrepareSocket(socket_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(socket_ + " is a file"));
  EXPECT_EQ(*ReadFile(socket_, 100), "notes");
  temp_.Remove("nfs/csi.sock");
  ASSERT_EQ(symlink("/nonexistent", socket_.c_str()), 0);
  status = PrepareSocket(socket_);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is a symlink"));
}

TEST_F(PluginSocketTest, ListeningSocketIsSeenAtOnce) {
  ASSERT_TRUE(PrepareSocket(socket_).ok());
  const UniqueFd fd = Bind(socket_);
  ASSERT_EQ(listen(fd.get(), 1), 0);
  std::future<absl::Status> watch = Watch();
  ASSERT_TRUE(Answered(watch, seconds(20)));
  EXPECT_TRUE(watch.get().ok());
}

TEST_F(PluginSocketTest, BoundIsNotYetAnswering) {
  ASSERT_TRUE(PrepareSocket(socket_).ok());
  std::future<absl::Status> watch = Watch();
  EXPECT_FALSE(Answered(watch, milliseconds(20)));
  const UniqueFd fd = Bind(socket_);
  EXPECT_FALSE(Answered(watch, milliseconds(50)));
  ASSERT_EQ(listen(fd.get(), 1), 0);
  const TimePoint listening = Clock::now();
  ASSERT_TRUE(Answered(watch, seconds(20)));
  EXPECT_LT(Clock::now() - listening, seconds(5));
}

TEST_F(PluginSocketTest, SocketThatIsMovedIntoPlaceIsSeen) {
  ASSERT_TRUE(PrepareSocket(socket_).ok());
  std::future<absl::Status> watch = Watch();
  EXPECT_FALSE(Answered(watch, milliseconds(20)));
  const std::string elsewhere = dir_ + "/new.sock";
  const UniqueFd fd = Bind(elsewhere);
  ASSERT_EQ(listen(fd.get(), 1), 0);
  EXPECT_FALSE(Answered(watch, milliseconds(20)));
  ASSERT_EQ(rename(elsewhere.c_str(), socket_.c_str()), 0);
  EXPECT_TRUE(Answered(watch, seconds(20)));
}

}  // namespace
}  // namespace berth
