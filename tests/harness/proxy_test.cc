#include "tests/harness/proxy.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <optional>

#include "base/clock.h"

namespace berth {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Way = TcpProxy::Way;

// For what is to come; and for what is not.
constexpr timeval kComes{.tv_sec = 10, .tv_usec = 0};
constexpr timeval kDoesNot{.tv_sec = 0, .tv_usec = 100'000};

// A blocking socket with a limit for reads.
class Peer {
 public:
  explicit Peer(tcp::socket socket) : socket_(std::move(socket)) {}

  void Say(const std::string& text) {
    boost::system::error_code error;
    asio::write(socket_, asio::buffer(text), error);
  }
  void SayNoMore() { socket_.shutdown(tcp::socket::shutdown_send); }
  void Close() { socket_.close(); }

  // What comes next, up to `size` bytes; "" at the end; nothing where none comes in time.
  [[nodiscard]] std::optional<std::string> Hear(size_t size, const timeval& within) {
    setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &within, sizeof within);
    std::string text(size, '\0');
    const ssize_t got = recv(socket_.native_handle(), text.data(), size, size > 100 ? 0 : MSG_WAITALL);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (got < 0) return "error: " + std::to_string(errno);
    text.resize(static_cast<size_t>(got));
    return text;
  }
  [[nodiscard]] std::optional<std::string> Hear(size_t size) { return Hear(size, kComes); }

 private:
  tcp::socket socket_;
};

class TcpProxyTest : public testing::Test {
 protected:
  // A client, and the server's end of its connection.
  Peer Connect() {
    tcp::socket socket(io_);
    socket.connect(tcp::endpoint(asio::ip::address_v4::loopback(), proxy_.port()));
    return Peer(std::move(socket));
  }
  Peer Accept() { return Peer(listener_.accept()); }

  const std::string reset_ = "error: " + std::to_string(ECONNRESET);
  asio::io_context io_;
  tcp::acceptor listener_{io_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)};
  TcpProxy proxy_{listener_.local_endpoint().port()};
};

TEST_F(TcpProxyTest, ForwardsBothWaysAndTheEnd) {
  Peer client = Connect();
  Peer server = Accept();
  client.Say("question");
  EXPECT_EQ(server.Hear(8), "question");
  server.Say("answer");
  EXPECT_EQ(client.Hear(6), "answer");
  EXPECT_EQ(proxy_.forwarded(Way::kUp), 8U);
  client.SayNoMore();
  EXPECT_EQ(server.Hear(1), "");
  server.Say("last words");
  EXPECT_EQ(client.Hear(10), "last words");
  server.Close();
  EXPECT_EQ(client.Hear(1), "");
}

TEST_F(TcpProxyTest, ACutResetsBothSidesAndTakesNewConnections) {
  Peer client = Connect();
  Peer server = Accept();
  client.Say("x");
  EXPECT_EQ(server.Hear(1), "x");
  proxy_.Cut();
  EXPECT_EQ(proxy_.connections(), 0U);
  EXPECT_EQ(client.Hear(1), reset_);
  EXPECT_EQ(server.Hear(1), reset_);
  Peer next = Connect();
  Peer next_server = Accept();
  next.Say("y");
  EXPECT_EQ(next_server.Hear(1), "y");
  EXPECT_EQ(proxy_.accepted(), 2U);
}

TEST_F(TcpProxyTest, RefusesWhileItIsTold) {
  proxy_.Refuse(true);
  EXPECT_EQ(Connect().Hear(1), reset_);
  proxy_.Refuse(false);
  Peer client = Connect();
  client.Say("x");
  EXPECT_EQ(Accept().Hear(1), "x");
}

TEST_F(TcpProxyTest, AServerThatIsNotThereIsAReset) {
  listener_.close();
  EXPECT_EQ(Connect().Hear(1), reset_);
}

TEST_F(TcpProxyTest, AStalledWayIsSilentAndGoesOnWhereItWas) {
  Peer client = Connect();
  Peer server = Accept();
  proxy_.Stall(Way::kUp);
  client.Say("one");
  client.Say("two");
  EXPECT_EQ(server.Hear(3, kDoesNot), std::nullopt);
  // The other way goes on.
  server.Say("other");
  EXPECT_EQ(client.Hear(5), "other");
  proxy_.Forward(Way::kUp);
  EXPECT_EQ(server.Hear(6), "onetwo");
}

TEST_F(TcpProxyTest, AStalledWayHidesAnEndToo) {
  Peer client = Connect();
  Peer server = Accept();
  client.Say("x");
  EXPECT_EQ(server.Hear(1), "x");
  proxy_.Stall(Way::kDown);
  server.SayNoMore();
  EXPECT_EQ(client.Hear(1, kDoesNot), std::nullopt);
  proxy_.Forward(Way::kDown);
  EXPECT_EQ(client.Hear(1), "");
}

TEST_F(TcpProxyTest, ADelayHoldsEachPieceAndKeepsTheOrder) {
  Peer client = Connect();
  Peer server = Accept();
  proxy_.Delay(Way::kUp, milliseconds(100));
  const TimePoint said = Clock::now();
  client.Say("one");
  client.Say("two");
  EXPECT_EQ(server.Hear(6), "onetwo");
  EXPECT_GE(Clock::now() - said, milliseconds(100));
}

TEST_F(TcpProxyTest, AFloodGoesAsFastAsItIsReadAndNoFaster) {
  Peer client = Connect();
  Peer server = Accept();
  proxy_.Flood(Way::kDown);
  constexpr size_t kEnough = 4 << 20;
  size_t heard = 0;
  while (heard < kEnough) {
    const auto piece = client.Hear(64 << 10);
    ASSERT_TRUE(piece.has_value());
    ASSERT_FALSE(piece->empty());
    ASSERT_EQ(piece->front(), '\xff');
    heard += piece->size();
  }
  EXPECT_GE(proxy_.forwarded(Way::kDown) + (32 << 10), heard);
  // The other way goes on, and the end is an end.
  client.Say("x");
  EXPECT_EQ(server.Hear(1), "x");
  proxy_.Cut();
}

}  // namespace
}  // namespace berth
