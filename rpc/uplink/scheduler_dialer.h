// Streams to a scheduler for real: dialled, authenticated, and watched for as long as they stand.
//
// The certificate files are read before each dial where they have changed, and looked at again at each
// Recheck, so that a renewed certificate or a new revocation list takes effect without a restart. A link that
// stands is kept under the certificate that it was made with until that runs out.
//
// Owned by main; loop thread only. Files are read on helper threads.
#pragma once

#include <memory>
#include <string>

#include "rpc/uplink/link_stream.h"
#include "rpc/uplink/tls_identity.h"
#include "rpc/uplink/uplink_config.h"

namespace berth {

class SchedulerDialer final : public LinkDialer {
 public:
  explicit SchedulerDialer(UplinkConfig config) : config_(std::move(config)) {}

  // `address`: the text of one in the config. Errors: dialer.h's, and those of reading the certificate files.
  [[nodiscard]] Awaitable<absl::StatusOr<std::unique_ptr<LinkStream>>> Dial(std::string address,
                                                                            TimePoint deadline) override;

  // This node's identity as the files have it now.
  [[nodiscard]] Awaitable<absl::StatusOr<std::shared_ptr<const TlsIdentity>>> Identity(TimePoint deadline);
  // As they had it when they could last be read; null: never.
  [[nodiscard]] const std::shared_ptr<const TlsIdentity>& last_identity() const { return identity_; }

 private:
  UplinkConfig config_;
  std::shared_ptr<const TlsIdentity> identity_;
};

}  // namespace berth
