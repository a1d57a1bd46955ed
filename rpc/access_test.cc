#include "rpc/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uid_t kOwnUid = 900;
constexpr gid_t kBerthGid = 901;

// A machine with the users anna (1000) and root, and the groups storage (2000) and perhaps berth.
NameLookup FakeNames(bool with_berth_group = true) {
  return {
      .user = [](const std::string& name) -> absl::StatusOr<uid_t> {
        if (name == "anna") return 1000;
        if (name == "root") return 0;
        return absl::NotFoundError("no such user");
      },
      .group = [with_berth_group](const std::string& name) -> absl::StatusOr<gid_t> {
        if (name == "storage") return 2000;
        if (name == "berth" && with_berth_group) return kBerthGid;
        return absl::NotFoundError("no such group");
      },
  };
}

PeerCredentials Peer(uid_t uid, gid_t gid, std::vector<gid_t> groups = {}) {
  return {.pid = 1, .uid = uid, .gid = gid, .groups = std::move(groups)};
}

AccessPolicy MakePolicy(const AccessConfig& config, bool with_berth_group = true) {
  auto policy = AccessPolicy::Make(config, kOwnUid, FakeNames(with_berth_group));
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *policy;
}

constexpr Rights kNone{};
constexpr Rights kReads{.read = true, .change = false, .claim = false};
constexpr Rights kBoth{.read = true, .change = true, .claim = true};

TEST(AccessPolicyTest, ByDefaultRootAndBerthdChangeAndTheGroupReads) {
  const AccessPolicy policy = MakePolicy({});
  EXPECT_EQ(policy.RightsOf(Peer(0, 0)), kBoth);
  EXPECT_EQ(policy.RightsOf(Peer(kOwnUid, 5)), kBoth);
  EXPECT_EQ(policy.RightsOf(Peer(1000, kBerthGid)), kReads);
  EXPECT_EQ(policy.RightsOf(Peer(1000, 1000, {7, kBerthGid})), kReads);
  EXPECT_EQ(policy.RightsOf(Peer(1000, 1000, {7})), kNone);
  EXPECT_EQ(policy.RightsOf(Peer(1000, 0)), kNone) << "root's group is not root";
}

TEST(AccessPolicyTest, ClaimersClaimAndWhoeverChangesMayClaim) {
  const AccessPolicy policy = MakePolicy({.changers = {{"user:anna"}}, .claimers = {{"group:storage"}}});
  EXPECT_EQ(policy.RightsOf(Peer(1000, 1)), kBoth);
  EXPECT_EQ(policy.RightsOf(Peer(1001, 2000)), (Rights{.read = false, .change = false, .claim = true}));
  EXPECT_EQ(policy.RightsOf(Peer(1001, kBerthGid, {2000})),
            (Rights{.read = true, .change = false, .claim = true}));
  EXPECT_EQ(policy.RightsOf(Peer(1001, 1)), kNone);
}

TEST(AccessPolicyTest, WithoutTheGroupOnlyRootAndBerthdMayAnything) {
  const AccessPolicy policy = MakePolicy({}, false);
  EXPECT_EQ(policy.RightsOf(Peer(1000, kBerthGid)), kNone);
  EXPECT_EQ(policy.RightsOf(Peer(0, 0)), kBoth);
}

TEST(AccessPolicyTest, AConfiguredListOfReadersReplacesTheDefault) {
  const AccessPolicy policy = MakePolicy({.readers = {{"user:anna"}}, .changers = {}});
  EXPECT_EQ(policy.RightsOf(Peer(1000, 1)), kReads);
  EXPECT_EQ(policy.RightsOf(Peer(1001, kBerthGid)), kNone);
}

TEST(AccessPolicyTest, ChangersAlsoRead) {
  const AccessPolicy policy =
      MakePolicy({.readers = std::vector<std::string>{}, .changers = {{"group:storage", "user:3000"}}});
  EXPECT_EQ(policy.RightsOf(Peer(1, 1, {2000})), kBoth);
  EXPECT_EQ(policy.RightsOf(Peer(3000, 1)), kBoth);
  EXPECT_EQ(policy.RightsOf(Peer(3001, 1)), kNone);
}

TEST(AccessPolicyTest, NoListTakesTheRightFromRoot) {
  const AccessPolicy policy = MakePolicy({.readers = {{"user:5"}}, .changers = {{"user:5"}}});
  EXPECT_EQ(policy.RightsOf(Peer(0, 0)), kBoth);
  EXPECT_EQ(policy.RightsOf(Peer(kOwnUid, 1)), kBoth);
}

TEST(AccessPolicyTest, AStarIsEverybody) {
  EXPECT_EQ(MakePolicy({.readers = {{"*"}}, .changers = {}}).RightsOf(Peer(77, 77)), kReads);
  EXPECT_EQ(MakePolicy({.readers = {}, .changers = {{"*"}}}).RightsOf(Peer(77, 77)), kBoth);
}

TEST(AccessPolicyTest, NamesEveryMistakeAtOnce) {
  const auto policy = AccessPolicy::Make(
      {.readers = {{"anna", "group:"}}, .changers = {{"user:jon", "user:4294967295", "user:anna"}}}, kOwnUid,
      FakeNames());
  ASSERT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(policy.status().message()),
              AllOf(HasSubstr("changers: user:jon: no such user"),
                    HasSubstr("changers: user:4294967295: no such user"),
                    HasSubstr("readers: anna: neither user:NAME"),
                    HasSubstr("readers: group:: the name is missing"), testing::Not(HasSubstr("user:anna"))));
}

TEST(AccessPolicyTest, SystemNamesKnowRoot) {
  const NameLookup names = SystemNames();
  EXPECT_EQ(names.user("root").value_or(99), 0U);
  EXPECT_EQ(names.group("root").value_or(99), 0U);
  EXPECT_TRUE(absl::IsNotFound(names.user("no-such-user-anywhere").status()));
  EXPECT_TRUE(absl::IsNotFound(names.group("no-such-group-anywhere").status()));
}

TEST(PeerCredentialsTest, AreThoseOfTheProcessAtTheOtherEnd) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd one(pair[0]);
  const UniqueFd two(pair[1]);
  const auto peer = ReadPeerCredentials(one.get());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, geteuid());
  EXPECT_EQ(peer->gid, getegid());
  std::vector<gid_t> groups(128);
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  ASSERT_GE(count, 0);
  groups.resize(static_cast<size_t>(count));
  EXPECT_EQ(peer->groups, groups);
}

TEST(PeerCredentialsTest, OfSomethingElseIsAnError) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd reading(ends[0]);
  const UniqueFd writing(ends[1]);
  EXPECT_FALSE(ReadPeerCredentials(reading.get()).ok());
}

}  // namespace
}  // namespace berth
