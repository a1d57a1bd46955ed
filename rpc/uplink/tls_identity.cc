#include "rpc/uplink/tls_identity.h"

#include <absl/strings/match.h>
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

constexpr size_t kCertificateLimit = 256 << 10;
constexpr size_t kKeyLimit = 64 << 10;
constexpr size_t kCaLimit = 1 << 20;
constexpr size_t kCrlLimit = 16 << 20;

// As OpenSSL counts: nothing weaker than 112 bits, RSA of 2048 bits among others.
constexpr int kSecurityLevel = 2;
constexpr int kChainLimit = 8;

// HTTP/2 in ALPN's form: each protocol led by its length.
constexpr std::array<unsigned char, 3> kAlpn = {2, 'h', '2'};

// What was in memory is overwritten.
struct Secret {
  std::string bytes;
  Secret() = default;
  explicit Secret(size_t size) : bytes(size, '\0') {}
  Secret(Secret&& other) noexcept : bytes(std::move(other.bytes)) { other.Wipe(); }
  Secret& operator=(Secret&&) = delete;
  ~Secret() { Wipe(); }
  void Wipe() {
    // A short string is copied when it is moved, and is within the capacity then.
    bytes.resize(bytes.capacity());
    OPENSSL_cleanse(bytes.data(), bytes.size());
    bytes.clear();
  }
};

using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;
using CertificatePtr = std::shared_ptr<X509>;

BioPtr BioOf(const std::string& bytes) {
  return {BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())), BIO_free};
}

WallTime TimeOf(const ASN1_TIME* time) {
  tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return WallTime::min();
  // No wall clock here counts beyond a few centuries, and certificates may "never" expire.
  constexpr int64_t kFarthest = 8'000'000'000;
  return WallClock::from_time_t(std::min<int64_t>(timegm(&parts), kFarthest));
}

std::string Date(WallTime time) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(WallClock::to_time_t(time)));
}

absl::Status Wrong(const std::string& path, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", path, why));
}

absl::Status CheckDates(const std::string& path, const X509* certificate, WallTime now) {
  const WallTime begins = TimeOf(X509_get0_notBefore(certificate));
  const WallTime ends = TimeOf(X509_get0_notAfter(certificate));
  if (now < begins) {
    return absl::FailedPreconditionError(
        fmt::format("{}: the certificate is not valid before {}", path, Date(begins)));
  }
  if (now > ends) {
    return absl::FailedPreconditionError(
        fmt::format("{}: the certificate has expired on {}", path, Date(ends)));
  }
  return absl::OkStatus();
}

// Every X of a PEM file, read by `read`; an error if the file has none, or one is damaged.
template <class X, class Free>
absl::StatusOr<std::vector<std::shared_ptr<X>>> ReadPem(const std::string& path, const std::string& bytes,
                                                        X* (*read)(BIO*, X**, pem_password_cb*, void*),
                                                        Free free, std::string_view what) {
  const BioPtr bio = BioOf(bytes);
  std::vector<std::shared_ptr<X>> all;
  ERR_clear_error();
  while (X* one = read(bio.get(), nullptr, nullptr, nullptr)) all.emplace_back(one, free);
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const bool at_end = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  if (!at_end) return Wrong(path, fmt::format("holds a {} in PEM that cannot be read", what));
  if (all.empty()) return Wrong(path, fmt::format("holds no {} in PEM", what));
  return all;
}

std::string DescribeNames(const std::vector<std::string>& names) {
  if (names.empty()) return "no name";
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + Printable(names[i], 128);
  }
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

// The DNS names and URIs that a certificate is for.
std::vector<std::string> NamesOf(const X509* certificate) {
  std::vector<std::string> names;
  auto* all =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(all); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(all, i);
    if (name->type != GEN_DNS && name->type != GEN_URI) continue;
    const ASN1_IA5STRING* text = name->type == GEN_DNS ? name->d.dNSName : name->d.uniformResourceIdentifier;
    // With its length: a NUL in it must not make it equal to a shorter one.
    names.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                       static_cast<size_t>(ASN1_STRING_length(text)));
  }
  GENERAL_NAMES_free(all);
  return names;
}

// Only DNS names are alike in whatever case.
bool SameName(const std::string& name, const std::string& expected) {
  if (expected.find(':') != std::string::npos) return name == expected;
  return absl::EqualsIgnoreCase(name, expected);
}

int ConnectionIndex() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

int RefusePassphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

// A process that can read a node's key can be that node. As for any server's key: root may let a group read.
absl::Status CheckKeyMode(const std::string& path, const struct stat& facts) {
  if (facts.st_uid != 0 && facts.st_uid != geteuid()) {
    return absl::PermissionDeniedError(fmt::format(
        "{}: the key must belong to root or to berthd's user, and belongs to uid {}", path, facts.st_uid));
  }
  const mode_t forbidden = facts.st_uid == 0 ? 0037 : 0077;
  if ((facts.st_mode & forbidden) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      fmt::format("{}: the key's mode is {:04o}: others could read or change it; chmod 0600", path,
                  facts.st_mode & 07777));
}

std::array<int64_t, 7> FactsOf(const struct stat& facts) {
  return {static_cast<int64_t>(facts.st_dev),
          static_cast<int64_t>(facts.st_ino),
          facts.st_size,
          facts.st_mtim.tv_sec,
          facts.st_mtim.tv_nsec,
          facts.st_ctim.tv_sec,
          facts.st_ctim.tv_nsec};
}

}  // namespace

struct TlsIdentity::Content {
  Secret secret;
  FileState state;
};

absl::StatusOr<TlsIdentity::Content> TlsIdentity::ReadOne(const std::string& path, size_t limit,
                                                          bool secret) {
  // Non-blocking: it may be a FIFO.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  struct stat facts{};
  if (fstat(fd.get(), &facts) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(facts.st_mode)) return Wrong(path, "is not a regular file");
  if (secret) BERTH_RETURN_IF_ERROR(CheckKeyMode(path, facts));
  const auto size = static_cast<size_t>(facts.st_size);
  if (size > limit) return Wrong(path, fmt::format("has {} bytes, and may have {}", size, limit));

  Content content{.secret = Secret(size), .state = {.path = path, .facts = FactsOf(facts)}};
  size_t got = 0;
  while (got < size) {
    const ssize_t n = read(fd.get(), content.secret.bytes.data() + got, size - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path);
    if (n == 0) return absl::UnavailableError(fmt::format("{}: is being written just now", path));
    got += static_cast<size_t>(n);
  }
  return content;
}

absl::Status TlsIdentity::ReadCa(const std::string& path, WallTime now) {
  BERTH_ASSIGN_OR_RETURN(Content content, ReadOne(path, kCaLimit, /*secret=*/false));
  BERTH_ASSIGN_OR_RETURN(const auto all,
                         ReadPem(path, content.secret.bytes, PEM_read_bio_X509, X509_free, "certificate"));
  absl::Status dates;
  bool some_valid = false;
  for (const CertificatePtr& one : all) {
    if (X509_check_ca(one.get()) == 0) {
      return Wrong(path, "holds a certificate that is not a certificate authority's");
    }
    X509_STORE_add_cert(store_.get(), one.get());
    absl::Status valid = CheckDates(path, one.get(), now);
    some_valid = some_valid || valid.ok();
    dates.Update(std::move(valid));
  }
  if (!some_valid) return dates;
  files_.push_back(std::move(content.state));
  return absl::OkStatus();
}

absl::Status TlsIdentity::ReadCrl(const std::string& path, WallTime now) {
  if (path.empty()) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(Content content, ReadOne(path, kCrlLimit, /*secret=*/false));
  BERTH_ASSIGN_OR_RETURN(const auto all, ReadPem(path, content.secret.bytes, PEM_read_bio_X509_CRL,
                                                 X509_CRL_free, "revocation list"));
  for (const std::shared_ptr<X509_CRL>& one : all) {
    const ASN1_TIME* ends = X509_CRL_get0_nextUpdate(one.get());
    if (ends != nullptr && now > TimeOf(ends)) {
      // An old list may lack what has been revoked since: no peer could be believed.
      return absl::FailedPreconditionError(fmt::format(
          "{}: the revocation list has run out on {}: a newer one is needed", path, Date(TimeOf(ends))));
    }
    X509_STORE_add_crl(store_.get(), one.get());
  }
  X509_STORE_set_flags(store_.get(), X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
  files_.push_back(std::move(content.state));
  return absl::OkStatus();
}

absl::Status TlsIdentity::ReadCertificate(const std::string& path, WallTime now) {
  BERTH_ASSIGN_OR_RETURN(Content content, ReadOne(path, kCertificateLimit, /*secret=*/false));
  BERTH_ASSIGN_OR_RETURN(const auto all,
                         ReadPem(path, content.secret.bytes, PEM_read_bio_X509, X509_free, "certificate"));
  for (size_t i = 0; i < all.size(); ++i) {
    X509* one = all[i].get();
    BERTH_RETURN_IF_ERROR(CheckDates(path, one, now));
    valid_until_ = std::min(valid_until_, TimeOf(X509_get0_notAfter(one)));
    const int taken = i == 0 ? SSL_CTX_use_certificate(context_.get(), one)
                             : static_cast<int>(SSL_CTX_add1_chain_cert(context_.get(), one));
    if (taken != 1) {
      ERR_clear_error();
      return Wrong(path, "holds a certificate that TLS does not take: too weak a key?");
    }
  }
  files_.push_back(std::move(content.state));
  return absl::OkStatus();
}

absl::Status TlsIdentity::ReadKey(const std::string& path, const std::string& certificate_path) {
  BERTH_ASSIGN_OR_RETURN(Content content, ReadOne(path, kKeyLimit, /*secret=*/true));
  const BioPtr bio = BioOf(content.secret.bytes);
  bool passphrase = false;
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, RefusePassphrase, &passphrase), EVP_PKEY_free);
  ERR_clear_error();
  if (passphrase) return Wrong(path, "the key has a passphrase, which berthd cannot know");
  if (key == nullptr) return Wrong(path, "holds no private key in PEM");
  const X509* certificate = SSL_CTX_get0_certificate(context_.get());
  if (X509_check_private_key(certificate, key.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context_.get(), key.get()) != 1) {
    ERR_clear_error();
    return Wrong(path, fmt::format("the key is not the one of the certificate in {}", certificate_path));
  }
  files_.push_back(std::move(content.state));
  return absl::OkStatus();
}

// Replaces OpenSSL's own check, to check a name, too, and to send no reason to a refused peer.
int VerifyPeer(X509_STORE_CTX* context, void* /*unused*/) {
  const auto* connection =
      static_cast<const SSL*>(X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* check = static_cast<PeerCheck*>(SSL_get_ex_data(connection, ConnectionIndex()));
  if (check != nullptr) {
    PeerChain& chain = check->chain_;
    const STACK_OF(X509)* shown = X509_STORE_CTX_get0_untrusted(context);
    for (int i = 0; i < sk_X509_num(shown); ++i) {
      X509* one = sk_X509_value(shown, i);
      X509_up_ref(one);
      chain.emplace_back(one, X509_free);
    }
    check->result_ = check->identity_->CheckPeer(chain, WallClock::now());
    if (check->result_->ok()) return 1;
  }
  X509_STORE_CTX_set_error(context, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

absl::StatusOr<std::shared_ptr<const TlsIdentity>> TlsIdentity::Load(const TlsFiles& files,
                                                                     std::vector<std::string> schedulers,
                                                                     WallTime now) {
  std::shared_ptr<TlsIdentity> identity(new TlsIdentity());
  identity->schedulers_ = std::move(schedulers);
  identity->store_ = {X509_STORE_new(), X509_STORE_free};
  identity->context_ = {SSL_CTX_new(TLS_client_method()), SSL_CTX_free};
  SSL_CTX* context = identity->context_.get();
  if (context == nullptr || identity->store_ == nullptr) return absl::InternalError("TLS cannot be set up");
  SSL_CTX_set_security_level(context, kSecurityLevel);
  if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_alpn_protos(context, kAlpn.data(), kAlpn.size()) != 0) {
    return absl::InternalError("TLS 1.3 cannot be set up");
  }
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_cert_verify_callback(context, VerifyPeer, nullptr);

  BERTH_RETURN_IF_ERROR(identity->ReadCa(files.ca, now));
  BERTH_RETURN_IF_ERROR(identity->ReadCrl(files.crl, now));
  BERTH_RETURN_IF_ERROR(identity->ReadCertificate(files.certificate, now));
  BERTH_RETURN_IF_ERROR(identity->ReadKey(files.key, files.certificate));
  return identity;
}

bool TlsIdentity::Changed() const {
  return std::ranges::any_of(files_, [](const FileState& file) {
    struct stat facts{};
    return stat(file.path.c_str(), &facts) != 0 || FactsOf(facts) != file.facts;
  });
}

absl::StatusOr<TlsPeer> TlsIdentity::CheckPeer(const PeerChain& chain, WallTime now) const {
  if (chain.empty()) return absl::UnauthenticatedError("the scheduler has shown no certificate");
  X509* leaf = chain.front().get();
  const std::unique_ptr<STACK_OF(X509), void (*)(STACK_OF(X509)*)> between(
      sk_X509_new_null(), [](STACK_OF(X509) * stack) { sk_X509_free(stack); });
  for (const auto& one : chain) sk_X509_push(between.get(), one.get());
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> check(X509_STORE_CTX_new(),
                                                                              X509_STORE_CTX_free);
  if (X509_STORE_CTX_init(check.get(), store_.get(), leaf, between.get()) != 1 ||
      X509_STORE_CTX_set_default(check.get(), "ssl_server") != 1) {
    return absl::InternalError("a certificate cannot be checked");
  }
  X509_VERIFY_PARAM* rules = X509_STORE_CTX_get0_param(check.get());
  X509_VERIFY_PARAM_set_time(rules, WallClock::to_time_t(now));
  X509_VERIFY_PARAM_set_depth(rules, kChainLimit);
  X509_VERIFY_PARAM_set_auth_level(rules, kSecurityLevel);
  const bool believed = X509_verify_cert(check.get()) == 1;
  ERR_clear_error();
  if (!believed) {
    return absl::UnauthenticatedError(
        fmt::format("the scheduler's certificate is refused: {}",
                    X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get()))));
  }

  TlsPeer peer{.name = "", .valid_until = WallTime::max()};
  const STACK_OF(X509)* up_to_ca = X509_STORE_CTX_get0_chain(check.get());
  for (int i = 0; i < sk_X509_num(up_to_ca); ++i) {
    const WallTime ends = TimeOf(X509_get0_notAfter(sk_X509_value(up_to_ca, i)));
    peer.valid_until = std::min(peer.valid_until, ends);
  }
  const std::vector<std::string> names = NamesOf(leaf);
  for (const std::string& expected : schedulers_) {
    const auto same = [&](const std::string& name) { return SameName(name, expected); };
    if (std::ranges::none_of(names, same)) continue;
    peer.name = expected;
    return peer;
  }
  return absl::UnauthenticatedError(
      fmt::format("the scheduler's certificate is for {}, and none of that is in [scheduler] identities",
                  DescribeNames(names)));
}

void PeerCheck::Attach(ssl_st* connection) { SSL_set_ex_data(connection, ConnectionIndex(), this); }

}  // namespace berth
