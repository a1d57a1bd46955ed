#include "rpc/uplink/dialer.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/grpc_stream.h"
#include "base/sanitizer.h"
#include "base/testing/run_on.h"
#include "base/testing/temp_dir.h"
#include "berth/v1/scheduler.grpc.pb.h"
#include "rpc/uplink/testing/certificates.h"

namespace berth {
namespace {

using berth::v1::NodeMessage;
using berth::v1::SchedulerMessage;
using Stream = ClientStream<NodeMessage, SchedulerMessage>;
using Tcp = asio::ip::tcp;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kConnect[] = "/berth.v1.SchedulerLink/Connect";
constexpr char kScheduler[] = "s1.example";

TimePoint Soon() { return Clock::now() + seconds(10); }

// Answers each heartbeat with its number.
class EchoingScheduler final : public berth::v1::SchedulerLink::CallbackService {
  class Reactor final : public grpc::ServerBidiReactor<NodeMessage, SchedulerMessage> {
   public:
    Reactor() { StartRead(&in_); }
    void OnDone() override { delete this; }
    void OnReadDone(bool ok) override {
      if (!ok) {
        Finish(grpc::Status::OK);
        return;
      }
      out_.mutable_heartbeat_answer()->set_number(in_.heartbeat().number());
      StartWrite(&out_);
    }
    void OnWriteDone(bool ok) override {
      if (ok) {
        StartRead(&in_);
      } else {
        Finish(grpc::Status::CANCELLED);  // the server waits for this when it ends
      }
    }

   private:
    NodeMessage in_;
    SchedulerMessage out_;
  };

  grpc::ServerBidiReactor<NodeMessage, SchedulerMessage>* Connect(
      grpc::CallbackServerContext* /*context*/) override {
    return new Reactor();
  }
};

// A server for raw bytes, on a thread: what no gRPC server would do.
class RawServer {
 public:
  // `serve` gets each connection in turn.
  explicit RawServer(std::function<void(Tcp::socket&)> serve)
      : acceptor_(io_, Tcp::endpoint(asio::ip::address_v4::loopback(), 0)),
        thread_([this, serve = std::move(serve)] {
          boost::system::error_code error;
          while (true) {
            Tcp::socket peer(io_);
            if (acceptor_.accept(peer, error)) return;
            serve(peer);
          }
        }) {}
  ~RawServer() {
    // Wakes the thread out of accept.
    shutdown(acceptor_.native_handle(), SHUT_RDWR);
    thread_.join();
  }

  [[nodiscard]] std::string address() const {
    return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }

 private:
  asio::io_context io_;
  Tcp::acceptor acceptor_;
  std::thread thread_;
};

// Blocks until the peer closes.
void WaitForEnd(Tcp::socket& peer) {
  std::vector<char> bytes(4096);
  boost::system::error_code error;
  while (!error) peer.read_some(asio::buffer(bytes), error);
}

int SelectHttp2(SSL* /*tls*/, const unsigned char** chosen, unsigned char* size,
                const unsigned char* /*offered*/, unsigned int /*offered_size*/, void* /*unused*/) {
  static constexpr unsigned char kHttp2[] = {'h', '2'};
  *chosen = kHttp2;
  *size = sizeof kHttp2;
  return SSL_TLSEXT_ERR_OK;
}

// How a raw server speaks TLS.
asio::ssl::context ServerContext(asio::ssl::context::method method, const TestCertificate& certificate) {
  asio::ssl::context context(method);
  context.use_certificate_chain(asio::buffer(certificate.pem));
  context.use_private_key(asio::buffer(certificate.key_pem), asio::ssl::context::pem);
  return context;
}

// A TLS server of HTTP/2's name that hands its stream to `serve`.
std::function<void(Tcp::socket&)> Http2Server(asio::ssl::context& context,
                                              std::function<void(asio::ssl::stream<Tcp::socket&>&)> serve) {
  SSL_CTX_set_alpn_select_cb(context.native_handle(), SelectHttp2, nullptr);
  return [&context, serve = std::move(serve)](Tcp::socket& peer) {
    asio::ssl::stream<Tcp::socket&> tls(peer, context);
    boost::system::error_code error;
    tls.handshake(asio::ssl::stream_base::server, error);
    if (!error) serve(tls);
  };
}

class DialerTest : public testing::Test {
 protected:
  DialerTest() {
    // When its last channel goes gRPC may wait ten seconds for a poller of its own. Kept for ever, as by
    // berthd.
    static const auto* const channel = new std::shared_ptr<grpc::Channel>(
        grpc::CreateChannel("unix:/nonexistent", grpc::InsecureChannelCredentials()));
    EXPECT_NE(channel, nullptr);
    UseNode(ca_.Issue({.names = {"DNS:node-1"}}));
  }
  ~DialerTest() override {
    if (link_) RunOn(loop_, link_->Close());
    link_.reset();
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
  }

  void UseNode(const TestCertificate& node, const std::string& crl = "") {
    dir_.Write("ca.pem", ca_.pem());
    dir_.Write("node.pem", node.pem);
    dir_.Write("node.key", node.key_pem);
    ASSERT_EQ(chmod(dir_.Path("node.key").c_str(), 0600), 0);
    TlsFiles files{.ca = dir_.Path("ca.pem"),
                   .certificate = dir_.Path("node.pem"),
                   .key = dir_.Path("node.key"),
                   .crl = ""};
    if (!crl.empty()) {
      dir_.Write("crl.pem", crl);
      files.crl = dir_.Path("crl.pem");
    }
    auto identity = TlsIdentity::Load(files, {kScheduler, "spiffe://example/s"}, WallClock::now());
    ASSERT_TRUE(identity.ok()) << identity.status();
    identity_ = *std::move(identity);
  }

  // A scheduler with `certificate`, which believes peers that `believes` has certified.
  void Serve(const TestCertificate& certificate, const TestCa& believes) {
    grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = believes.pem();
    options.pem_key_cert_pairs.push_back({.private_key = certificate.key_pem, .cert_chain = certificate.pem});
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  void Serve(const TestCertificate& certificate) { Serve(certificate, ca_); }
  void ServeNamed(std::vector<std::string> names) { Serve(ca_.Issue({.names = std::move(names)})); }

  [[nodiscard]] absl::Status DialAt(const std::string& address, TimePoint deadline) {
    auto link = RunOn(loop_, Dial(*ParseUplinkAddress(address), identity_, deadline));
    if (!link.ok()) return link.status();
    link_ = *std::move(link);
    return absl::OkStatus();
  }
  [[nodiscard]] absl::Status DialServer() { return DialAt(address_, Soon()); }
  [[nodiscard]] std::string Refusal() {
    const absl::Status status = DialServer();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address_));
    return std::string(status.message());
  }

  // Whether a heartbeat goes to the scheduler and back.
  [[nodiscard]] absl::Status Beat(Stream& stream, uint64_t number) {
    NodeMessage message;
    message.mutable_heartbeat()->set_number(number);
    absl::Status written = RunOn(loop_, stream.Write(message, Soon()));
    if (!written.ok()) return written;
    const auto answer = RunOn(loop_, stream.Read(Soon()));
    if (!answer.ok()) return answer.status();
    if (!answer->has_value()) return absl::UnavailableError("the end");
    EXPECT_EQ((*answer)->heartbeat_answer().number(), number);
    return absl::OkStatus();
  }
  [[nodiscard]] std::unique_ptr<Stream> OpenStream() {
    return Stream::Open(loop_.get_executor(), link_->channel(), kConnect);
  }

  asio::io_context loop_;
  TestCa ca_{"a root"};
  TempDir dir_;
  std::shared_ptr<const TlsIdentity> identity_;
  EchoingScheduler service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::unique_ptr<LinkConnection> link_;
};

TEST_F(DialerTest, ReachesASchedulerAndSpeaksWithIt) {
  ServeNamed({"DNS:other.example", "DNS:S1.example"});
  ASSERT_TRUE(DialServer().ok());
  EXPECT_EQ(link_->peer_name(), kScheduler);
  EXPECT_EQ(link_->address(), address_);
  EXPECT_FALSE(link_->closed());
  const auto stream = OpenStream();
  for (uint64_t number = 1; number <= 100; ++number) ASSERT_TRUE(Beat(*stream, number).ok());
  EXPECT_TRUE(RunOn(loop_, stream->WritesDone(Soon())).ok());
  EXPECT_TRUE(RunOn(loop_, stream->Finish(Soon())).ok());
}

TEST_F(DialerTest, ALargeMessageGoesBothWays) {
  ServeNamed({"DNS:s1.example"});
  ASSERT_TRUE(DialServer().ok());
  const auto stream = OpenStream();
  NodeMessage message;
  message.mutable_heartbeat()->set_number(7);
  message.mutable_hello()->set_node_id(std::string(3 << 20, 'x'));
  EXPECT_TRUE(RunOn(loop_, stream->Write(message, Soon())).ok());
  EXPECT_TRUE(RunOn(loop_, stream->Read(Soon())).ok());
  EXPECT_EQ(RunOn(loop_, stream->Finish(Clock::now())).code(), absl::StatusCode::kCancelled);
}

TEST_F(DialerTest, AUriIsANameToo) {
  ServeNamed({"URI:spiffe://example/s"});
  ASSERT_TRUE(DialServer().ok());
  EXPECT_EQ(link_->peer_name(), "spiffe://example/s");
}

TEST_F(DialerTest, AChainThroughAnotherAuthorityIsBelieved) {
  const TestCa between("between", ca_);
  UseNode(between.Issue({.names = {"DNS:node-1"}}));
  Serve(between.Issue({.names = {"DNS:s1.example"}}));
  ASSERT_TRUE(DialServer().ok());
  EXPECT_TRUE(Beat(*OpenStream(), 1).ok());
}

TEST_F(DialerTest, TheFirstCertificateThatEndsBoundsTheLink) {
  Serve(ca_.Issue({.names = {"DNS:s1.example"}, .valid_to = hours(2)}));
  ASSERT_TRUE(DialServer().ok());
  EXPECT_LE(link_->valid_until() - WallClock::now(), hours(2));
  EXPECT_GT(link_->valid_until() - WallClock::now(), hours(1));
  RunOn(loop_, link_->Close());
  UseNode(ca_.Issue({.names = {"DNS:node-1"}, .valid_to = hours(1)}));
  ASSERT_TRUE(DialServer().ok());
  EXPECT_LE(link_->valid_until() - WallClock::now(), hours(1));
}

// --- FAULTS, row 35: peers that the node does not believe -------------------------------------------------

TEST_F(DialerTest, Fault35ASchedulerOfAnotherNameIsRefused) {
  ServeNamed({"DNS:s2.example", "URI:spiffe://example/S"});
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("is for s2.example, spiffe://example/S"), HasSubstr("identities")));
}

TEST_F(DialerTest, Fault35ACertificateWithoutANameIsRefused) {
  ServeNamed({});
  EXPECT_THAT(Refusal(), HasSubstr("is for no name"));
}

TEST_F(DialerTest, Fault35AWildcardIsNoName) {
  ServeNamed({"DNS:*.example"});
  EXPECT_THAT(Refusal(), HasSubstr("is for *.example"));
}

TEST_F(DialerTest, Fault35AnExpiredCertificateIsRefused) {
  Serve(ca_.Issue({.names = {"DNS:s1.example"}, .valid_from = -hours(3), .valid_to = -hours(1)}));
  EXPECT_THAT(Refusal(), HasSubstr("certificate has expired"));
}

TEST_F(DialerTest, Fault35ACertificateThatIsNotValidYetIsRefused) {
  Serve(ca_.Issue({.names = {"DNS:s1.example"}, .valid_from = hours(1)}));
  EXPECT_THAT(Refusal(), HasSubstr("not yet valid"));
}

TEST_F(DialerTest, Fault35ACertificateOfAForeignAuthorityIsRefused) {
  // By the same name as ours.
  const TestCa foreign("a root");
  Serve(foreign.Issue({.names = {"DNS:s1.example"}}));
  EXPECT_THAT(Refusal(), HasSubstr("the scheduler's certificate is refused"));
}

TEST_F(DialerTest, Fault35ACertificateThatIsNotAServersIsRefused) {
  Serve(ca_.Issue({.names = {"DNS:s1.example"}, .usage = "clientAuth"}));
  EXPECT_THAT(Refusal(), HasSubstr("certificate purpose"));
}

TEST_F(DialerTest, Fault35ARevokedCertificateIsRefused) {
  const TestCertificate scheduler = ca_.Issue({.names = {"DNS:s1.example"}});
  Serve(scheduler);
  UseNode(ca_.Issue({.names = {"DNS:node-1"}}), ca_.Crl({scheduler.serial}));
  EXPECT_THAT(Refusal(), HasSubstr("certificate revoked"));
  UseNode(ca_.Issue({.names = {"DNS:node-1"}}), ca_.Crl({scheduler.serial + 1000}));
  EXPECT_TRUE(DialServer().ok());
}

TEST_F(DialerTest, Fault35AnAuthorityInBetweenThatIsRevokedIsRefused) {
  const TestCa between("between", ca_);
  Serve(between.Issue({.names = {"DNS:s1.example"}}));
  UseNode(ca_.Issue({.names = {"DNS:node-1"}}), ca_.Crl({between.serial()}) + between.Crl({}));
  EXPECT_THAT(Refusal(), HasSubstr("certificate revoked"));
  // A list is needed of each of them.
  UseNode(ca_.Issue({.names = {"DNS:node-1"}}), ca_.Crl({}));
  EXPECT_THAT(Refusal(), HasSubstr("unable to get certificate CRL"));
}

// What the peer hears of a refusal, whatever its reason.
TEST_F(DialerTest, Fault35ARefusedPeerLearnsNothing) {
  const TestCa foreign("a foreign root");
  const std::vector<TestCertificate> refused = {
      foreign.Issue({.names = {"DNS:s1.example"}}), ca_.Issue({.names = {"DNS:s2.example"}}),
      ca_.Issue({.names = {"DNS:s1.example"}, .valid_from = -hours(3), .valid_to = -hours(1)})};
  std::vector<std::string> heard;
  for (const TestCertificate& certificate : refused) {
    asio::ssl::context context = ServerContext(asio::ssl::context::tlsv13_server, certificate);
    const RawServer server([&](Tcp::socket& peer) {
      asio::ssl::stream<Tcp::socket&> tls(peer, context);
      boost::system::error_code error;
      tls.handshake(asio::ssl::stream_base::server, error);
      heard.push_back(error.message());
    });
    EXPECT_EQ(DialAt(server.address(), Soon()).code(), absl::StatusCode::kUnauthenticated);
  }
  EXPECT_THAT(heard, testing::Each(HasSubstr("handshake failure")));
  EXPECT_EQ(heard.size(), refused.size());
}

// --- FAULTS, row 35: who does not believe the node --------------------------------------------------------

TEST_F(DialerTest, Fault35ASchedulerThatDoesNotBelieveTheNodeIsUnderstood) {
  const TestCa foreign("a foreign root");
  const TestCertificate certificate = ca_.Issue({.names = {"DNS:s1.example"}});
  asio::ssl::context context = ServerContext(asio::ssl::context::tlsv13_server, certificate);
  context.add_certificate_authority(asio::buffer(foreign.pem()));
  context.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
  SSL_CTX_set_alpn_select_cb(context.native_handle(), SelectHttp2, nullptr);
  const RawServer server([&](Tcp::socket& peer) {
    asio::ssl::stream<Tcp::socket&> tls(peer, context);
    boost::system::error_code error;
    tls.handshake(asio::ssl::stream_base::server, error);
    WaitForEnd(peer);
  });
  // TLS 1.3 lets a client begin before it knows.
  ASSERT_TRUE(DialAt(server.address(), Soon()).ok());
  const absl::Status why = RunOn(loop_, link_->Closed());
  EXPECT_EQ(why.code(), absl::StatusCode::kUnauthenticated) << why;
  EXPECT_THAT(std::string(why.message()), HasSubstr("refuses this node's certificate"));
}

TEST_F(DialerTest, Fault35AGrpcServerThatDoesNotBelieveTheNodeSaysNothingAndIsUnderstood) {
  const TestCa foreign("a foreign root");
  Serve(ca_.Issue({.names = {"DNS:s1.example"}}), foreign);
  ASSERT_TRUE(DialServer().ok());
  const auto stream = OpenStream();
  EXPECT_FALSE(Beat(*stream, 1).ok());
  const absl::Status why = RunOn(loop_, link_->Closed());
  EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable) << why;
  EXPECT_THAT(std::string(why.message()), HasSubstr("refuses this node's certificate"));
  EXPECT_EQ(RunOn(loop_, stream->Finish(Soon())).code(), absl::StatusCode::kUnavailable);
}

// --- What is no scheduler ---------------------------------------------------------------------------------

TEST_F(DialerTest, NothingBelowTls13IsSpoken) {
  const TestCertificate certificate = ca_.Issue({.names = {"DNS:s1.example"}});
  asio::ssl::context context = ServerContext(asio::ssl::context::tlsv12_server, certificate);
  const RawServer server([&](Tcp::socket& peer) {
    asio::ssl::stream<Tcp::socket&> tls(peer, context);
    boost::system::error_code error;
    tls.handshake(asio::ssl::stream_base::server, error);
  });
  const absl::Status status = DialAt(server.address(), Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version"));
}

TEST_F(DialerTest, AServerWithoutHttp2IsNone) {
  const TestCertificate certificate = ca_.Issue({.names = {"DNS:s1.example"}});
  asio::ssl::context context = ServerContext(asio::ssl::context::tlsv13_server, certificate);
  const RawServer server([&](Tcp::socket& peer) {
    asio::ssl::stream<Tcp::socket&> tls(peer, context);
    boost::system::error_code error;
    tls.handshake(asio::ssl::stream_base::server, error);
    WaitForEnd(peer);
  });
  const absl::Status status = DialAt(server.address(), Soon());
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not speak HTTP/2"));
}

TEST_F(DialerTest, AServerThatSaysNothingHitsTheDeadline) {
  const RawServer server(WaitForEnd);
  const TimePoint deadline = Clock::now() + milliseconds(100);
  EXPECT_EQ(DialAt(server.address(), deadline).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(Clock::now(), deadline);
  EXPECT_LT(Clock::now(), deadline + seconds(5));
}

TEST_F(DialerTest, WhatIsNoTlsIsRefused) {
  const RawServer server([](Tcp::socket& peer) {
    boost::system::error_code error;
    asio::write(peer, asio::buffer(std::string("HTTP/1.1 400 Bad Request\r\n\r\n")), error);
    WaitForEnd(peer);
  });
  EXPECT_EQ(DialAt(server.address(), Soon()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(DialerTest, NobodyThereIsSaidAtOnce) {
  std::string address;
  {
    const RawServer gone(WaitForEnd);
    address = gone.address();
  }
  const absl::Status status = DialAt(address, Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(address), HasSubstr("Connection refused")));
  EXPECT_EQ(DialAt("no-such-host.invalid:1", Soon()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(DialerTest, WithoutAnIdentityNoTlsIsSpoken) {
  identity_ = nullptr;
  EXPECT_EQ(DialAt("127.0.0.1:1", Soon()).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DialerTest, ACancelledDialEndsAtOnceAndLeavesNothing) {
  const RawServer server(WaitForEnd);
  TaskScope scope(loop_.get_executor(), "test");
  const auto dial = [](UplinkAddress address,
                       std::shared_ptr<const TlsIdentity> identity) -> Awaitable<void> {
    const auto link = co_await Dial(std::move(address), std::move(identity), TimePoint::max());
    ADD_FAILURE() << "it came back: " << link.status();
  };
  scope.Spawn("dial", dial(*ParseUplinkAddress(server.address()), identity_));
  loop_.run_for(milliseconds(50));
  RunOn(loop_, scope.Join());
}

// --- The link's life --------------------------------------------------------------------------------------

TEST_F(DialerTest, ASchedulerThatGoesEndsTheLink) {
  ServeNamed({"DNS:s1.example"});
  ASSERT_TRUE(DialServer().ok());
  const auto stream = OpenStream();
  ASSERT_TRUE(Beat(*stream, 1).ok());
  server_->Shutdown(std::chrono::system_clock::now());
  EXPECT_EQ(RunOn(loop_, link_->Closed()).code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(RunOn(loop_, stream->Finish(Soon())).code(), absl::StatusCode::kOk);
}

TEST_F(DialerTest, ACutLinkEndsItsStreamAtOnce) {
  ServeNamed({"DNS:s1.example"});
  ASSERT_TRUE(DialServer().ok());
  const auto stream = OpenStream();
  ASSERT_TRUE(Beat(*stream, 1).ok());
  link_->Cut(absl::UnauthenticatedError("revoked"));
  EXPECT_EQ(RunOn(loop_, link_->Closed()), absl::UnauthenticatedError("revoked"));
  const auto message = RunOn(loop_, stream->Read(Soon()));
  ASSERT_TRUE(message.ok());
  EXPECT_FALSE(message->has_value());
  EXPECT_EQ(RunOn(loop_, stream->Finish(Soon())).code(), absl::StatusCode::kUnavailable);
}

TEST_F(DialerTest, CloseEndsWithinItsTimeAlsoWithAStreamOpen) {
  ServeNamed({"DNS:s1.example"});
  ASSERT_TRUE(DialServer().ok());
  auto stream = OpenStream();
  ASSERT_TRUE(Beat(*stream, 1).ok());
  RunOn(loop_, link_->Close());
  EXPECT_TRUE(link_->closed());
  EXPECT_EQ(link_->channel(), nullptr);
  EXPECT_NE(RunOn(loop_, stream->Finish(Soon())).code(), absl::StatusCode::kOk);
  // Again is nothing.
  RunOn(loop_, link_->Close());
}

TEST_F(DialerTest, CloseEndsWithinItsTimeAlsoOfAPeerThatIsSilent) {
  asio::ssl::context context =
      ServerContext(asio::ssl::context::tlsv13_server, ca_.Issue({.names = {"DNS:s1.example"}}));
  std::atomic<bool> ends = false;
  const RawServer server(
      Http2Server(context, [&](asio::ssl::stream<Tcp::socket&>& /*tls*/) { ends.wait(false); }));
  ASSERT_TRUE(DialAt(server.address(), Soon()).ok());
  const TimePoint start = Clock::now();
  RunOn(loop_, link_->Close());
  EXPECT_LT(Clock::now() - start, seconds(5));
  EXPECT_EQ(RunOn(loop_, link_->Closed()).code(), absl::StatusCode::kCancelled);
  ends = true;
  ends.notify_all();
}

TEST_F(DialerTest, CloseIsForCancelledCoroutinesToo) {
  ServeNamed({"DNS:s1.example"});
  ASSERT_TRUE(DialServer().ok());
  TaskScope scope(loop_.get_executor(), "test");
  const auto hold = [](LinkConnection& link) -> Awaitable<void> {
    co_await asio::this_coro::throw_if_cancelled(false);
    try {
      const absl::Status why = co_await link.Closed();
      ADD_FAILURE() << "not cancelled: " << why;
    } catch (const boost::system::system_error& /*cancelled*/) {
    }
    co_await link.Close();
  };
  scope.Spawn("hold", hold(*link_));
  loop_.poll();
  RunOn(loop_, scope.Join());
  EXPECT_TRUE(link_->closed());
  EXPECT_EQ(link_->channel(), nullptr);
}

TEST_F(DialerTest, RecheckAsksAgainWhetherThePeerIsBelieved) {
  const TestCertificate scheduler = ca_.Issue({.names = {"DNS:s1.example"}, .valid_to = hours(2)});
  Serve(scheduler);
  const TestCertificate node = ca_.Issue({.names = {"DNS:node-1"}});
  UseNode(node, ca_.Crl({}));
  ASSERT_TRUE(DialServer().ok());
  const WallTime now = WallClock::now();
  EXPECT_TRUE(link_->Recheck(*identity_, now).ok());
  const absl::Status later = link_->Recheck(*identity_, now + hours(3));
  EXPECT_EQ(later.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(later.message()), HasSubstr("expired"));
  // A newer list.
  UseNode(node, ca_.Crl({scheduler.serial}));
  EXPECT_THAT(std::string(link_->Recheck(*identity_, now).message()), HasSubstr("certificate revoked"));
  // The node's own, which was renewed in its file, and not in the link.
  RunOn(loop_, link_->Close());
  UseNode(ca_.Issue({.names = {"DNS:node-1"}, .valid_to = hours(1)}));
  ASSERT_TRUE(DialServer().ok());
  UseNode(node);
  EXPECT_EQ(link_->Recheck(*identity_, now + std::chrono::minutes(90)).code(),
            absl::StatusCode::kFailedPrecondition);
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST_F(DialerTest, LinksLeaveNoDescriptorBehind) {
  ServeNamed({"DNS:s1.example"});
  const auto once = [this](bool speak) {
    ASSERT_TRUE(DialServer().ok());
    if (speak) {
      const auto stream = OpenStream();
      ASSERT_TRUE(Beat(*stream, 1).ok());
      link_->Cut(absl::CancelledError("enough"));
      EXPECT_FALSE(RunOn(loop_, stream->Finish(Soon())).ok());
    }
    RunOn(loop_, link_->Close());
    link_.reset();
  };
  // What gRPC makes once.
  once(true);
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) once(i % 2 == 0);
  // gRPC closes the server's ends when it comes to it.
  const TimePoint deadline = Soon();
  loop_.restart();
  while (OpenDescriptors() > before && Clock::now() < deadline) loop_.run_for(milliseconds(10));
  EXPECT_LE(OpenDescriptors(), before);
}

// --- A peer that floods, or does not read -----------------------------------------------------------------

constexpr size_t kMemoryLimit = kAddressSanitizer ? 512U << 20 : 64U << 20;

// What this process holds in memory, in bytes.
size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(DialerTest, Fault36APeerThatFloodsGrowsNoMemory) {
  asio::ssl::context context =
      ServerContext(asio::ssl::context::tlsv13_server, ca_.Issue({.names = {"DNS:s1.example"}}));
  std::atomic<size_t> sent = 0;
  const RawServer server(Http2Server(context, [&](asio::ssl::stream<Tcp::socket&>& tls) {
    // HTTP/2's settings, and then frames of an unknown type, which are to be ignored.
    std::string flood("\0\0\0\4\0\0\0\0\0", 9);
    boost::system::error_code error;
    asio::write(tls, asio::buffer(flood), error);
    flood = std::string("\0\x40\0\x77\0\0\0\0\0", 9) + std::string(16384, 'x');
    while (!error && sent < (256U << 20)) sent += asio::write(tls, asio::buffer(flood), error);
  }));
  ASSERT_TRUE(DialAt(server.address(), Soon()).ok());
  const size_t before = ResidentBytes();
  const auto stream = OpenStream();
  // gRPC may end it before it has seen that much.
  constexpr size_t kEnough = 128U << 20;
  const TimePoint deadline = Soon();
  loop_.restart();
  while (sent < kEnough && !link_->closed() && Clock::now() < deadline) loop_.run_for(milliseconds(10));
  EXPECT_TRUE(sent >= kEnough || link_->closed()) << sent;
  EXPECT_LT(ResidentBytes(), before + kMemoryLimit);
  link_->Cut(absl::CancelledError("enough"));
  EXPECT_FALSE(RunOn(loop_, stream->Finish(Soon())).ok());
}

TEST_F(DialerTest, Fault36APeerThatDoesNotReadGrowsNoMemory) {
  asio::ssl::context context =
      ServerContext(asio::ssl::context::tlsv13_server, ca_.Issue({.names = {"DNS:s1.example"}}));
  std::atomic<bool> ends = false;
  const RawServer server(Http2Server(context, [&](asio::ssl::stream<Tcp::socket&>& tls) {
    // Settings that let everything be sent at once: a window of 2 GiB for a stream, and for the connection.
    std::string settings(
        "\0\0\x06\4\0\0\0\0\0"
        "\0\4\x7f\xff\xff\xff",
        15);
    settings.append(
        "\0\0\4\x08\0\0\0\0\0"
        "\x7f\xff\0\0",
        13);
    boost::system::error_code error;
    asio::write(tls, asio::buffer(settings), error);
    ends.wait(false);
  }));
  ASSERT_TRUE(DialAt(server.address(), Soon()).ok());
  const size_t before = ResidentBytes();
  const auto stream = OpenStream();
  NodeMessage message;
  message.mutable_hello()->set_node_id(std::string(1 << 20, 'x'));
  absl::Status written;
  int taken = 0;
  while (written.ok() && taken < 256) {
    written = RunOn(loop_, stream->Write(message, Clock::now() + milliseconds(500)));
    taken += written.ok() ? 1 : 0;
  }
  EXPECT_EQ(written.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(taken, 64);
  EXPECT_LT(ResidentBytes(), before + kMemoryLimit);
  link_->Cut(absl::CancelledError("enough"));
  EXPECT_FALSE(RunOn(loop_, stream->Finish(Soon())).ok());
  ends = true;
  ends.notify_all();
}

// --- Unix sockets -----------------------------------------------------------------------------------------

TEST_F(DialerTest, AUnixSocketNeedsNoCertificates) {
  grpc::ServerBuilder builder;
  address_ = "unix:" + dir_.Path("s.sock");
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
  builder.RegisterService(&service_);
  server_ = builder.BuildAndStart();
  identity_ = nullptr;
  ASSERT_TRUE(DialServer().ok());
  EXPECT_EQ(link_->peer_name(), "");
  EXPECT_EQ(link_->valid_until(), WallTime::max());
  const auto stream = OpenStream();
  EXPECT_TRUE(Beat(*stream, 1).ok());
  server_->Shutdown(std::chrono::system_clock::now());
  EXPECT_EQ(RunOn(loop_, link_->Closed()).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(RunOn(loop_, stream->Finish(Soon())).ok());
}

TEST_F(DialerTest, NobodyAtAUnixSocketIsSaidAtOnce) {
  EXPECT_EQ(DialAt("unix:" + dir_.Path("none"), Soon()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(DialerTest, Fault35AUnixSocketOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  // The kernel keeps who called listen().
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir_.Path("s.sock");
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(seteuid(65534), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(seteuid(0), 0);
  const absl::Status status = DialAt("unix:" + path, Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("uid 65534"));
  close(fd);
}

}  // namespace
}  // namespace berth
