#include "rpc/uplink/scheduler_dialer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/blocking.h"
#include "base/grpc_stream.h"
#include "base/status.h"
#include "berth/v1/scheduler.grpc.pb.h"  // how gRPC reads and writes these messages
#include "rpc/uplink/dialer.h"

namespace berth {
namespace {

constexpr char kMethod[] = "/berth.v1.SchedulerLink/Connect";
constexpr auto kFilesReadWithin = std::chrono::seconds(10);
constexpr auto kEndsWithin = std::chrono::seconds(1);

class DialledStream final : public LinkStream {
 public:
  DialledStream(asio::any_io_executor executor, SchedulerDialer& dialer,
                std::unique_ptr<LinkConnection> connection, bool by_certificate)
      : dialer_(dialer),
        connection_(std::move(connection)),
        stream_(Stream::Open(std::move(executor), connection_->channel(), kMethod)),
        by_certificate_(by_certificate) {}

  Awaitable<absl::Status> Send(v1::NodeMessage message, TimePoint deadline) override {
    return stream_->Write(std::move(message), deadline);
  }

  Awaitable<absl::StatusOr<v1::SchedulerMessage>> Receive() override {
    auto message = co_await stream_->Read(TimePoint::max());
    if (!message.ok()) co_return message.status();
    if (!*message) co_return absl::UnavailableError("the stream has ended");
    co_return **std::move(message);
  }

  Awaitable<absl::Status> Recheck() override {
    if (!by_certificate_) co_return absl::OkStatus();
    const auto now = co_await dialer_.Identity(Clock::now() + kFilesReadWithin);
    // Files that cannot be read are an operator's mistake in the middle of a change: what was read last
    // counts on, with its dates.
    const std::shared_ptr<const TlsIdentity> identity = now.ok() ? *now : dialer_.last_identity();
    co_return connection_->Recheck(*identity, WallClock::now());
  }

  std::string peer() const override { return connection_->peer_name(); }

  Awaitable<LinkEnd> Close() override {
    absl::Status status = co_await stream_->Finish(Clock::now() + kEndsWithin);
    // The end of a connection is known here before gRPC hears of it.
    const bool said = !connection_->peer_gone();
    // What broke the connection is known here, not to gRPC, and within a moment: both its ends have gone.
    if (absl::IsUnavailable(status) && !said) {
      const absl::Status broken = co_await connection_->Closed();
      if (!broken.ok() && !absl::IsCancelled(broken)) status = broken;
    }
    stream_.reset();
    co_await connection_->Close();
    if (status.ok()) status = absl::UnavailableError("the scheduler has ended the stream");
    co_return LinkEnd{.why = std::move(status), .said = said};
  }

 private:
  using Stream = ClientStream<v1::NodeMessage, v1::SchedulerMessage>;

  SchedulerDialer& dialer_;
  std::unique_ptr<LinkConnection> connection_;
  std::unique_ptr<Stream> stream_;
  bool by_certificate_;
};

}  // namespace

Awaitable<absl::StatusOr<std::unique_ptr<LinkStream>>> SchedulerDialer::Dial(std::string address,
                                                                             TimePoint deadline) {
  const auto known = std::ranges::find(config_.addresses, address, &UplinkAddress::text);
  if (known == config_.addresses.end()) {
    co_return absl::InvalidArgumentError(fmt::format("{} is no address of the scheduler", address));
  }
  const UplinkAddress& to = *known;
  std::shared_ptr<const TlsIdentity> identity;
  if (!to.is_unix()) {
    BERTH_CO_ASSIGN_OR_RETURN(identity, co_await Identity(deadline));
  }
  BERTH_CO_ASSIGN_OR_RETURN(std::unique_ptr<LinkConnection> connection,
                            co_await berth::Dial(to, std::move(identity), deadline));
  co_return std::make_unique<DialledStream>(co_await asio::this_coro::executor, *this, std::move(connection),
                                            !to.is_unix());
}

Awaitable<absl::StatusOr<std::shared_ptr<const TlsIdentity>>> SchedulerDialer::Identity(TimePoint deadline) {
  auto read = [config = config_, known = identity_]() -> absl::StatusOr<std::shared_ptr<const TlsIdentity>> {
    if (known && !known->Changed()) return known;
    return TlsIdentity::Load(config.files, config.identities, WallClock::now());
  };
  BERTH_CO_ASSIGN_OR_RETURN(
      identity_, co_await RunBlocking("read the certificates of the link", std::move(read), deadline));
  co_return identity_;
}

}  // namespace berth
