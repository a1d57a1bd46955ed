#include "scheduler/decide/admit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/status.h"

namespace berth::scheduler {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Phase = ClaimFacts::Phase;

constexpr v1::AccessMode kModes[] = {v1::ACCESS_MODE_UNKNOWN,       v1::SINGLE_NODE_WRITER,
                                     v1::SINGLE_NODE_READER_ONLY,   v1::MULTI_NODE_READER_ONLY,
                                     v1::MULTI_NODE_SINGLE_WRITER,  v1::MULTI_NODE_MULTI_WRITER,
                                     v1::SINGLE_NODE_SINGLE_WRITER, v1::SINGLE_NODE_MULTI_WRITER};

v1::Capability Capability(v1::AccessMode mode, v1::AccessType type = v1::MOUNT) {
  v1::Capability capability;
  capability.set_access_mode(mode);
  capability.set_access_type(type);
  return capability;
}
AdmitRequest Request(const v1::Capability& capability, bool readonly = false,
                     const std::string& node = "n1") {
  return {.volume = "ns/v1", .node = node, .capability = capability, .readonly = readonly};
}
ClaimFacts Claim(const std::string& node, bool writes, Phase phase = Phase::kHeld) {
  return {.consumer = "web", .name = "", .node = node, .writes = writes, .phase = phase, .error = ""};
}

// What CSI says of a volume that is used with this mode, of all uses that there are at one time.
bool MayBe(v1::AccessMode mode, const std::vector<ClaimFacts>& claims) {
  std::set<std::string> nodes;
  size_t writers = 0;
  size_t all = 0;
  for (const ClaimFacts& claim : claims) {
    if (claim.phase == Phase::kLeft) continue;
    nodes.insert(claim.node);
    writers += claim.writes ? 1 : 0;
    ++all;
  }
  switch (+mode) {
    case v1::SINGLE_NODE_WRITER:
      return nodes.size() <= 1 && writers <= 1;
    case v1::SINGLE_NODE_READER_ONLY:
      return nodes.size() <= 1 && writers == 0;
    case v1::MULTI_NODE_READER_ONLY:
      return writers == 0;
    case v1::MULTI_NODE_SINGLE_WRITER:
      return writers <= 1;
    case v1::MULTI_NODE_MULTI_WRITER:
      return true;
    case v1::SINGLE_NODE_SINGLE_WRITER:
      return all <= 1;
    default:  // SINGLE_NODE_MULTI_WRITER, which is also meant where none is set
      return nodes.size() <= 1;
  }
}

// All lists of up to `most` claims on two nodes.
std::vector<std::vector<ClaimFacts>> AllLists(size_t most) {
  std::vector<std::vector<ClaimFacts>> lists{{}};
  for (size_t begin = 0, length = 0; length < most; ++length) {
    const size_t end = lists.size();
    for (size_t i = begin; i < end; ++i) {
      for (const char* node : {"n1", "n2"}) {
        for (const bool writes : {false, true}) {
          for (const Phase phase : {Phase::kHeld, Phase::kLeaving, Phase::kLeft}) {
            lists.push_back(lists[i]);
            lists.back().push_back(Claim(node, writes, phase));
          }
        }
      }
    }
    begin = end;
  }
  return lists;
}

// Every mode, every list of up to three claims that the mode allows, every request: admitted if and only if
// the mode allows all of them together.
TEST(AdmitTest, IsWhatTheModeAllowsForAllClaimsTogether) {
  size_t admitted = 0;
  size_t refused = 0;
  for (const v1::AccessMode mode : kModes) {
    const v1::Capability capability = Capability(mode);
    for (const std::vector<ClaimFacts>& claims : AllLists(3)) {
      if (!MayBe(mode, claims)) continue;
      for (const char* node : {"n1", "n2", "n3"}) {
        for (const bool readonly : {false, true}) {
          std::vector<ClaimFacts> after = claims;
          after.push_back(Claim(node, !readonly));
          const absl::Status status =
              Admit(Request(capability, readonly, node), claims.empty() ? nullptr : &capability, claims);
          ASSERT_EQ(status.ok(), MayBe(mode, after)) << v1::AccessMode_Name(mode) << " " << claims.size()
                                                     << " claims, " << node << readonly << status;
          ++(status.ok() ? admitted : refused);
        }
      }
    }
  }
  EXPECT_GT(admitted, 1000U);
  EXPECT_GT(refused, 1000U);
}

// Every pair of capabilities that differ in one thing, over claims in each phase.
TEST(AdmitTest, AllClaimsOfAVolumeHaveOneCapability) {
  std::vector<v1::Capability> capabilities;
  for (const v1::AccessMode mode : kModes) {
    if (mode != v1::ACCESS_MODE_UNKNOWN) capabilities.push_back(Capability(mode));
  }
  capabilities.push_back(Capability(v1::MULTI_NODE_MULTI_WRITER, v1::BLOCK));
  capabilities.push_back(Capability(v1::MULTI_NODE_MULTI_WRITER));
  capabilities.back().set_fs_type("ext4");
  capabilities.push_back(Capability(v1::MULTI_NODE_MULTI_WRITER));
  capabilities.back().add_mount_flags("secret=1");
  capabilities.push_back(Capability(v1::MULTI_NODE_MULTI_WRITER));
  capabilities.back().set_volume_mount_group("7");
  for (size_t i = 0; i < capabilities.size(); ++i) {
    for (size_t j = 0; j < capabilities.size(); ++j) {
      if (i == j) continue;
      for (const Phase phase : {Phase::kHeld, Phase::kLeaving, Phase::kLeft}) {
        const absl::Status status =
            Admit(Request(capabilities[j], true), &capabilities[i], {Claim("n1", false, phase)});
        const auto code =
            phase == Phase::kLeft ? absl::StatusCode::kAborted : absl::StatusCode::kFailedPrecondition;
        EXPECT_EQ(status.code(), code) << i << " " << j << status;
        EXPECT_THAT(MessageOf(status), Not(HasSubstr("secret"))) << "flags may hold one";
      }
    }
  }
  // An attachment without a claim is left.
  EXPECT_TRUE(absl::IsAborted(Admit(Request(capabilities[0]), &capabilities[4], {})));
  EXPECT_TRUE(Admit(Request(capabilities[0]), nullptr, {}).ok());
}

TEST(AdmitTest, NoModeMeansTheOneThatTheNodeTakesForIt) {
  const v1::Capability unset = Capability(v1::ACCESS_MODE_UNKNOWN);
  const v1::Capability set = Capability(v1::SINGLE_NODE_MULTI_WRITER);
  EXPECT_TRUE(Admit(Request(unset), &set, {Claim("n1", true)}).ok());
  EXPECT_TRUE(Admit(Request(set), &unset, {Claim("n1", true)}).ok());
}

TEST(AdmitTest, WhatNobodyCouldHaveIsAMistake) {
  EXPECT_TRUE(absl::IsInvalidArgument(Admit(Request(Capability(v1::MULTI_NODE_READER_ONLY)), nullptr, {})));
  const absl::Status unknown = Admit(Request(Capability(static_cast<v1::AccessMode>(99))), nullptr, {});
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_THAT(MessageOf(unknown), HasSubstr("capability.access_mode"));
}

TEST(AdmitTest, EveryHolderIsNamedWithWhatItWaitsFor) {
  const v1::Capability capability = Capability(v1::SINGLE_NODE_WRITER);
  ClaimFacts leaving = Claim("n2", true, Phase::kLeaving);
  leaving.consumer = "db";
  leaving.name = "data";
  leaving.error = "still used by pid 812 (postgres)";
  const absl::Status status =
      Admit(Request(capability), &capability, {leaving, Claim("n2", false), Claim("n3", true, Phase::kLeft)});
  EXPECT_THAT(
      MessageOf(status),
      AllOf(
          HasSubstr("volume ns/v1 is for one node at a time (SINGLE_NODE_WRITER)"),
          HasSubstr("db (data) on n2, which writes, and is being released: still used by pid 812 (postgres)"),
          HasSubstr("web on n2, which reads"), Not(HasSubstr("n3"))));
  // The message has a limit.
  const v1::Capability readers = Capability(v1::SINGLE_NODE_READER_ONLY);
  const std::vector<ClaimFacts> many(1000, Claim("n2", false));
  const absl::Status crowded = Admit(Request(readers, true), &readers, many);
  EXPECT_THAT(MessageOf(crowded), HasSubstr("984 more"));
  EXPECT_LT(crowded.message().size(), 2000U);
}

}  // namespace
}  // namespace berth::scheduler
