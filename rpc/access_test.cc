#include "rpc/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<gid_t> Find(const std::string& name) {
  if (name == "berth") return 100;
  if (name == "storage") return 200;
  return absl::NotFoundError("there is no group \"" + name + "\"");
}
absl::StatusOr<gid_t> FindNone(const std::string& /*name*/) { return absl::NotFoundError("none"); }

GroupSetting Group(const std::string& name) { return {.group = name, .where = "berthd.toml:7: access.x"}; }

TEST(PlanSocketsTest, ByDefaultTheGroupBerthReadsAndNobodyClaims) {
  EXPECT_THAT(*PlanSockets({}, 0, Find), ElementsAre(SocketAccess{.right = Right::kChange, .group = {}},
                                                     SocketAccess{.right = Right::kRead, .group = 100}));
  EXPECT_THAT(*PlanSockets({}, 0, FindNone), ElementsAre(SocketAccess{.right = Right::kChange, .group = {}},
                                                         SocketAccess{.right = Right::kRead, .group = {}}));
}

TEST(PlanSocketsTest, EachSocketHasItsGroupByNameOrNumber) {
  const auto sockets =
      PlanSockets({.change = Group("storage"), .read = Group("7"), .claim = Group("berth")}, 0, Find);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  EXPECT_THAT(*sockets, ElementsAre(SocketAccess{.right = Right::kChange, .group = 200},
                                    SocketAccess{.right = Right::kRead, .group = 7},
                                    SocketAccess{.right = Right::kClaim, .group = 100}));
  for (const SocketAccess& socket : *sockets) EXPECT_EQ(socket.mode(), 0660U);
}

TEST(PlanSocketsTest, AnEmptyNameMeansNoGroup) {
  EXPECT_THAT(*PlanSockets({.change = Group(""), .read = Group(""), .claim = Group("")}, 0, Find),
              ElementsAre(SocketAccess{.right = Right::kChange, .group = {}},
                          SocketAccess{.right = Right::kRead, .group = {}}));
  EXPECT_EQ(SocketAccess{}.mode(), 0600U);
}

TEST(PlanSocketsTest, WithoutRootEverySocketIsItsOwnersAlone) {
  const auto sockets =
      PlanSockets({.change = Group("storage"), .read = {}, .claim = Group("berth")}, 1000, Find);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  for (const SocketAccess& socket : *sockets) EXPECT_EQ(socket.mode(), 0600U);
}

TEST(PlanSocketsTest, EveryGroupThatDoesNotExistIsNamedWithItsKey) {
  const auto sockets =
      PlanSockets({.change = Group("storag"), .read = {}, .claim = Group("4294967295")}, 0, Find);
  EXPECT_EQ(sockets.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sockets.status().message()),
              AllOf(HasSubstr("berthd.toml:7: access.x: there is no group \"storag\"\n"),
                    HasSubstr("there is no group \"4294967295\"")));
}

TEST(PlanSocketsTest, ADirectoryServiceThatFailsIsAnError) {
  const auto fails = [](const std::string&) -> absl::StatusOr<gid_t> {
    return absl::UnavailableError("down");
  };
  EXPECT_FALSE(PlanSockets({}, 0, fails).ok());
}

TEST(SystemGroupTest, FindsGroupsOfThisMachine) {
  EXPECT_EQ(*SystemGroup("root"), 0U);
  EXPECT_EQ(SystemGroup("no-such-group-here").status().code(), absl::StatusCode::kNotFound);
}

TEST(RightTest, TheSocketForChangesServesAll) {
  for (const Right right : kEveryRight) {
    EXPECT_TRUE(Gives(Right::kChange, right));
    EXPECT_EQ(Gives(Right::kRead, right), right == Right::kRead);
    EXPECT_EQ(Gives(Right::kClaim, right), right == Right::kClaim);
  }
}

TEST(PeerCredentialsTest, AreTheKernels) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd one(ends[0]);
  const UniqueFd other(ends[1]);
  const auto peer = ReadPeerCredentials(one.get());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(*peer, (PeerCredentials{.pid = getpid(), .uid = getuid(), .gid = getgid()}));
}

}  // namespace
}  // namespace berth
