// For tests only: certificate authorities, certificates and revocation lists, made on the spot.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"

struct evp_pkey_st;
struct x509_st;

namespace berth {

struct TestCertificate {
  std::string pem;      // with the CAs between it and the root, if there are any
  std::string key_pem;  // without a passphrase
  long serial = 0;
};

struct TestLeaf {
  std::vector<std::string> names;  // "DNS:s1.example", "URI:spiffe://example/s1"
  // From now on.
  Duration valid_from = -std::chrono::hours(1);
  Duration valid_to = std::chrono::hours(24);
  std::string usage = "serverAuth,clientAuth";
};

class TestCa {
 public:
  explicit TestCa(const std::string& name);
  // One that `parent` has certified.
  TestCa(const std::string& name, const TestCa& parent);

  [[nodiscard]] TestCertificate Issue(const TestLeaf& leaf) const;
  // A list of what is revoked; it holds until `valid_to` from now.
  [[nodiscard]] std::string Crl(const std::vector<long>& serials,
                                Duration valid_to = std::chrono::hours(24)) const;
  // Its own certificate, PEM; with those above it but the root's for one that has a parent.
  [[nodiscard]] const std::string& pem() const { return pem_; }
  [[nodiscard]] long serial() const { return serial_; }

 private:
  long serial_ = 0;
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_st> certificate_;
  std::string pem_;
  std::string chain_;  // what goes with its certificates
};

// A private key that cannot be read without the passphrase "secret".
[[nodiscard]] std::string KeyWithPassphrase();

}  // namespace berth
