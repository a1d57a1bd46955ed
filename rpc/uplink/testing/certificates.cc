#include "rpc/uplink/testing/certificates.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>

namespace berth {
namespace {

using Key = std::shared_ptr<EVP_PKEY>;
using Certificate = std::shared_ptr<X509>;

// Nothing here fails but by a mistake in a test.
void Demand(bool done, const char* what) {
  if (done) return;
  (void)fprintf(stderr, "certificates for a test: %s failed\n", what);
  abort();
}

Key NewKey() {
  Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  Demand(key != nullptr, "EVP_EC_gen");
  return key;
}

template <class Write>
std::string Pem(Write write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), BIO_free);
  Demand(write(bio.get()) == 1, "PEM_write_bio");
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(size)};
}

std::string CertificatePem(X509* certificate) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

void SetTime(ASN1_TIME* time, Duration from_now) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(from_now).count();
  Demand(X509_gmtime_adj(time, seconds) != nullptr, "X509_gmtime_adj");
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  Demand(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, "X509_add_ext");
  X509_EXTENSION_free(extension);
}

// Not signed yet. `issuer` is null for a root.
Certificate NewCertificate(const std::string& name, EVP_PKEY* key, X509* issuer, Duration from, Duration to,
                           long* serial) {
  static long last_serial = 0;
  *serial = ++last_serial;
  Certificate certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), *serial);
  SetTime(X509_getm_notBefore(certificate.get()), from);
  SetTime(X509_getm_notAfter(certificate.get()), to);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), issuer == nullptr ? subject : X509_get_subject_name(issuer));
  return certificate;
}

Certificate NewCa(const std::string& name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key, long* serial) {
  Certificate ca =
      NewCertificate(name, key, issuer, -std::chrono::hours(24), std::chrono::hours(24 * 365), serial);
  X509* by = issuer == nullptr ? ca.get() : issuer;
  AddExtension(ca.get(), by, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(ca.get(), by, NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(ca.get(), by, NID_subject_key_identifier, "hash");
  Demand(X509_sign(ca.get(), issuer_key, EVP_sha256()) > 0, "X509_sign");
  return ca;
}

}  // namespace

TestCa::TestCa(const std::string& name)
    : key_(NewKey()), certificate_(NewCa(name, key_.get(), nullptr, key_.get(), &serial_)) {
  pem_ = CertificatePem(certificate_.get());
}

TestCa::TestCa(const std::string& name, const TestCa& parent)
    : key_(NewKey()),
      certificate_(NewCa(name, key_.get(), parent.certificate_.get(), parent.key_.get(), &serial_)) {
  pem_ = CertificatePem(certificate_.get()) + parent.chain_;
  chain_ = pem_;
}

TestCertificate TestCa::Issue(const TestLeaf& leaf) const {
  const Key key = NewKey();
  TestCertificate issued;
  const Certificate certificate =
      NewCertificate("a leaf", key.get(), certificate_.get(), leaf.valid_from, leaf.valid_to, &issued.serial);
  std::string names;
  for (const std::string& name : leaf.names) names += (names.empty() ? "" : ",") + name;
  if (!names.empty()) AddExtension(certificate.get(), certificate_.get(), NID_subject_alt_name, names);
  AddExtension(certificate.get(), certificate_.get(), NID_ext_key_usage, leaf.usage);
  Demand(X509_sign(certificate.get(), key_.get(), EVP_sha256()) > 0, "X509_sign");
  issued.pem = CertificatePem(certificate.get()) + chain_;
  issued.key_pem = Pem([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return issued;
}

std::string TestCa::Crl(const std::vector<long>& serials, Duration valid_to) const {
  const std::unique_ptr<X509_CRL, decltype(&X509_CRL_free)> crl(X509_CRL_new(), X509_CRL_free);
  X509_CRL_set_version(crl.get(), X509_CRL_VERSION_2);
  X509_CRL_set_issuer_name(crl.get(), X509_get_subject_name(certificate_.get()));
  const std::unique_ptr<ASN1_TIME, decltype(&ASN1_TIME_free)> time(ASN1_TIME_new(), ASN1_TIME_free);
  SetTime(time.get(), -std::chrono::hours(2));
  X509_CRL_set1_lastUpdate(crl.get(), time.get());
  for (const long serial : serials) {
    X509_REVOKED* revoked = X509_REVOKED_new();
    const std::unique_ptr<ASN1_INTEGER, decltype(&ASN1_INTEGER_free)> number(ASN1_INTEGER_new(),
                                                                             ASN1_INTEGER_free);
    ASN1_INTEGER_set(number.get(), serial);
    X509_REVOKED_set_serialNumber(revoked, number.get());
    X509_REVOKED_set_revocationDate(revoked, time.get());
    X509_CRL_add0_revoked(crl.get(), revoked);
  }
  SetTime(time.get(), valid_to);
  X509_CRL_set1_nextUpdate(crl.get(), time.get());
  Demand(X509_CRL_sign(crl.get(), key_.get(), EVP_sha256()) > 0, "X509_CRL_sign");
  return Pem([&](BIO* bio) { return PEM_write_bio_X509_CRL(bio, crl.get()); });
}

std::string KeyWithPassphrase() {
  const Key key = NewKey();
  return Pem([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, key.get(), EVP_aes_256_cbc(), "secret", 6, nullptr, nullptr);
  });
}

}  // namespace berth
