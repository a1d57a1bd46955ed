// The ground of every test of a link's faults: a node and a scheduler, each with a certificate of one
// authority, and between them a proxy that does wrong.
//
//   berthd ──TLS──▶ proxy() ──▶ scheduler()
//
// After each test the invariants of FaultTest are checked, whatever became of the link.
//
// One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rpc/uplink/testing/certificates.h"
#include "tests/harness/fault_test.h"
#include "tests/harness/proxy.h"
#include "tests/harness/scheduler.h"

namespace berth {

class LinkTest : public FaultTest {
 protected:
  static constexpr const char* kNode = "node-1";
  static constexpr const char* kSchedulerName = "scheduler.example";
  // Within which a local call is answered, whatever the link does.
  static constexpr std::chrono::seconds kServedWithin{10};

  // Both hold for two days, before and after now.
  [[nodiscard]] TestCertificate SchedulerCertificate() const { return Certificate(kSchedulerName); }
  [[nodiscard]] TestCertificate NodeCertificate() const { return Certificate(kNode); }

  // A scheduler that remembers nothing, in the place of the one before, at the same port. It has
  // `certificate`, and believes nodes that `believes` has certified.
  TestScheduler& StartScheduler(TestScheduler::Options options, const TestCertificate& certificate,
                                const TestCa& believes);
  TestScheduler& StartScheduler(TestScheduler::Options options = {}) {
    return StartScheduler(std::move(options), SchedulerCertificate(), ca_);
  }
  // What such a scheduler serves with.
  [[nodiscard]] static std::shared_ptr<grpc::ServerCredentials> Credentials(
      const TestCertificate& certificate, const TestCa& believes);
  void StopScheduler() { scheduler_.reset(); }

  // The node's certificate files, each renamed over the one before. `crl`: empty: none yet.
  void WriteNodeFiles(const TestCertificate& node, const std::string& crl = "");
  void WriteCrl(const std::string& crl);
  [[nodiscard]] std::string TlsFile(const std::string& name) const { return node_.dir() + "/tls/" + name; }

  // A node that dials these addresses, ready for work; linked or not. Without any: the proxy's.
  void StartDialling(std::vector<std::string> addresses = {});
  // The same, and it has reported everything.
  void StartLinked(std::vector<std::string> addresses = {});
  // The n-th stream of the node (from 1) is up, it has reported everything and has a lease.
  TestScheduler::Node WaitLinked(size_t stream = 1);

  [[nodiscard]] TestScheduler& scheduler() { return *scheduler_; }
  [[nodiscard]] TcpProxy& proxy() { return *proxy_; }
  [[nodiscard]] std::string SchedulerAddress() const { return "127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] TestScheduler::Node Told() { return *scheduler_->Find(kNode); }
  // The link as the node shows it.
  [[nodiscard]] v1::LinkStatus Link();
  void WaitLinkError(const std::string& part);

  // Asks the present scheduler's node for it, with an id that no scheduler before has given; the id.
  uint64_t Ask(v1::Operation operation);
  // Operations with a secret.
  [[nodiscard]] static v1::Operation Publishing(const std::string& volume, const std::string& consumer);
  [[nodiscard]] static v1::Operation Unpublishing(const std::string& volume, const std::string& consumer);
  // Asks for it and waits until it is done; the target.
  std::string PublishFromAfar(const std::string& volume, const std::string& consumer = "web");
  void UnpublishFromAfar(const std::string& volume, const std::string& consumer = "web");

  // Local clients are served within kServedWithin: they look, publish and unpublish.
  void ExpectServed(const std::string& name);

  TestCa ca_{"storage CA"};

 private:
  [[nodiscard]] TestCertificate Certificate(const std::string& name) const;

  uint16_t port_ = 0;
  std::unique_ptr<TestScheduler> scheduler_;
  std::unique_ptr<TcpProxy> proxy_;
  bool with_crl_ = false;
  uint64_t last_operation_ = 0;
};

}  // namespace berth
