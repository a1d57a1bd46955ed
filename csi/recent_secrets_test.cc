#include "csi/recent_secrets.h"

#include <absl/strings/escaping.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csi/csi.pb.h"

namespace berth {
namespace {

using std::chrono::hours;

std::string Redact(const std::vector<std::string_view>& secrets, std::string text) {
  return SecretSet(secrets).Redacted(std::move(text));
}

TEST(SecretSetTest, OverwritesWithTheSameLength) {
  EXPECT_EQ(Redact({"hunter2!"}, "password=hunter2! user=me"), "password=******** user=me");
  EXPECT_EQ(Redact({"hunter2!"}, "hunter2!"), "********");
  EXPECT_EQ(Redact({"hunter2!"}, "hunter2"), "hunter2");
  EXPECT_EQ(Redact({"hunter2!"}, ""), "");
}

TEST(SecretSetTest, OverlappingSecretsAreBothGone) {
  EXPECT_EQ(Redact({"abcdef", "defghi"}, "xabcdefghix"), "x*********x");
  EXPECT_EQ(Redact({"abcd", "abcdefgh"}, "abcdefgh abcd"), "******** ****");
}

TEST(SecretSetTest, ShortValuesAreNotLookedFor) {
  EXPECT_EQ(Redact({"abc", ""}, "abcabc"), "abcabc");
  EXPECT_TRUE(SecretSet({"abc", " \n"}).empty());
}

TEST(SecretSetTest, FourFormsAreFound) {
  const std::string_view secret = "p&ss \"word\"/1";
  EXPECT_EQ(Redact({secret}, "p&ss \"word\"/1"), "*************");
  EXPECT_EQ(Redact({secret}, R"({"p":"p&ss \"word\"/1"})"), R"({"p":"***************"})");
  EXPECT_EQ(Redact({secret}, "?p=p%26ss%20%22word%22%2F1&x"), "?p=***********************&x");
  EXPECT_EQ(Redact({secret}, "cCZzcyAid29yZCIvMQ=="), "******************==");
  EXPECT_EQ(Redact({"\xff\xfe raw"}, "\xff\xfe raw"), "******") << "no text";
}

TEST(SecretSetTest, EachLineOfAKeyIsFoundAlone) {
  const std::string_view key =
      "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\nqhkiG9w0BAQEFAASCBK\n-----END KEY-----\n";
  EXPECT_EQ(Redact({key}, "key: MIIEvQIBADANBgkqhkiG, -----BEGIN KEY-----"),
            "key: ********************, -----BEGIN KEY-----");
  EXPECT_EQ(Redact({key}, R"("-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\nqhkiG9w0BAQEFAASCBK\n")"),
            R"("-----BEGIN KEY-----\n********************\n*******************\n")");
}

TEST(SecretSetTest, LongValuesAreFoundWhole) {
  std::string secret;
  for (int i = 0; i < 1000; ++i) secret += std::to_string(i * 7919);
  const std::string text = Redact({secret}, "<" + secret + ">");
  EXPECT_EQ(text, "<" + std::string(secret.size(), '*') + ">");
  const std::string base64 = absl::Base64Escape(secret);
  EXPECT_EQ(Redact({secret}, base64).find_first_not_of("*="), std::string::npos);
}

// One call that carries `value`, and has ended.
void Remember(RecentSecrets& secrets, const std::string& plugin_id, const std::string& value) {
  [[maybe_unused]] const auto call = secrets.Carry(plugin_id, ::csi::v1::NodePublishVolumeRequest(), {value});
}

TEST(RecentSecretsTest, EachPluginHasItsOwn) {
  RecentSecrets secrets;
  Remember(secrets, "nfs", "hunter2!");
  EXPECT_EQ(secrets.Of("nfs")->Redacted("hunter2!"), "********");
  EXPECT_EQ(secrets.Of("lvm")->Redacted("hunter2!"), "hunter2!");
  secrets.Forget("nfs");
  EXPECT_TRUE(secrets.Of("nfs")->empty());
}

TEST(RecentSecretsTest, ValuesAgeFromTheirLastUse) {
  RecentSecrets secrets;
  Remember(secrets, "nfs", "first value");
  Remember(secrets, "nfs", "second value");
  const TimePoint between = Clock::now();
  Remember(secrets, "nfs", "first value");
  EXPECT_EQ(secrets.Of("nfs", between + hours(1))->Redacted("first value, second value"),
            "***********, second value");
  EXPECT_TRUE(secrets.Of("nfs", between + hours(2))->empty());
}

TEST(RecentSecretsTest, WhatItWasLaunchedWithDoesNotAge) {
  RecentSecrets secrets;
  secrets.Hold("nfs", {"from the environment"});
  EXPECT_FALSE(secrets.Of("nfs", Clock::now() + hours(1000))->empty());
  Remember(secrets, "nfs", "from the environment");
  secrets.Hold("nfs", {});
  EXPECT_FALSE(secrets.Of("nfs")->empty()) << "a call has carried it";
  EXPECT_TRUE(secrets.Of("nfs", Clock::now() + hours(2))->empty());
  secrets.Hold("nfs", {"of the next launch"});
  secrets.Hold("nfs", {});
  EXPECT_TRUE(secrets.Of("nfs")->empty());
}

TEST(RecentSecretsTest, BeyondTheLimitsTheOldestGoes) {
  RecentSecrets secrets({.values = 2, .bytes = 20, .age = hours(1)});
  Remember(secrets, "nfs", "aaaaaaaa");
  Remember(secrets, "nfs", "bbbbbbbb");
  Remember(secrets, "nfs", "cccccccc");
  EXPECT_EQ(secrets.Of("nfs")->Redacted("aaaaaaaa bbbbbbbb cccccccc"), "aaaaaaaa ******** ********");
  Remember(secrets, "nfs", "0123456789abcdef");
  EXPECT_EQ(secrets.Of("nfs")->Redacted("cccccccc 0123456789abcdef"), "cccccccc ****************");
}

TEST(RecentSecretsTest, SecretFieldsOfARequestAreRemembered) {
  ::csi::v1::NodeStageVolumeRequest request;
  request.set_volume_id("volume-1");
  (*request.mutable_secrets())["username"] = "administrator";
  (*request.mutable_volume_context())["server"] = "filer.example";
  RecentSecrets secrets;
  (void)secrets.Carry("nfs", request);
  EXPECT_EQ(secrets.Of("nfs")->Redacted("volume-1 username administrator filer.example"),
            "volume-1 username ************* filer.example");
}

TEST(RecentSecretsTest, WhatMayBeSecretInMountFlagsIsRemembered) {
  ::csi::v1::CreateVolumeRequest request;
  auto& mount = *request.add_volume_capabilities()->mutable_mount();
  mount.set_fs_type("cifs-ntfs");
  mount.add_mount_flags("vers=3.1.1,dir_mode=0000755,password=geheimnis");
  RecentSecrets secrets;
  (void)secrets.Carry("smb", request);
  EXPECT_EQ(
      secrets.Of("smb")->Redacted("mount -t cifs-ntfs -o vers=3.1.1,dir_mode=0000755,password=geheimnis"),
      "mount -t cifs-ntfs -o vers=3.1.1,dir_mode=0000755,password=*********");
}

TEST(RecentSecretsTest, FlagsDoNotPushOutTheSecretsOfTheirOwnRequest) {
  ::csi::v1::NodeStageVolumeRequest request;
  (*request.mutable_secrets())["key"] = "geheimnis";
  for (int i = 0; i < 9; ++i) {
    request.mutable_volume_capability()->mutable_mount()->add_mount_flags("x=value-" + std::to_string(i));
  }
  RecentSecrets secrets({.values = 4, .bytes = 1000, .age = hours(1)});
  (void)secrets.Carry("smb", request);
  EXPECT_EQ(secrets.Of("smb")->Redacted("geheimnis"), "*********");
}

TEST(RecentSecretsTest, WhatIsInFlightIsKnownHoweverMuchThereIsAndComesToRestAfterwards) {
  const std::string all = "aaaaaaaa bbbbbbbb cccccccc";
  RecentSecrets secrets({.values = 1, .bytes = 20, .age = hours(1)});
  ::csi::v1::NodePublishVolumeRequest request;
  (*request.mutable_secrets())["first"] = "aaaaaaaa";
  {
    const auto first = secrets.Carry("nfs", request, {"bbbbbbbb"});
    const auto again = secrets.Carry("nfs", request);
    Remember(secrets, "nfs", "cccccccc");
    Remember(secrets, "nfs", "dddddddd");
    EXPECT_EQ(secrets.Of("nfs")->Redacted(all), "******** ******** cccccccc");
    EXPECT_EQ(secrets.Of("nfs", Clock::now() + hours(2))->Redacted(all), "******** ******** cccccccc");
  }
  EXPECT_EQ(secrets.Of("nfs")->Redacted(all), "aaaaaaaa ******** cccccccc") << "the last one is at rest";
  EXPECT_TRUE(secrets.Of("nfs", Clock::now() + hours(2))->empty());
}

TEST(RecentSecretsTest, WhatIsInFlightToAPluginThatIsNoMoreIsForgottenAtItsEnd) {
  RecentSecrets secrets;
  {
    const auto call = secrets.Carry("nfs", ::csi::v1::NodePublishVolumeRequest(), {"hunter2!"});
    Remember(secrets, "nfs", "hunter3!");
    secrets.Forget("nfs");
    EXPECT_EQ(secrets.Of("nfs")->Redacted("hunter2! hunter3!"), "******** hunter3!");
  }
  EXPECT_TRUE(secrets.Of("nfs")->empty());
  const auto late = [&] {
    RecentSecrets shorter;
    return shorter.Carry("nfs", ::csi::v1::NodePublishVolumeRequest(), {"hunter2!"});
  }();  // ends after what it was known to
}

// A snapshot in use is not disturbed by what comes after it.
TEST(RecentSecretsTest, SnapshotsStayAsTheyAre) {
  RecentSecrets secrets;
  Remember(secrets, "nfs", "hunter2!");
  const std::shared_ptr<const SecretSet> before = secrets.Of("nfs");
  secrets.Forget("nfs");
  EXPECT_EQ(before->Redacted("hunter2!"), "********");
}

}  // namespace
}  // namespace berth
