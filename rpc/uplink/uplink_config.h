// Which scheduler a node belongs to, and how each proves to the other who it is: berthd.toml's [scheduler].
//
// Plain values; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "berth/v1/scheduler.pb.h"

namespace berth {

// Where a scheduler listens: a host and a port, or a Unix socket of this machine.
struct UplinkAddress {
  std::string text;  // as it was written, for people
  std::string host;  // a name, or an address of IPv4 or IPv6 without brackets
  std::string port;  // 1 to 65535
  std::string unix_path;

  [[nodiscard]] bool is_unix() const { return !unix_path.empty(); }
  bool operator==(const UplinkAddress&) const = default;
};

// Reads "host:port", "192.0.2.1:port", "[2001:db8::1]:port" or "unix:/path". INVALID_ARGUMENT says what is
// wrong with it.
[[nodiscard]] absl::StatusOr<UplinkAddress> ParseUplinkAddress(std::string_view text);

// This node's identity and the one that it believes. All but `crl` are needed unless all addresses are Unix
// sockets.
struct TlsFiles {
  std::string ca;           // PEM: the certificate authorities of the scheduler
  std::string certificate;  // PEM: this node's, then those between it and its CA
  std::string key;          // PEM, without a passphrase
  std::string crl;          // PEM: what is revoked, by each CA; empty: nothing is

  bool operator==(const TlsFiles&) const = default;
};

struct UplinkConfig {
  std::vector<UplinkAddress> addresses;  // empty: no scheduler
  // Of the names (DNS or URI) in the certificate of a scheduler one must be among these.
  std::vector<std::string> identities;
  TlsFiles files;
  // RELEASE: volumes that only one writer may have are released (lease_keeper.h).
  v1::LeasePolicy on_lease_expiry = v1::KEEP;
  // Which operations of the scheduler are taken.
  std::set<v1::NodeState::Right> may = {v1::NodeState::VOLUMES};

  [[nodiscard]] bool wanted() const { return !addresses.empty(); }
  bool operator==(const UplinkConfig&) const = default;
};

// How many addresses and identities there may be.
inline constexpr size_t kUplinkAddresses = 16;
inline constexpr size_t kUplinkIdentities = 64;

}  // namespace berth
