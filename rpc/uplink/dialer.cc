#include "rpc/uplink/dialer.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/blocking.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

using Tcp = asio::ip::tcp;
using Unix = asio::local::stream_protocol;
using TlsStream = asio::ssl::stream<Tcp::socket>;

// A name may stand for many hosts; of those, so many are tried.
constexpr size_t kEndpoints = 8;

// The kernel finds a dead peer by itself if nothing else does: probes on an idle connection, and a limit for
// data that is not acknowledged.
constexpr int kKeepIdleSeconds = 15;
constexpr int kKeepIntervalSeconds = 5;
constexpr int kKeepProbes = 4;
constexpr int kUserTimeoutMs = 30'000;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

// `work`'s result, or nothing at the deadline, upon which `work` was cancelled. Throws when cancelled.
template <class T>
Awaitable<std::optional<T>> Within(TimePoint deadline, Awaitable<T> work) {
  using asio::experimental::awaitable_operators::operator||;
  asio::steady_timer bound(co_await asio::this_coro::executor, deadline);
  auto first = co_await (std::move(work) || bound.async_wait(kTuple));
  const auto state = co_await asio::this_coro::cancellation_state;
  if (state.cancelled() != asio::cancellation_type::none) {
    throw boost::system::system_error(asio::error::operation_aborted);
  }
  if (first.index() != 0) co_return std::nullopt;
  co_return std::get<0>(std::move(first));
}

absl::Status Unavailable(std::string_view what, const boost::system::error_code& error) {
  return absl::UnavailableError(fmt::format("{}: {}", what, Printable(error.message(), 256)));
}

// An alert by which a peer says that it does not take a certificate (RFC 8446, section 6.2), as OpenSSL
// reports it.
bool RefusesCertificate(const boost::system::error_code& error) {
  if (error.category() != asio::error::get_ssl_category()) return false;
  switch (ERR_GET_REASON(static_cast<unsigned long>(error.value()))) {
    case SSL_AD_REASON_OFFSET + SSL_AD_HANDSHAKE_FAILURE:
    case SSL_AD_REASON_OFFSET + SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_REASON_OFFSET + SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_REASON_OFFSET + SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_REASON_OFFSET + SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_REASON_OFFSET + SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_REASON_OFFSET + SSL_AD_UNKNOWN_CA:
    case SSL_AD_REASON_OFFSET + SSL_AD_ACCESS_DENIED:
    case SSL_AD_REASON_OFFSET + SSL_AD_CERTIFICATE_REQUIRED:
      return true;
    default:
      return false;
  }
}

absl::Status LinkError(const boost::system::error_code& error) {
  if (RefusesCertificate(error)) {
    return absl::UnauthenticatedError(
        fmt::format("the scheduler refuses this node's certificate: {}", Printable(error.message(), 256)));
  }
  return Unavailable("the link to the scheduler", error);
}

absl::StatusOr<size_t> ReadResult(const boost::system::error_code& error, size_t size) {
  // With or without TLS's own end: HTTP/2 says by itself what is whole.
  if (error == asio::error::eof || error == asio::ssl::error::stream_truncated) return 0;
  if (error) return LinkError(error);
  return size;
}

class TlsWire final : public LinkWire {
 public:
  TlsWire(Tcp::socket socket, asio::ssl::context& context, std::shared_ptr<const TlsIdentity> identity)
      : check_(std::move(identity)), stream_(std::move(socket), context) {
    check_.Attach(stream_.native_handle());
  }

  [[nodiscard]] TlsStream& stream() { return stream_; }
  [[nodiscard]] const PeerCheck& check() const { return check_; }

  Awaitable<absl::StatusOr<size_t>> ReadSome(char* data, size_t size) override {
    const auto [error, got] = co_await stream_.async_read_some(asio::buffer(data, size), kTuple);
    co_return ReadResult(error, got);
  }
  Awaitable<absl::Status> WriteAll(const char* data, size_t size) override {
    const auto [error, sent] = co_await asio::async_write(stream_, asio::buffer(data, size), kTuple);
    if (error) co_return LinkError(error);
    co_return absl::OkStatus();
  }
  // Without TLS's own end, as gRPC does it: HTTP/2 says by itself what is whole.
  void EndWrites() override {
    boost::system::error_code ignored;
    (void)stream_.next_layer().shutdown(Tcp::socket::shutdown_send, ignored);
  }
  void Close() override {
    boost::system::error_code ignored;
    (void)stream_.next_layer().close(ignored);
  }

 private:
  PeerCheck check_;
  TlsStream stream_;
};

class UnixWire final : public LinkWire {
 public:
  explicit UnixWire(Unix::socket socket) : socket_(std::move(socket)) {}

  Awaitable<absl::StatusOr<size_t>> ReadSome(char* data, size_t size) override {
    const auto [error, got] = co_await socket_.async_read_some(asio::buffer(data, size), kTuple);
    co_return ReadResult(error, got);
  }
  Awaitable<absl::Status> WriteAll(const char* data, size_t size) override {
    const auto [error, sent] = co_await asio::async_write(socket_, asio::buffer(data, size), kTuple);
    if (error) co_return Unavailable("the link to the scheduler", error);
    co_return absl::OkStatus();
  }
  void EndWrites() override {
    boost::system::error_code ignored;
    (void)socket_.shutdown(Unix::socket::shutdown_send, ignored);
  }
  void Close() override {
    boost::system::error_code ignored;
    (void)socket_.close(ignored);
  }

 private:
  Unix::socket socket_;
};

// Asio's own sockets would be inherited by a child.
template <class Socket>
absl::StatusOr<Socket> OpenSocket(const asio::any_io_executor& executor, int family,
                                  const typename Socket::protocol_type& protocol) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  Socket opened(executor);
  boost::system::error_code error;
  if (opened.assign(protocol, fd.get(), error)) return FromErrorCode(error, "socket");
  (void)fd.Release();
  return opened;
}

void SetTcpOptions(int fd) {
  const auto set = [fd](int level, int option, int value) {
    // Old kernels lack none of these, and none is worth a link.
    (void)setsockopt(fd, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
}

// Blocks for as long as the resolver takes.
absl::StatusOr<std::vector<Tcp::endpoint>> ResolveNow(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failed != 0) {
    // A machine that has nothing but its loopback has addresses, too.
    hints.ai_flags = AI_NUMERICSERV;
    failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  }
  if (failed != 0) return absl::UnavailableError(fmt::format("resolve {}: {}", host, gai_strerror(failed)));
  std::vector<Tcp::endpoint> endpoints;
  for (const addrinfo* one = found; one != nullptr && endpoints.size() < kEndpoints; one = one->ai_next) {
    Tcp::endpoint endpoint;
    if (one->ai_addrlen > endpoint.capacity()) continue;
    std::copy_n(reinterpret_cast<const char*>(one->ai_addr), one->ai_addrlen,
                reinterpret_cast<char*>(endpoint.data()));
    endpoint.resize(one->ai_addrlen);
    endpoints.push_back(endpoint);
  }
  freeaddrinfo(found);
  return endpoints;
}

bool IsAddress(const std::string& host) {
  in6_addr ignored{};
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 || host.find(':') != std::string::npos;
}

Awaitable<absl::StatusOr<Tcp::socket>> ConnectTcp(Tcp::endpoint endpoint, TimePoint deadline) {
  const std::string what = fmt::format("connect to {}", endpoint.address().to_string());
  auto socket = OpenSocket<Tcp::socket>(co_await asio::this_coro::executor, endpoint.protocol().family(),
                                        endpoint.protocol());
  if (!socket.ok()) co_return socket.status();
  SetTcpOptions(socket->native_handle());
  const auto done = co_await Within(deadline, socket->async_connect(endpoint, kTuple));
  if (!done) co_return absl::DeadlineExceededError(fmt::format("{}: not done in time", what));
  if (const auto& error = std::get<0>(*done)) co_return Unavailable(what, error);
  co_return *std::move(socket);
}

// Why a handshake has failed: first what this side thought of the other. What the other thinks of this side's
// certificate is known only after the handshake.
absl::Status HandshakeError(const PeerCheck& check, const boost::system::error_code& error) {
  if (check.result().has_value() && !check.result()->ok()) return check.result()->status();
  return Unavailable("TLS", error);
}

Awaitable<absl::StatusOr<std::unique_ptr<LinkConnection>>> SpeakTls(
    Tcp::socket socket, UplinkAddress address, std::shared_ptr<const TlsIdentity> identity,
    TimePoint deadline) {
  const auto executor = co_await asio::this_coro::executor;
  SSL_CTX_up_ref(identity->context());
  asio::ssl::context context(identity->context());
  auto wire = std::make_unique<TlsWire>(std::move(socket), context, identity);
  SSL* tls = wire->stream().native_handle();
  // A server of many names chooses its certificate by this; addresses are none (RFC 6066, section 3).
  if (!IsAddress(address.host)) SSL_set_tlsext_host_name(tls, address.host.c_str());

  const auto done =
      co_await Within(deadline, wire->stream().async_handshake(asio::ssl::stream_base::client, kTuple));
  if (!done) co_return absl::DeadlineExceededError("TLS: not done in time");
  if (const auto& error = std::get<0>(*done)) co_return HandshakeError(wire->check(), error);
  // OpenSSL would not have come so far without; that it asked is not left to its defaults.
  if (!wire->check().result().has_value()) {
    co_return absl::UnauthenticatedError("the scheduler's certificate was not checked");
  }
  if (!wire->check().result()->ok()) co_return wire->check().result()->status();
  const unsigned char* protocol = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(tls, &protocol, &size);
  if (std::string_view(reinterpret_cast<const char*>(protocol), size) != "h2") {
    co_return absl::UnavailableError("TLS: what listens there does not speak HTTP/2");
  }

  const TlsPeer& peer = **wire->check().result();
  LinkConnection::Peer believed{.address = address.text,
                                .name = peer.name,
                                .chain = wire->check().chain(),
                                .valid_until = std::min(peer.valid_until, identity->valid_until())};
  co_return LinkConnection::Make(executor, std::move(wire), std::move(believed));
}

Awaitable<absl::StatusOr<std::unique_ptr<LinkConnection>>> DialTcp(
    UplinkAddress address, std::shared_ptr<const TlsIdentity> identity, TimePoint deadline) {
  if (identity == nullptr)
    co_return absl::FailedPreconditionError("there is no certificate to speak TLS with");
  auto resolve = [host = address.host, port = address.port] { return ResolveNow(host, port); };
  const auto endpoints =
      co_await RunBlocking(fmt::format("resolve {}", address.host), std::move(resolve), deadline);
  if (!endpoints.ok()) co_return endpoints.status();

  absl::Status why = absl::UnavailableError(fmt::format("resolve {}: it has no address", address.host));
  for (size_t i = 0; i < endpoints->size(); ++i) {
    const TimePoint now = Clock::now();
    const TimePoint share = now + (deadline - now) / static_cast<int>(endpoints->size() - i);
    auto socket = co_await ConnectTcp(endpoints->at(i), share);
    if (!socket.ok()) {
      why = socket.status();
      continue;
    }
    auto link = co_await SpeakTls(*std::move(socket), address, identity, share);
    if (link.ok()) co_return link;
    why = link.status();
  }
  co_return why;
}

// The credentials of the process that made the listening socket. A full backlog looks like success to Asio.
absl::Status CheckUnixPeer(Unix::socket& socket) {
  boost::system::error_code error;
  (void)socket.remote_endpoint(error);
  if (error) return Unavailable("connect", error);
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return ErrnoStatus(errno, "SO_PEERCRED");
  }
  if (peer.uid == 0 || peer.uid == geteuid()) return absl::OkStatus();
  return absl::UnauthenticatedError(
      fmt::format("uid {} serves there, who is neither root nor the user of berthd", peer.uid));
}

Awaitable<absl::StatusOr<std::unique_ptr<LinkConnection>>> DialUnix(UplinkAddress address,
                                                                    TimePoint deadline) {
  const auto executor = co_await asio::this_coro::executor;
  auto socket = OpenSocket<Unix::socket>(executor, AF_UNIX, Unix());
  if (!socket.ok()) co_return socket.status();
  const auto done =
      co_await Within(deadline, socket->async_connect(Unix::endpoint(address.unix_path), kTuple));
  if (!done) co_return absl::DeadlineExceededError("connect: not done in time");
  if (const auto& error = std::get<0>(*done)) co_return Unavailable("connect", error);
  BERTH_CO_RETURN_IF_ERROR(CheckUnixPeer(*socket));
  LinkConnection::Peer peer{.address = address.text};
  co_return LinkConnection::Make(executor, std::make_unique<UnixWire>(*std::move(socket)), std::move(peer));
}

}  // namespace

Awaitable<absl::StatusOr<std::unique_ptr<LinkConnection>>> Dial(UplinkAddress address,
                                                                std::shared_ptr<const TlsIdentity> identity,
                                                                TimePoint deadline) {
  const std::string text = address.text;
  absl::StatusOr<std::unique_ptr<LinkConnection>> link;
  if (address.is_unix()) {
    link = co_await DialUnix(std::move(address), deadline);
  } else {
    link = co_await DialTcp(std::move(address), std::move(identity), deadline);
  }
  if (!link.ok()) co_return Annotate(link.status(), text);
  co_return link;
}

}  // namespace berth
