#include "scheduler/decide/claim_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"

namespace berth::scheduler {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::VolumeSpec NfsVolume() {
  v1::VolumeSpec spec;
  spec.set_namespace_("prod");
  spec.set_id("db");
  spec.set_driver("nfs.example");
  spec.set_external_id("export-7");
  spec.add_access_modes(v1::SINGLE_NODE_WRITER);
  spec.add_access_modes(v1::MULTI_NODE_READER_ONLY);
  spec.add_mount_flags("noatime");
  (*spec.mutable_volume_context())["server"] = "s1";
  return spec;
}
v1::ClaimClusterVolumeRequest WebClaim() {
  v1::ClaimClusterVolumeRequest request;
  request.set_namespace_("prod");
  request.set_volume("db");
  request.set_consumer("web");
  request.set_node("n1");
  return request;
}
pb::ClaimRecord Record(const v1::ClaimClusterVolumeRequest& request) {
  const auto claim = ClaimOf(request, NfsVolume());
  EXPECT_TRUE(claim.ok()) << claim.status();
  return claim.value_or(pb::ClaimRecord());
}

TEST(ClaimRequestTest, EveryMistakeIsInOneAnswer) {
  EXPECT_TRUE(CheckClaim(WebClaim()).ok());
  v1::ClaimClusterVolumeRequest request;
  request.set_volume("a/b");
  request.set_name("a\nb");
  (*request.mutable_consumer_labels())["k"] = std::string(300'000, 'x');
  EXPECT_THAT(MessageOf(CheckClaim(request)),
              AllOf(HasSubstr("namespace: must not be empty"), HasSubstr("volume: a/b must have no slash"),
                    HasSubstr("consumer: must not be empty"), HasSubstr("name: "), HasSubstr("node: "),
                    HasSubstr("at most 262144 are taken")));
}

TEST(ClaimRequestTest, EverythingButTheUseComesFromTheVolume) {
  v1::ClaimClusterVolumeRequest request = WebClaim();
  request.mutable_life()->set_unit("web.service");
  const pb::ClaimRecord claim = Record(request);
  const v1::PublishVolumeRequest& publish = claim.request();
  EXPECT_EQ(claim.driver(), "nfs.example");
  EXPECT_TRUE(claim.writes());
  EXPECT_EQ(publish.volume_id(), "export-7");
  EXPECT_EQ(publish.label(), "prod/db");
  EXPECT_EQ(publish.capability().access_mode(), v1::SINGLE_NODE_WRITER) << "the first is the default";
  EXPECT_EQ(publish.capability().mount_flags(0), "noatime");
  EXPECT_EQ(publish.volume_context().at("server"), "s1");
  EXPECT_EQ(publish.life().unit(), "web.service");
  request.set_access_mode(v1::MULTI_NODE_READER_ONLY);
  EXPECT_FALSE(Record(request).writes());
  request.set_access_mode(v1::MULTI_NODE_MULTI_WRITER);
  EXPECT_THAT(MessageOf(ClaimOf(request, NfsVolume()).status()),
              HasSubstr("prod/db is registered for SINGLE_NODE_WRITER, MULTI_NODE_READER_ONLY"));
}

TEST(ClaimRequestTest, TheSameAgainJoinsAndSomethingElseIsNamed) {
  pb::ClaimRecord there = Record(WebClaim());
  there.mutable_request()->set_plugin_id("nfs");
  EXPECT_TRUE(Joins(Record(WebClaim()), there).ok());
  v1::ClaimClusterVolumeRequest other = WebClaim();
  other.set_node("n2");
  other.set_readonly(true);
  EXPECT_THAT(MessageOf(Joins(Record(other), there)),
              HasSubstr("prod/db for web is there, with another node, readonly"));
  there.set_phase(pb::ClaimRecord::LEAVING);
  there.set_error("still used by dd");
  EXPECT_TRUE(absl::IsAborted(Joins(Record(WebClaim()), there)));
  EXPECT_THAT(MessageOf(Joins(Record(WebClaim()), there)), HasSubstr("is being released (still used by dd)"));
}

}  // namespace
}  // namespace berth::scheduler
