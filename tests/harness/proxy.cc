#include "tests/harness/proxy.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/socket_base.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <future>
#include <utility>
#include <vector>

namespace berth {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr size_t kBufferBytes = 16 << 10;

}  // namespace

// Two sockets, and two directions that do not wait for each other. Kept alive by what it waits for.
struct TcpProxy::Connection : std::enable_shared_from_this<TcpProxy::Connection> {
  // One direction.
  struct Flow {
    explicit Flow(asio::io_context& io) : timer(io), buffer(kBufferBytes) {}
    asio::steady_timer timer;
    std::vector<char> buffer;
    size_t held = 0;       // read, and not written yet
    bool at_end = false;   // nothing more is to be read; not reported yet
    bool reading = false;  // a read waits
    bool busy = false;     // a write or the timer waits
    bool ended = false;
  };

  Connection(TcpProxy& owner, tcp::socket from)
      : proxy(owner), client(std::move(from)), server(owner.io_), flows{Flow(owner.io_), Flow(owner.io_)} {}

  Flow& FlowOf(Way way) { return flows.at(static_cast<size_t>(way)); }
  const Rules& RulesOf(Way way) const { return proxy.rules_.at(static_cast<size_t>(way)); }
  tcp::socket& From(Way way) { return way == Way::kUp ? client : server; }
  tcp::socket& To(Way way) { return way == Way::kUp ? server : client; }

  // The next thing to do this way, if there is one now.
  void Run(Way way) {
    Flow& flow = FlowOf(way);
    if (!connected || flow.ended || flow.busy || RulesOf(way).stalled) return;
    if (RulesOf(way).flooding) {
      Write(way, Garbage());
    } else if (flow.held > 0) {
      Write(way, asio::buffer(flow.buffer.data(), flow.held));
    } else if (flow.at_end) {
      EndOf(way);
    } else if (!flow.reading) {
      Read(way);
    }
  }

  static asio::const_buffer Garbage() {
    static const std::vector<char> bytes(kBufferBytes, '\xff');
    return asio::buffer(bytes);
  }

  void Read(Way way) {
    auto done = [self = shared_from_this(), way](const boost::system::error_code& error, size_t size) {
      Flow& flow = self->FlowOf(way);
      flow.reading = false;
      flow.at_end = static_cast<bool>(error);
      flow.held = size;
      self->Wait(way);
    };
    FlowOf(way).reading = true;
    From(way).async_read_some(asio::buffer(FlowOf(way).buffer), std::move(done));
  }

  // What has been read waits for as long as it is to be delayed.
  void Wait(Way way) {
    Flow& flow = FlowOf(way);
    if (flow.ended || flow.busy || RulesOf(way).delay.count() == 0) {
      Run(way);
      return;
    }
    flow.busy = true;
    flow.timer.expires_after(RulesOf(way).delay);
    flow.timer.async_wait([self = shared_from_this(), way](const boost::system::error_code& /*error*/) {
      self->FlowOf(way).busy = false;
      self->Run(way);
    });
  }

  void Write(Way way, asio::const_buffer bytes) {
    auto done = [self = shared_from_this(), way](const boost::system::error_code& error, size_t size) {
      Flow& flow = self->FlowOf(way);
      flow.busy = false;
      flow.held = 0;
      self->proxy.forwarded_.at(static_cast<size_t>(way)) += size;
      if (error) {
        self->Close();
      } else {
        self->Run(way);
      }
    };
    FlowOf(way).busy = true;
    asio::async_write(To(way), bytes, std::move(done));
  }

  // One side has said everything: the other hears that, and may still speak.
  void EndOf(Way way) {
    FlowOf(way).ended = true;
    boost::system::error_code ignored;
    (void)To(way).shutdown(tcp::socket::shutdown_send, ignored);
    if (FlowOf(Way::kUp).ended && FlowOf(Way::kDown).ended) Close();
  }

  void Close() {
    const auto self = shared_from_this();  // which the set may be the last to hold
    boost::system::error_code ignored;
    (void)client.close(ignored);
    (void)server.close(ignored);
    for (Flow& flow : flows) {
      flow.ended = true;
      flow.timer.cancel();
    }
    proxy.all_.erase(self);
    proxy.connections_ = proxy.all_.size();
  }

  // As Close, and both sides hear a reset, even where something was still to be read.
  void Reset() {
    boost::system::error_code ignored;
    (void)client.set_option(asio::socket_base::linger(true, 0), ignored);
    (void)server.set_option(asio::socket_base::linger(true, 0), ignored);
    Close();
  }

  TcpProxy& proxy;
  tcp::socket client;
  tcp::socket server;
  bool connected = false;
  std::array<Flow, 2> flows;
};

TcpProxy::TcpProxy(uint16_t port)
    : server_port_(port),
      acceptor_(io_, Tcp::endpoint(asio::ip::address_v4::loopback(), 0)),
      port_(acceptor_.local_endpoint().port()) {
  Accept();
  thread_ = std::thread([this] { io_.run(); });
}

TcpProxy::~TcpProxy() {
  Do([this] {
    acceptor_.close();
    while (!all_.empty()) (*all_.begin())->Reset();
  });
  thread_.join();
}

std::string TcpProxy::address() const { return "127.0.0.1:" + std::to_string(port_); }

void TcpProxy::Do(std::function<void()> change) {
  // Shared: the waiter may go on while the other is still leaving set_value.
  const auto done = std::make_shared<std::promise<void>>();
  asio::post(io_, [done, change = std::move(change)] {
    change();
    done->set_value();
  });
  done->get_future().wait();
}

void TcpProxy::Accept() {
  acceptor_.async_accept([this](const boost::system::error_code& error, Tcp::socket client) {
    if (error) return;
    ++accepted_;
    Begin(std::move(client));
    Accept();
  });
}

void TcpProxy::Begin(Tcp::socket client) {
  const auto connection = std::make_shared<Connection>(*this, std::move(client));
  all_.insert(connection);
  connections_ = all_.size();
  if (refusing_) {
    connection->Reset();
    return;
  }
  connection->server.async_connect(Tcp::endpoint(asio::ip::address_v4::loopback(), server_port_),
                                   [connection](const boost::system::error_code& error) {
                                     if (error) {
                                       connection->Reset();
                                     } else {
                                       connection->connected = true;
                                       connection->Run(Way::kUp);
                                       connection->Run(Way::kDown);
                                     }
                                   });
}

void TcpProxy::Cut() {
  Do([this] {
    while (!all_.empty()) (*all_.begin())->Reset();
  });
}

void TcpProxy::Refuse(bool refuse) {
  Do([this, refuse] { refusing_ = refuse; });
}

void TcpProxy::Stall(Way way) {
  Change(way, [](Rules& rules) { rules.stalled = true; });
}

void TcpProxy::Forward(Way way) {
  Change(way, [](Rules& rules) { rules.stalled = false; });
}

void TcpProxy::Delay(Way way, std::chrono::milliseconds by) {
  Change(way, [by](Rules& rules) { rules.delay = by; });
}

void TcpProxy::Flood(Way way) {
  Change(way, [](Rules& rules) { rules.flooding = true; });
}

void TcpProxy::Change(Way way, const std::function<void(Rules&)>& change) {
  Do([this, way, &change] {
    change(rules_.at(static_cast<size_t>(way)));
    // What is run may end, and leave the set.
    const std::vector<std::shared_ptr<Connection>> now(all_.begin(), all_.end());
    for (const auto& connection : now) connection->Run(way);
  });
}

}  // namespace berth
