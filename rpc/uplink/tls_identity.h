// This node's identity, and the schedulers that it believes: its certificate files, read and checked.
//
// Load and Changed read files, and so block: they are for a helper thread (base/blocking.h). An identity
// never changes; a newly read one replaces it, and existing links are checked against it
// (LinkConnection::Recheck). Any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "rpc/uplink/uplink_config.h"

// OpenSSL's; only .cc files include its headers.
struct ssl_st;
struct ssl_ctx_st;
struct x509_st;
struct x509_store_st;
struct x509_store_ctx_st;

namespace berth {

// The certificates that a peer has shown: its own first. Empty: none.
using PeerChain = std::vector<std::shared_ptr<x509_st>>;

// A peer that was believed.
struct TlsPeer {
  std::string name;      // the one of its certificate's names that was expected
  WallTime valid_until;  // the first end of a certificate between it and its CA
};

class TlsIdentity {
 public:
  // Reads all files. `schedulers`: one of these names a scheduler's certificate must hold. INVALID_ARGUMENT
  // where a file does not do, FAILED_PRECONDITION where it does not at `now`, PERMISSION_DENIED where others
  // than its owner could read the key; other codes where it cannot be read. Each error names the file.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<const TlsIdentity>> Load(
      const TlsFiles& files, std::vector<std::string> schedulers, WallTime now);

  // Whether a file is another one than it was when it was read, or cannot be looked at any more.
  [[nodiscard]] bool Changed() const;

  // The first end of this node's own certificate and those that go with it.
  [[nodiscard]] WallTime valid_until() const { return valid_until_; }
  [[nodiscard]] const std::vector<std::string>& schedulers() const { return schedulers_; }

  // Whether a scheduler that shows these certificates is believed at `now`. UNAUTHENTICATED says why not.
  [[nodiscard]] absl::StatusOr<TlsPeer> CheckPeer(const PeerChain& chain, WallTime now) const;

  // For TLS 1.3 and HTTP/2 only, with this node's certificate. Belongs to the identity. A connection of it
  // needs a PeerCheck, or it believes no peer.
  [[nodiscard]] ssl_ctx_st* context() const { return context_.get(); }

 private:
  struct FileState {
    std::string path;
    std::array<int64_t, 7> facts{};  // device, inode, size, times of change
  };
  struct Content;

  TlsIdentity() = default;

  [[nodiscard]] static absl::StatusOr<Content> ReadOne(const std::string& path, size_t limit, bool secret);
  [[nodiscard]] absl::Status ReadCa(const std::string& path, WallTime now);
  [[nodiscard]] absl::Status ReadCrl(const std::string& path, WallTime now);
  [[nodiscard]] absl::Status ReadCertificate(const std::string& path, WallTime now);
  [[nodiscard]] absl::Status ReadKey(const std::string& path, const std::string& certificate_path);

  std::vector<std::string> schedulers_;
  std::vector<FileState> files_;
  std::shared_ptr<ssl_ctx_st> context_;
  std::shared_ptr<x509_store_st> store_;
  WallTime valid_until_ = WallTime::max();
};

// The check of one peer in one handshake. A peer that is refused hears only that the handshake has failed.
// Outlives the connection it is attached to.
class PeerCheck {
 public:
  explicit PeerCheck(std::shared_ptr<const TlsIdentity> identity) : identity_(std::move(identity)) {}
  PeerCheck(const PeerCheck&) = delete;
  PeerCheck& operator=(const PeerCheck&) = delete;

  void Attach(ssl_st* connection);

  // What came of it; nothing before the peer has shown its certificates.
  [[nodiscard]] const std::optional<absl::StatusOr<TlsPeer>>& result() const { return result_; }
  [[nodiscard]] const PeerChain& chain() const { return chain_; }

 private:
  friend int VerifyPeer(x509_store_ctx_st* context, void* unused);

  std::shared_ptr<const TlsIdentity> identity_;
  PeerChain chain_;
  std::optional<absl::StatusOr<TlsPeer>> result_;
};

}  // namespace berth
