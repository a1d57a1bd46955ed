#include "tests/harness/link_test.h"

#include <fmt/format.h>
#include <grpcpp/security/server_credentials.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

namespace berth {
namespace {

using std::chrono::hours;
using std::chrono::steady_clock;

// Readers see the old content or the new one.
void Replace(const std::string& path, const std::string& content) {
  const std::string fresh = path + ".new";
  std::ofstream(fresh) << content << std::flush;
  EXPECT_EQ(chmod(fresh.c_str(), 0600), 0) << fresh;
  EXPECT_EQ(std::rename(fresh.c_str(), path.c_str()), 0) << path;
}

}  // namespace

TestCertificate LinkTest::Certificate(const std::string& name) const {
  return ca_.Issue({.names = {"DNS:" + name}, .valid_from = -hours(48), .valid_to = hours(48)});
}

std::shared_ptr<grpc::ServerCredentials> LinkTest::Credentials(const TestCertificate& certificate,
                                                               const TestCa& believes) {
  grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  tls.pem_root_certs = believes.pem();
  tls.pem_key_cert_pairs.push_back({.private_key = certificate.key_pem, .cert_chain = certificate.pem});
  return grpc::SslServerCredentials(tls);
}

TestScheduler& LinkTest::StartScheduler(TestScheduler::Options options, const TestCertificate& certificate,
                                        const TestCa& believes) {
  StopScheduler();
  options.credentials = Credentials(certificate, believes);
  options.address = SchedulerAddress();
  scheduler_ = std::make_unique<TestScheduler>(std::move(options));
  const std::string& address = scheduler_->address();
  port_ = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  if (!proxy_) proxy_ = std::make_unique<TcpProxy>(port_);
  return *scheduler_;
}

void LinkTest::WriteNodeFiles(const TestCertificate& node, const std::string& crl) {
  mkdir(TlsFile("").c_str(), 0700);
  Replace(TlsFile("ca.pem"), ca_.pem());
  Replace(TlsFile("node.pem"), node.pem);
  Replace(TlsFile("node.key"), node.key_pem);
  if (!crl.empty()) WriteCrl(crl);
}

void LinkTest::WriteCrl(const std::string& crl) {
  Replace(TlsFile("crl.pem"), crl);
  with_crl_ = true;
}

void LinkTest::StartDialling(std::vector<std::string> addresses) {
  if (!scheduler_) StartScheduler();
  if (!std::filesystem::exists(TlsFile(""))) WriteNodeFiles(NodeCertificate());
  if (addresses.empty()) addresses.push_back(proxy_->address());
  std::string list;
  for (const std::string& address : addresses) list += fmt::format("\"{}\", ", address);
  const std::string crl = with_crl_ ? fmt::format("crl = \"{}\"\n", TlsFile("crl.pem")) : "";
  node_.WriteBerthdToml(
      fmt::format("[scheduler]\naddresses = [{}]\nidentities = [\"{}\"]\nca = \"{}\"\ncertificate = \"{}\"\n"
                  "key = \"{}\"\n{}",
                  list, kSchedulerName, TlsFile("ca.pem"), TlsFile("node.pem"), TlsFile("node.key"), crl));
  // Several floods at once, with a sanitizer, keep a busy machine from a probe for longer than its usual
  // second.
  StartReady("[health]\ninterval = \"50ms\"\ntimeout = \"20s\"\nfailures = 2\n");
}

void LinkTest::StartLinked(std::vector<std::string> addresses) {
  StartDialling(std::move(addresses));
  WaitLinked();
}

TestScheduler::Node LinkTest::WaitLinked(size_t stream) {
  return scheduler_->WaitNode(
      kNode, fmt::format("stream {} to be synced", stream), [stream](const TestScheduler::Node& node) {
        return node.streams >= stream && node.connected && node.synced &&
               node.state.lease() == v1::LEASE_VALID && node.plugins.contains("fault") &&
               node.plugins.at("fault").registered();
      });
}

v1::LinkStatus LinkTest::Link() {
  v1::GetStatusResponse status;
  EXPECT_TRUE(node_.stub().GetStatus(Node::Context(kServedWithin).get(), {}, &status).ok());
  return status.scheduler();
}

void LinkTest::WaitLinkError(const std::string& part) {
  std::string last;
  try {
    WaitFor(fmt::format("the link to have failed with \"{}\"", part), [&] {
      last = Link().last_error();
      return last.find(part) != std::string::npos;
    });
  } catch (const std::exception&) {
    ADD_FAILURE() << "it says: " << last;
    throw;
  }
}

uint64_t LinkTest::Ask(v1::Operation operation) {
  if (operation.id() == 0) operation.set_id(last_operation_ + 1);
  last_operation_ = operation.id();
  return scheduler_->Ask(kNode, std::move(operation));
}

v1::Operation LinkTest::Publishing(const std::string& volume, const std::string& consumer) {
  v1::Operation operation;
  operation.mutable_publish()->set_namespace_("jobs");
  v1::PublishVolumeRequest& request = *operation.mutable_publish()->mutable_request();
  request.set_plugin_id("fault");
  request.set_volume_id(volume);
  request.set_consumer(consumer);
  (*request.mutable_secrets())["password"] = kSecret;
  return operation;
}

v1::Operation LinkTest::Unpublishing(const std::string& volume, const std::string& consumer) {
  v1::Operation operation;
  operation.mutable_unpublish()->set_namespace_("jobs");
  v1::UnpublishVolumeRequest& request = *operation.mutable_unpublish()->mutable_request();
  request.set_plugin_id("fault");
  request.set_volume_id(volume);
  request.set_consumer(consumer);
  return operation;
}

std::string LinkTest::PublishFromAfar(const std::string& volume, const std::string& consumer) {
  const v1::OperationResult result = scheduler_->WaitResult(kNode, Ask(Publishing(volume, consumer)));
  EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
  return result.publish().target_path();
}

void LinkTest::UnpublishFromAfar(const std::string& volume, const std::string& consumer) {
  const v1::OperationResult result = scheduler_->WaitResult(kNode, Ask(Unpublishing(volume, consumer)));
  EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
}

void LinkTest::ExpectServed(const std::string& name) {
  const auto began = steady_clock::now();
  EXPECT_FALSE(Link().address().empty());
  ExpectWorks(name);
  EXPECT_LT(steady_clock::now() - began, kServedWithin);
}

}  // namespace berth
