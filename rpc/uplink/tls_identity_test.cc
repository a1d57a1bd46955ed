#include "rpc/uplink/tls_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/testing/temp_dir.h"
#include "rpc/uplink/testing/certificates.h"

namespace berth {
namespace {

using std::chrono::hours;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class TlsIdentityTest : public testing::Test {
 protected:
  TlsIdentityTest() { WriteNode(ca_.Issue({.names = {"DNS:node-1"}})); }

  void WriteNode(const TestCertificate& node) {
    dir_.Write("ca.pem", ca_.pem());
    dir_.Write("node.pem", node.pem);
    WriteKey(node.key_pem, 0600);
  }
  void WriteKey(const std::string& pem, mode_t mode) {
    dir_.Write("node.key", pem);
    EXPECT_EQ(chmod(dir_.Path("node.key").c_str(), mode), 0);
  }
  void WriteCrl(const std::string& pem) {
    dir_.Write("crl.pem", pem);
    files_.crl = dir_.Path("crl.pem");
  }

  [[nodiscard]] auto Load() const {
    return TlsIdentity::Load(files_, {"s1.example", "spiffe://example/scheduler"}, WallClock::now());
  }
  [[nodiscard]] std::string WhyNot() const { return std::string(Load().status().message()); }

  TestCa ca_{"a root"};
  TempDir dir_;
  TlsFiles files_{.ca = dir_.Path("ca.pem"),
                  .certificate = dir_.Path("node.pem"),
                  .key = dir_.Path("node.key"),
                  .crl = ""};
};

TEST_F(TlsIdentityTest, IsReadFromItsFiles) {
  const auto identity = Load();
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_NE((*identity)->context(), nullptr);
  const auto left = (*identity)->valid_until() - WallClock::now();
  EXPECT_GT(left, hours(23));
  EXPECT_LE(left, hours(24));
}

TEST_F(TlsIdentityTest, ACertificateOutsideItsTimeIsRefused) {
  WriteNode(ca_.Issue({.names = {"DNS:n"}, .valid_from = -hours(3), .valid_to = -hours(1)}));
  EXPECT_THAT(WhyNot(),
              AllOf(StartsWith(files_.certificate), HasSubstr("the certificate has expired on 20")));
  WriteNode(ca_.Issue({.names = {"DNS:n"}, .valid_from = hours(1)}));
  EXPECT_THAT(WhyNot(), AllOf(StartsWith(files_.certificate), HasSubstr("is not valid before 20")));
}

TEST_F(TlsIdentityTest, AKeyOfAnotherCertificateIsRefused) {
  WriteKey(ca_.Issue({.names = {"DNS:other"}}).key_pem, 0600);
  EXPECT_THAT(WhyNot(), AllOf(StartsWith(files_.key), HasSubstr("is not the one of the certificate in"),
                              EndsWith(files_.certificate)));
}

TEST_F(TlsIdentityTest, AKeyThatOthersCanReadIsRefused) {
  for (const mode_t mode : {0644, 0604, 0620, 0602}) {
    ASSERT_EQ(chmod(files_.key.c_str(), mode), 0);
    EXPECT_EQ(Load().status().code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(WhyNot(), AllOf(StartsWith(files_.key), HasSubstr("chmod 0600")));
  }
  ASSERT_EQ(chmod(files_.key.c_str(), 0400), 0);
  EXPECT_TRUE(Load().ok());
}

TEST_F(TlsIdentityTest, AnErrorNamesTheFileAndQuotesNothingOfIt) {
  const std::string key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
  WriteKey(key, 0600);
  EXPECT_EQ(WhyNot(), files_.key + ": holds no private key in PEM");
  dir_.Remove("node.key");
  EXPECT_EQ(WhyNot(), files_.key + ": No such file or directory");
  files_.key = dir_.path();
  EXPECT_EQ(WhyNot(), files_.key + ": is not a regular file");
  dir_.Write("node.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  EXPECT_EQ(WhyNot(), files_.certificate + ": holds a certificate in PEM that cannot be read");
  dir_.Write("node.pem", "");
  EXPECT_EQ(WhyNot(), files_.certificate + ": holds no certificate in PEM");
  dir_.Write("ca.pem", std::string((1 << 20) + 1, 'x'));
  EXPECT_THAT(WhyNot(), HasSubstr("has 1048577 bytes, and may have 1048576"));
}

TEST_F(TlsIdentityTest, AKeyWithAPassphraseIsNamedSo) {
  WriteKey(KeyWithPassphrase(), 0600);
  EXPECT_EQ(WhyNot(), files_.key + ": the key has a passphrase, which berthd cannot know");
}

TEST_F(TlsIdentityTest, WhatIsNoAuthorityIsNoCa) {
  dir_.Write("ca.pem", ca_.Issue({.names = {"DNS:leaf"}}).pem);
  EXPECT_THAT(WhyNot(), AllOf(StartsWith(files_.ca), HasSubstr("not a certificate authority's")));
}

TEST_F(TlsIdentityTest, ARevocationListThatHasRunOutIsRefused) {
  WriteCrl(ca_.Crl({}, -hours(1)));
  EXPECT_THAT(WhyNot(), AllOf(StartsWith(files_.crl), HasSubstr("a newer one is needed")));
  WriteCrl(ca_.Crl({}));
  EXPECT_TRUE(Load().ok()) << WhyNot();
}

TEST_F(TlsIdentityTest, NoticesThatAFileHasChanged) {
  WriteCrl(ca_.Crl({}));
  const auto identity = Load();
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_FALSE((*identity)->Changed());
  // As cert-manager and its like do: a new file in place of the old.
  dir_.Write("new.pem", ca_.Issue({.names = {"DNS:node-1"}}).pem);
  ASSERT_EQ(rename(dir_.Path("new.pem").c_str(), files_.certificate.c_str()), 0);
  EXPECT_TRUE((*identity)->Changed());

  const auto anew = [&] { return TlsIdentity::Load(files_, {}, WallClock::now()); };
  WriteNode(ca_.Issue({.names = {"DNS:node-1"}}));
  auto next = anew();
  ASSERT_TRUE(next.ok());
  WriteCrl(ca_.Crl({7}));
  EXPECT_TRUE((*next)->Changed());
  next = anew();
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE((*next)->Changed());
  dir_.Remove("ca.pem");
  EXPECT_TRUE((*next)->Changed());
}

}  // namespace
}  // namespace berth
