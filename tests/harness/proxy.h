// A TCP proxy with faults: between a client and a server it cuts, delays, goes half open and floods.
//
//   client ⇄ proxy.address() ⇄ server
//
// It works on a thread of its own, with a bounded buffer for each connection and direction. The functions may
// be called from any thread; each has taken effect when it returns, on every connection there is and for
// those that come.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>

namespace berth {

class TcpProxy {
 public:
  // Up is what the client says.
  enum class Way { kUp, kDown };

  // Forwards to `port` of 127.0.0.1, which may come later: a connection is made to it for each one taken.
  explicit TcpProxy(uint16_t port);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  [[nodiscard]] uint16_t port() const { return port_; }
  // "127.0.0.1:PORT"
  [[nodiscard]] std::string address() const;

  // Ends every connection with a reset; new ones are taken.
  void Cut();
  // From now on new connections are cut as they come; or not.
  void Refuse(bool refuse);

  // Nothing goes this way any more, not even an end: half open. Forward goes on with what
  // has waited. A piece that is being forwarded still is.
  void Stall(Way way);
  void Forward(Way way);
  // Each piece that comes from now on waits so long before it is forwarded, in order. Zero: it does not.
  void Delay(Way way, std::chrono::milliseconds by);
  // Sends unasked bytes this way, as fast as they are read, until the connection ends. What
  // either side says meanwhile this way is lost.
  void Flood(Way way);

  // Connections that there are; that there have been; bytes that were forwarded (a flood's, too).
  [[nodiscard]] size_t connections() const { return connections_; }
  [[nodiscard]] size_t accepted() const { return accepted_; }
  [[nodiscard]] uint64_t forwarded(Way way) const { return forwarded_.at(static_cast<size_t>(way)); }

 private:
  using Tcp = boost::asio::ip::tcp;
  struct Rules {
    bool stalled = false;
    bool flooding = false;
    std::chrono::milliseconds delay{0};
  };
  struct Connection;

  void Do(std::function<void()> change);
  void Change(Way way, const std::function<void(Rules&)>& change);
  void Accept();
  void Begin(Tcp::socket client);

  // The thread's own, but for what is atomic.
  uint16_t server_port_;
  boost::asio::io_context io_;
  Tcp::acceptor acceptor_;
  uint16_t port_;
  std::set<std::shared_ptr<Connection>> all_;
  std::array<Rules, 2> rules_;
  bool refusing_ = false;
  std::atomic<size_t> connections_ = 0;
  std::atomic<size_t> accepted_ = 0;
  std::array<std::atomic<uint64_t>, 2> forwarded_{};
  std::thread thread_;
};

}  // namespace berth
