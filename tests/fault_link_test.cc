// FAULTS, rows 30 and 36: a link to the scheduler that is cut, slow, half open or flapping, and a scheduler,
// or what sits in its place, that speaks garbage or floods. The node works on, holds no more for it, and
// takes the link up again where it stood.
#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/sanitizer.h"
#include "tests/harness/link_test.h"

namespace berth {
namespace {

namespace asio = boost::asio;

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using Tcp = asio::ip::tcp;
using Way = TcpProxy::Way;

// How much more berthd may have had in memory during a flood, and hold after many changes. AddressSanitizer
// keeps what has been freed.
constexpr int64_t kFloodLimit = (kAddressSanitizer ? 512 : 24) * kMiB;
constexpr int64_t kHeldLimit = (kAddressSanitizer ? 512 : 4) * kMiB;

class FaultLinkTest : public LinkTest {
 protected:
  void WaitDialling() {
    WaitFor("the node to have lost its scheduler",
            [this] { return Link().state() == v1::LinkStatus::DIALLING; });
  }
  void ExpectDone(uint64_t id) {
    const v1::OperationResult result = scheduler().WaitResult(kNode, id);
    EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
  }
  // How much more berthd has had in memory since `before` (PeakBytes).
  int64_t PeakGrowth(int64_t before) { return PeakBytes(BerthdPid()) - before; }
};

// --- Row 30: cut, slow, half open, flapping
// -----------------------------------------------------------------

TEST_F(FaultLinkTest, Fault30ALinkThatIsCutComesBackAndWhatWasAskedMeanwhileIsDoneOnce) {
  StartLinked();
  const std::string volume = CreateVolume("kept");
  const std::string other = CreateVolume("asked");
  const std::string target = PublishFromAfar(volume);
  const size_t full = Told().full;
  proxy().Refuse(true);
  proxy().Cut();
  WaitDialling();
  const uint64_t id = Ask(Publishing(other, "web"));
  const size_t accepted = proxy().accepted();
  ExpectServed("meanwhile");
  WaitFor("the node to have tried again", [&] { return proxy().accepted() > accepted; });
  EXPECT_EQ(MountsAt(target), 1);
  EXPECT_EQ(Calls("NodePublishVolume", other), 0);
  proxy().Refuse(false);
  ExpectDone(id);
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
  EXPECT_EQ(Calls("NodePublishVolume", other), 1);
  // It went on where the scheduler stood, and was reported once.
  EXPECT_EQ(WaitLinked(2).full, full);
  EXPECT_EQ(Events("scheduler.lost").size(), 1U);
  EXPECT_EQ(Events("scheduler.connected").size(), 2U);
}

TEST_F(FaultLinkTest, Fault30ASlowLinkStandsAndDoesNothingTwice) {
  StartLinked();
  proxy().Delay(Way::kUp, milliseconds(300));
  proxy().Delay(Way::kDown, milliseconds(300));
  const std::string volume = CreateVolume("slow");
  const std::string target = PublishFromAfar(volume);
  ExpectServed("meanwhile");
  const uint64_t heartbeats = Told().heartbeats;
  scheduler().WaitNode(kNode, "more heartbeats",
                       [&](const TestScheduler::Node& node) { return node.heartbeats >= heartbeats + 5; });
  EXPECT_EQ(MountsAt(target), 1);
  UnpublishFromAfar(volume);
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
  EXPECT_EQ(Calls("NodeUnpublishVolume", volume), 1);
  EXPECT_EQ(Told().streams, 1U);
  EXPECT_EQ(Link().lease(), v1::LEASE_VALID);
}

TEST_F(FaultLinkTest, Fault30ALinkThatIsHalfOpenDownwardsIsLeft) {
  StartLinked();
  const std::string volume = CreateVolume("half-open");
  proxy().Stall(Way::kDown);
  // It never gets there on this stream.
  const uint64_t id = Ask(Publishing(volume, "web"));
  ExpectServed("meanwhile");
  WaitLinkError("has not been heard for");
  EXPECT_EQ(Calls("NodePublishVolume", volume), 0);
  proxy().Forward(Way::kDown);
  ExpectDone(id);
  WaitLinked(2);
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
}

TEST_F(FaultLinkTest, Fault30ALinkThatIsHalfOpenUpwardsIsLeftAndItsResultsAreToldOnTheNext) {
  StartLinked();
  const std::string volume = CreateVolume("half-open");
  proxy().Stall(Way::kUp);
  const uint64_t id = Ask(Publishing(volume, "web"));
  WaitVolume(volume, "published", [](const v1::Volume& known) { return known.state() == v1::PUBLISHED; });
  EXPECT_FALSE(Told().results.contains(id));
  ExpectServed("meanwhile");
  WaitLinkError("has not been heard for");
  proxy().Forward(Way::kUp);
  ExpectDone(id);
  WaitLinked(2);
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
}

TEST_F(FaultLinkTest, Fault30AFlappingLinkLeaksNothingAndDoesNothingTwice) {
  constexpr size_t kCuts = 30;
  StartScheduler();
  // One after the other they are dialled without a pause.
  StartLinked(std::vector<std::string>(16, proxy().address()));
  const pid_t berthd = BerthdPid();
  std::vector<std::string> volumes;
  for (size_t i = 0; i < kCuts / 3; ++i) volumes.push_back(CreateVolume("flapping-" + std::to_string(i)));
  proxy().Cut();
  WaitLinked(2);
  const size_t full = Told().full;
  const size_t descriptors = Descriptors(berthd);
  const int64_t memory = PrivateDirtyBytes(berthd);
  std::vector<uint64_t> asked;
  for (size_t i = 0; i < kCuts; ++i) {
    if (i % 3 == 0) asked.push_back(Ask(Publishing(volumes[i / 3], "web")));
    proxy().Cut();
    WaitLinked(3 + i);
  }
  for (const uint64_t id : asked) ExpectDone(id);
  for (const std::string& volume : volumes) EXPECT_EQ(Calls("NodePublishVolume", volume), 1) << volume;
  EXPECT_EQ(Told().full, full);
  WaitFor("the old links' descriptors to be closed", [&] { return Descriptors(berthd) <= descriptors; });
  EXPECT_LT(PrivateDirtyBytes(berthd), memory + kHeldLimit);
  ExpectServed("afterwards");
}

TEST_F(FaultLinkTest, Fault30AThousandChangesWhileTheSchedulerIsAwayCostNoMemoryAndAreToldAsOne) {
  StartLinked();
  v1::CreateVolumeRequest creation;
  creation.set_name("busy");
  (*creation.mutable_parameters())["kind"] = "directory";
  v1::PublishVolumeRequest use;
  use.set_plugin_id("hostpath");
  use.set_volume_id(node_.CreateVolume(creation));
  // They stay, and make each report of the volume a long one: a node that kept every report would show it.
  constexpr int kStanding = 40;
  for (int i = 0; i < kStanding; ++i) {
    use.set_consumer(std::to_string(i) + std::string(900, 'c'));
    node_.Publish(use);
  }
  use.set_consumer("busy");
  // Each makes it publish, published, unpublish and unpublished.
  const auto change = [&](int times) {
    for (int i = 0; i < times; ++i) {
      node_.Publish(use);
      node_.Unpublish(use.volume_id(), use.consumer());
    }
  };
  proxy().Refuse(true);
  proxy().Cut();
  WaitDialling();
  const size_t told = Told().state_bytes;
  const size_t full = Told().full;
  change(50);  // What is made once.
  const pid_t berthd = BerthdPid();
  const int64_t memory = PrivateDirtyBytes(berthd);
  change(250);
  node_.Publish(use);
  const int64_t held = PrivateDirtyBytes(berthd) - memory;
  EXPECT_LT(held, kHeldLimit);
  proxy().Refuse(false);
  const TestScheduler::Node node = WaitLinked(2);
  const v1::Volume& known = node.volumes.at({"hostpath", use.volume_id()});
  EXPECT_EQ(known.publications_size(), kStanding + 1);
  EXPECT_LT(node.state_bytes - told, 2 * known.ByteSizeLong());
  EXPECT_EQ(node.full, full);
  for (const v1::Publication& publication : known.publications()) {
    node_.Unpublish(use.volume_id(), publication.consumer());
  }
}

TEST_F(FaultLinkTest, Fault30ASchedulerThatHasLostItsMemoryIsToldEverything) {
  StartLinked();
  const std::string volume = CreateVolume("kept");
  const std::string target = PublishFromAfar(volume);
  StopScheduler();
  WaitDialling();
  ExpectServed("meanwhile");
  EXPECT_EQ(MountsAt(target), 1);
  StartScheduler({.epoch = 2});
  const TestScheduler::Node node = WaitLinked();
  EXPECT_EQ(node.full, 1U);
  EXPECT_EQ(node.hello.lease_epoch(), 1U);
  EXPECT_EQ(node.volumes.at({"fault", volume}).state(), v1::PUBLISHED);
  EXPECT_TRUE(node.plugins.contains("hostpath"));
  UnpublishFromAfar(volume);
  EXPECT_EQ(MountsAt(target), 0);
}

// --- Row 36: garbage and floods from where the scheduler should be
// -------------------------------------------

// A server for raw bytes, on a thread. `serve` has each connection in turn, and ends when asked to.
class RawServer {
 public:
  using Ends = std::atomic<bool>;

  explicit RawServer(std::function<void(Tcp::socket&, const Ends&)> serve)
      : acceptor_(io_, Tcp::endpoint(asio::ip::address_v4::loopback(), 0)),
        thread_([this, serve = std::move(serve)] {
          boost::system::error_code error;
          while (true) {
            Tcp::socket peer(io_);
            if (acceptor_.accept(peer, error)) return;
            ++accepted_;
            serve(peer, ends_);
          }
        }) {}
  ~RawServer() {
    ends_ = true;
    // Wakes the thread out of accept.
    shutdown(acceptor_.native_handle(), SHUT_RDWR);
    thread_.join();
  }
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;

  [[nodiscard]] std::string address() const {
    return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }
  [[nodiscard]] size_t accepted() const { return accepted_; }

 private:
  Ends ends_ = false;
  std::atomic<size_t> accepted_ = 0;
  asio::io_context io_;
  Tcp::acceptor acceptor_;
  std::thread thread_;
};

TEST_F(FaultLinkTest, Fault36ALinkThatIsFloodedWithGarbageEndsAndTheNextAddressIsTaken) {
  StartScheduler();
  StartLinked({proxy().address(), SchedulerAddress()});
  const int64_t memory = PeakBytes(BerthdPid());
  const std::string volume = CreateVolume("flooded");
  proxy().Flood(Way::kDown);
  WaitLinked(2);
  EXPECT_EQ(Link().address(), SchedulerAddress());
  const std::string target = PublishFromAfar(volume);
  EXPECT_EQ(MountsAt(target), 1);
  ExpectServed("afterwards");
  EXPECT_LT(PeakGrowth(memory), kFloodLimit);
}

TEST_F(FaultLinkTest, Fault36WhatIsNoSchedulerIsLeftForOneThatIs) {
  StartScheduler();
  const RawServer polite([](Tcp::socket& peer, const RawServer::Ends& /*ends*/) {
    boost::system::error_code error;
    asio::write(peer, asio::buffer(std::string("HTTP/1.1 400 Bad Request\r\n\r\n")), error);
  });
  const RawServer loud([](Tcp::socket& peer, const RawServer::Ends& ends) {
    const std::string garbage(64 << 10, '\xff');
    boost::system::error_code error;
    while (!error && !ends) asio::write(peer, asio::buffer(garbage), error);
  });
  StartLinked({polite.address(), loud.address(), SchedulerAddress()});
  EXPECT_EQ(Link().address(), SchedulerAddress());
  EXPECT_GE(polite.accepted(), 1U);
  EXPECT_GE(loud.accepted(), 1U);
  ExpectServed("meanwhile");
}

TEST_F(FaultLinkTest, Fault36AHandshakeThatComesByteByByteHoldsUpNobodyElse) {
  StartScheduler();
  std::atomic<bool> enough = false;
  const auto drip = [&enough](Tcp::socket& peer, const RawServer::Ends& ends) {
    // A TLS record of the longest kind that never gets there.
    std::string record("\x16\x03\x03\x40\x00\x02", 6);
    boost::system::error_code error;
    for (size_t i = 0; !error && !ends && !enough; ++i) {
      asio::write(peer, asio::buffer(i < record.size() ? &record[i] : "\0", 1), error);
      asio::steady_timer(peer.get_executor(), milliseconds(20)).wait();
    }
  };
  const RawServer slow(drip);
  StartDialling({slow.address(), SchedulerAddress()});
  WaitFor("the slow one to be dialled", [&] { return slow.accepted() > 0; });
  EXPECT_EQ(Link().address(), slow.address());
  ExpectServed("meanwhile");
  EXPECT_EQ(Link().address(), slow.address());
  enough = true;
  WaitLinked();
}

int ChooseHttp2(SSL* /*tls*/, const unsigned char** chosen, unsigned char* size,
                const unsigned char* /*offered*/, unsigned int /*offered_size*/, void* /*unused*/) {
  static constexpr unsigned char kHttp2[] = {'h', '2'};
  *chosen = kHttp2;
  *size = sizeof kHttp2;
  return SSL_TLSEXT_ERR_OK;
}

TEST_F(FaultLinkTest, Fault36GarbageFromWhoHasTheRightCertificateIsLeft) {
  StartScheduler();
  const TestCertificate certificate = SchedulerCertificate();
  asio::ssl::context context(asio::ssl::context::tlsv13_server);
  context.use_certificate_chain(asio::buffer(certificate.pem));
  context.use_private_key(asio::buffer(certificate.key_pem), asio::ssl::context::pem);
  SSL_CTX_set_alpn_select_cb(context.native_handle(), ChooseHttp2, nullptr);
  const RawServer loud([&context](Tcp::socket& peer, const RawServer::Ends& ends) {
    asio::ssl::stream<Tcp::socket&> tls(peer, context);
    boost::system::error_code error;
    tls.handshake(asio::ssl::stream_base::server, error);
    const std::string garbage(64 << 10, '\xff');
    while (!error && !ends) asio::write(tls, asio::buffer(garbage), error);
  });
  StartLinked({loud.address(), SchedulerAddress()});
  EXPECT_GE(loud.accepted(), 1U);
  EXPECT_EQ(Link().address(), SchedulerAddress());
  ExpectServed("meanwhile");
}

// A scheduler that says what none should: something else on each stream.
class RudeScheduler final : public v1::SchedulerLink::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::SchedulerMessage, v1::NodeMessage>;

  RudeScheduler(const std::shared_ptr<grpc::ServerCredentials>& credentials,
                std::vector<std::function<void(Stream&)>> says)
      : says_(std::move(says)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
    // It takes no more ahead than it has to.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~RudeScheduler() override { server_->Shutdown(std::chrono::system_clock::now()); }

  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] size_t streams() const { return streams_; }

 private:
  grpc::Status Connect(grpc::ServerContext* /*context*/, Stream* stream) override {
    const size_t number = streams_++;
    says_[number % says_.size()](*stream);
    // Until the node has enough of it.
    v1::NodeMessage ignored;
    while (stream->Read(&ignored)) {
    }
    return grpc::Status::OK;
  }

  std::vector<std::function<void(Stream&)>> says_;
  std::atomic<size_t> streams_ = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

v1::SchedulerMessage Greeting() {
  v1::SchedulerMessage message;
  message.mutable_welcome()->mutable_protocol()->set_major(1);
  message.mutable_welcome()->set_cluster_id("test");
  return message;
}

// So many bytes more, of a scheduler that is newer by far.
void Pad(google::protobuf::Message& message, size_t bytes) {
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(1000, std::string(bytes, 'x'));
}

v1::SchedulerMessage UnknownMessage(size_t bytes) {
  v1::SchedulerMessage message;
  Pad(message, bytes);
  return message;
}

TEST_F(FaultLinkTest, Fault36ASchedulerThatBreaksTheRulesIsLeft) {
  StartScheduler();
  using Stream = RudeScheduler::Stream;
  v1::SchedulerMessage operation;
  *operation.mutable_operation() = Publishing("any", "web");
  operation.mutable_operation()->set_id(1);
  const RudeScheduler rude(Credentials(SchedulerCertificate(), ca_),
                           {[&](Stream& stream) { stream.Write(operation); },
                            [](Stream& stream) {
                              stream.Write(Greeting());
                              stream.Write(Greeting());
                            },
                            [](Stream& stream) {
                              v1::SchedulerMessage long_name = Greeting();
                              long_name.mutable_welcome()->set_cluster_id(std::string(1 << 20, 'x'));
                              stream.Write(long_name);
                            },
                            [](Stream& stream) {
                              stream.Write(Greeting());
                              stream.Write(UnknownMessage(5 << 20));
                            }});
  std::vector<std::string> addresses(4, rude.address());
  addresses.push_back(SchedulerAddress());
  StartLinked(addresses);
  EXPECT_EQ(rude.streams(), 4U);
  EXPECT_FALSE(VolumeOf("any").has_value());
  std::string told;
  for (const v1::Event& event : Events()) told += event.message() + "\n";
  EXPECT_THAT(told, HasSubstr("first message is not Welcome"));
  EXPECT_THAT(told, HasSubstr("said Welcome twice"));
  EXPECT_THAT(told, HasSubstr("message larger than max"));
  ExpectServed("meanwhile");
}

TEST_F(FaultLinkTest, Fault36AMessageThatIsTooLongEndsTheLinkAndNothingElse) {
  StartLinked();
  const std::string volume = CreateVolume("kept");
  const std::string target = PublishFromAfar(volume);
  scheduler().Send(kNode, UnknownMessage(8 << 20));
  WaitLinked(2);
  EXPECT_THAT(Events("scheduler.lost").at(0).message(), HasSubstr("vs. 4194304"));
  EXPECT_EQ(MountsAt(target), 1);
  UnpublishFromAfar(volume);
}

TEST_F(FaultLinkTest, Fault36MessagesThatTheNodeDoesNotKnowAreIgnoredHoweverMany) {
  StartLinked();
  const int64_t memory = PeakBytes(BerthdPid());
  const v1::SchedulerMessage unknown = UnknownMessage(1 << 20);
  for (int i = 0; i < 128; ++i) scheduler().Send(kNode, unknown);
  const std::string volume = CreateVolume("behind");
  PublishFromAfar(volume);
  UnpublishFromAfar(volume);
  ExpectServed("meanwhile");
  EXPECT_EQ(Told().streams, 1U);
  EXPECT_LT(PeakGrowth(memory), kFloodLimit);
}

TEST_F(FaultLinkTest, Fault36MoreOperationsThanThereMayBeAreRefusedAndHoldUpNobody) {
  constexpr uint64_t kOperations = 6000;
  StartLinked();
  const int64_t memory = PeakBytes(BerthdPid());
  // Nothing is acknowledged, so results pile up to where it ends.
  scheduler().AcknowledgeResults(false);
  v1::SchedulerMessage message;
  v1::Operation& operation = *message.mutable_operation();
  operation.set_lease_epoch(1);
  operation.mutable_explain()->set_plugin_id("fault");
  operation.mutable_explain()->set_volume_id("unknown");
  Pad(operation, 8 << 10);  // Of all together there is more than the node may hold.
  for (uint64_t id = 1; id <= kOperations; ++id) {
    operation.set_id(id);
    scheduler().Send(kNode, message);
  }
  ExpectServed("meanwhile");
  const TestScheduler::Node node = scheduler().WaitNode(
      kNode, "an answer to each",
      [](const TestScheduler::Node& known) { return known.results.size() >= kOperations; });
  const auto refused = std::ranges::count_if(
      node.results, [](const auto& result) { return result.second.refusal() == v1::TOO_MANY; });
  // Those that ran when the last place for a result was taken have theirs, too.
  EXPECT_GE(refused, static_cast<int64_t>(kOperations - 4096 - 1024));
  EXPECT_EQ(node.streams, 1U);
  EXPECT_LT(PeakGrowth(memory), kFloodLimit);
  // Once it has taken what there is, it goes on.
  scheduler().AcknowledgeResults(true);
  v1::SchedulerMessage settled;
  settled.mutable_acknowledge()->set_settled_below(kOperations + 1);
  scheduler().Send(kNode, settled);
  const std::string volume = CreateVolume("afterwards");
  v1::Operation publish = Publishing(volume, "web");
  publish.set_id(kOperations + 1);
  ExpectDone(Ask(publish));
}

TEST_F(FaultLinkTest, Fault36ASchedulerThatAsksAndDoesNotListenIsNotReadOnWithoutEnd) {
  constexpr uint64_t kOperations = 50'000;
  StartScheduler();
  std::atomic<uint64_t> taken = 0;
  auto deaf = std::make_unique<RudeScheduler>(
      Credentials(SchedulerCertificate(), ca_),
      std::vector<std::function<void(RudeScheduler::Stream&)>>{[&](RudeScheduler::Stream& stream) {
        stream.Write(Greeting());
        // Each is refused, and the refusal waits to be heard.
        v1::SchedulerMessage message;
        *message.mutable_operation() = Publishing(std::string(2048, 'v'), "web");
        message.mutable_operation()->set_lease_epoch(99);
        for (uint64_t id = 1; id <= kOperations; ++id) {
          message.mutable_operation()->set_id(id);
          if (!stream.Write(message)) return;
          taken = id;
        }
      }});
  StartDialling({deaf->address(), SchedulerAddress()});
  uint64_t before = 0;
  auto changed = std::chrono::steady_clock::now();
  WaitFor("nothing more to be taken", [&] {
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(before, taken) != before) changed = now;
    return before > 0 && now - changed > seconds(1);
  });
  EXPECT_LT(before, kOperations / 2);
  ExpectServed("meanwhile");
  deaf.reset();
  WaitLinked();
}

TEST_F(FaultLinkTest, Fault36FloodsOfEverythingElseAreTakenAndHoldUpNobody) {
  constexpr uint64_t kEach = 5000;
  constexpr uint64_t kBurst = 500;
  // Of each kind there is more than the node may hold of all.
  constexpr size_t kPadding = 8 << 10;
  constexpr uint64_t kLogs = 16;
  StartLinked();
  const int64_t memory = PeakBytes(BerthdPid());
  for (uint64_t number = 1; number <= kEach; ++number) {
    v1::SchedulerMessage log;
    log.mutable_log_request()->set_number(number);
    log.mutable_log_request()->mutable_plugin()->set_id("fault");
    log.mutable_log_request()->mutable_plugin()->set_follow(true);
    log.mutable_log_request()->set_credit(1);
    Pad(*log.mutable_log_request(), kPadding);
    scheduler().Send(kNode, log);
    v1::SchedulerMessage credit;
    credit.mutable_log_credit()->set_number(number);
    credit.mutable_log_credit()->set_messages(1U << 31);
    Pad(*credit.mutable_log_credit(), kPadding);
    scheduler().Send(kNode, credit);
    v1::SchedulerMessage cancel;
    cancel.mutable_cancel()->set_operation_id(number);
    Pad(*cancel.mutable_cancel(), kPadding);
    scheduler().Send(kNode, cancel);
    v1::SchedulerMessage acknowledge;
    for (uint64_t i = 0; i < 10; ++i) acknowledge.mutable_acknowledge()->add_operation_ids((number * 10) + i);
    acknowledge.mutable_acknowledge()->add_forced_releases(number);
    acknowledge.mutable_acknowledge()->add_ended_consumers(number);
    Pad(*acknowledge.mutable_acknowledge(), kPadding);
    scheduler().Send(kNode, acknowledge);
    v1::SchedulerMessage answer;
    answer.mutable_answer()->set_number(number);
    answer.mutable_answer()->set_message(std::string(kPadding, 'x'));
    scheduler().Send(kNode, answer);
    if (number % kBurst != 0) continue;
    const TestScheduler::Node node =
        scheduler().WaitNode(kNode, "each log to be refused but those that may be followed",
                             [&](const TestScheduler::Node& known) {
                               return std::ranges::count_if(known.logs, &v1::LogLines::has_end) >=
                                      static_cast<int64_t>(number - kLogs);
                             });
    for (const v1::LogLines& lines : node.logs) {
      if (lines.has_end()) EXPECT_EQ(lines.end().code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    }
  }
  ExpectServed("meanwhile");
  const std::string volume = CreateVolume("behind");
  PublishFromAfar(volume);
  UnpublishFromAfar(volume);
  EXPECT_EQ(Told().streams, 1U);
  EXPECT_LT(PeakGrowth(memory), kFloodLimit);
}

}  // namespace
}  // namespace berth
