#include "rpc/listen_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace berth {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ListenSocketTest : public testing::Test {
 protected:
  ListenSocketTest() {
    char name[] = "/tmp/berth-rpc-XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/berthd.sock";
  }
  ~ListenSocketTest() override {
    unlink(path_.c_str());
    EXPECT_EQ(rmdir(directory_.c_str()), 0) << directory_;
  }

  [[nodiscard]] int Connect() const {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    const int result = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    close(fd);
    return result;
  }
  [[nodiscard]] bool Exists() const {
    struct stat file{};
    return lstat(path_.c_str(), &file) == 0;
  }
  static std::string Message(const absl::StatusOr<ListenSocket>& socket) {
    return std::string(socket.status().message());
  }

  std::string directory_;
  std::string path_;
};

TEST_F(ListenSocketTest, HasTheModeAskedForWhateverTheUmask) {
  const mode_t before = umask(0077);
  auto made = ListenSocket::Bind(path_, std::nullopt, 0666);
  umask(before);
  ASSERT_TRUE(made.ok()) << made.status();
  struct stat file{};
  ASSERT_EQ(lstat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0666U);
  EXPECT_EQ(Connect(), 0);
  made->Remove();
  EXPECT_FALSE(Exists());
}

TEST_F(ListenSocketTest, ReplacesASocketThatNobodyServes) {
  {
    const auto dead = ListenSocket::Bind(path_, std::nullopt, 0600);
    ASSERT_TRUE(dead.ok()) << dead.status();
  }
  ASSERT_TRUE(Exists()) << "as after a crash";
  ASSERT_EQ(Connect(), -1);
  const auto next = ListenSocket::Bind(path_, std::nullopt, 0666);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(Connect(), 0);
}

TEST_F(ListenSocketTest, LeavesAForeignFileAlone) {
  const int fd = open(path_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  close(fd);
  const auto made = ListenSocket::Bind(path_, std::nullopt, 0666);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(made), HasSubstr("not a socket"));
  EXPECT_TRUE(Exists());
}

TEST_F(ListenSocketTest, WhoeverLocksItsDirectoryDelaysNothing) {
  // As any user can who may read the directory.
  const int other = open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(other, LOCK_EX | LOCK_NB), 0);
  EXPECT_TRUE(ListenSocket::Bind(path_, std::nullopt, 0660).ok());
  close(other);
}

TEST_F(ListenSocketTest, HasAndChangesItsGroup) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to give a file to a group";
  auto made = ListenSocket::Bind(path_, gid_t{4242}, 0660);
  ASSERT_TRUE(made.ok()) << made.status();
  struct stat file{};
  ASSERT_EQ(lstat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_gid, 4242U);
  ASSERT_EQ(made->SetAccess(std::nullopt, 0600), absl::OkStatus());
  ASSERT_EQ(lstat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_gid, getgid());
  EXPECT_EQ(file.st_mode & 07777, 0600U);
}

TEST_F(ListenSocketTest, RefusesAPathThatNoSocketCanHave) {
  EXPECT_EQ(ListenSocket::Bind("berthd.sock", std::nullopt, 0666).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ListenSocket::Bind("", std::nullopt, 0666).status().code(), absl::StatusCode::kInvalidArgument);
  const auto made = ListenSocket::Bind(directory_ + "/" + std::string(100, 'x'), std::nullopt, 0666);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(made), HasSubstr("at most 107"));
}

TEST_F(ListenSocketTest, NamesADirectoryThatIsMissing) {
  const auto made = ListenSocket::Bind(directory_ + "/missing/berthd.sock", std::nullopt, 0666);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(made), HasSubstr(directory_ + "/missing"));
}

TEST_F(ListenSocketTest, DoesNotRemoveASuccessorsFile) {
  auto first = ListenSocket::Bind(path_, std::nullopt, 0666);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(unlink(path_.c_str()), 0);
  const auto second = ListenSocket::Bind(path_, std::nullopt, 0666);
  ASSERT_TRUE(second.ok()) << second.status();
  first->Remove();
  EXPECT_TRUE(Exists());
  EXPECT_EQ(Connect(), 0);
}

TEST_F(ListenSocketTest, TakesOverOneThatListensAlreadyAndLeavesItsFile) {
  const auto made = ListenSocket::Bind(path_, std::nullopt, 0666);
  ASSERT_TRUE(made.ok()) << made.status();
  UniqueFd handed(fcntl(made->fd(), F_DUPFD_CLOEXEC, 3));
  ASSERT_EQ(fcntl(handed.get(), F_SETFL, 0), 0);  // As systemd hands it over: blocking.
  auto adopted = ListenSocket::Adopt(std::move(handed));
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_EQ(adopted->path(), path_);
  EXPECT_NE(fcntl(adopted->fd(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(adopted->SetAccess(std::nullopt, 0600).code(), absl::StatusCode::kFailedPrecondition);
  adopted->Remove();
  EXPECT_TRUE(Exists());
}

TEST_F(ListenSocketTest, TakesOverNothingElse) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd other(ends[1]);
  EXPECT_EQ(ListenSocket::Adopt(UniqueFd(ends[0])).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace berth
