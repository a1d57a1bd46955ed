#include "rpc/uplink/link_logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/this_coro.hpp>
#include <limits>
#include <utility>
#include <variant>

#include "base/status.h"
#include "rpc/convert.h"

namespace berth {
namespace {

// For what is read to its end.
constexpr auto kReadWithin = std::chrono::minutes(10);

v1::LogEnd ToEnd(const absl::Status& status) {
  v1::LogEnd end;
  end.set_code(static_cast<int>(status.code()));
  end.set_message(Printable(MessageOf(status)));
  return end;
}

}  // namespace

struct LinkLogs::Followed {
  v1::LogRequest request;
  uint64_t credit = 0;
  bool ended = false;                        // it is not wanted any more
  std::optional<v1::LogLines> at_hand = {};  // to be sent
};

// Gives what a log's reader hands over to the stream: one message at a time, as credit allows.
template <class Response>
class LinkLogs::Writer final : public StreamWriter<Response> {
 public:
  Writer(LinkLogs& logs, Followed& log) : logs_(logs), log_(log) {}

  Awaitable<bool> Send(Response message) override {
    co_await logs_.changed_.WaitUntil([this] { return log_.credit > 0 || log_.ended; }, TimePoint::max());
    if (log_.ended) co_return false;
    --log_.credit;
    log_.at_hand.emplace();
    log_.at_hand->set_number(log_.request.number());
    if constexpr (std::is_same_v<Response, v1::ReadPluginLogResponse>) {
      *log_.at_hand->mutable_plugin() = std::move(message);
    } else {
      *log_.at_hand->mutable_node() = std::move(message);
    }
    logs_.ready_();
    co_await logs_.changed_.WaitUntil([this] { return !log_.at_hand || log_.ended; }, TimePoint::max());
    co_return !log_.ended;
  }

 private:
  LinkLogs& logs_;
  Followed& log_;
};

LinkLogs::LinkLogs(asio::any_io_executor executor, NodeApi& api, std::function<void()> ready)
    : api_(api), ready_(std::move(ready)), changed_(executor), tasks_(executor, "logs of the scheduler") {}

void LinkLogs::Request(const v1::LogRequest& request) {
  const uint64_t number = request.number();
  if (const auto known = followed_.find(number); known != followed_.end()) {
    known->second->ended = true;
    followed_.erase(known);
    changed_.NotifyAll();
  }
  ended_.erase(number);
  if (request.end()) return;
  if (!request.has_plugin() && !request.has_node()) {
    return End(number, absl::InvalidArgumentError("log: must say which"));
  }
  // Readers of logs that are not wanted any more exist a moment longer, and are bounded too.
  if (followed_.size() >= kFollowed || tasks_.size() >= 2 * kFollowed) {
    return End(number, absl::ResourceExhaustedError(fmt::format("{} logs are followed already", kFollowed)));
  }
  auto log = std::make_shared<Followed>(Followed{.request = request, .credit = request.credit()});
  followed_[number] = log;
  tasks_.Spawn(fmt::format("log {}", number), Follow(this, std::move(log)));
}

void LinkLogs::Credit(const v1::LogCredit& credit) {
  const auto log = followed_.find(credit.number());
  if (log == followed_.end()) return;  // It has ended meanwhile.
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
  log->second->credit = std::min(kMost, log->second->credit + credit.messages());
  changed_.NotifyAll();
}

Awaitable<void> LinkLogs::Follow(LinkLogs* self, std::shared_ptr<Followed> log) {
  using namespace asio::experimental::awaitable_operators;
  const uint64_t number = log->request.number();
  auto ended = [log] { return log->ended; };
  const auto outcome =
      co_await (self->Read(log) || self->changed_.WaitUntil(std::move(ended), TimePoint::max()));
  if (log->ended || outcome.index() != 0) co_return;
  self->followed_.erase(number);
  self->End(number, std::get<0>(outcome));
}

Awaitable<absl::Status> LinkLogs::Read(std::shared_ptr<Followed> log) {
  CallInfo call;
  call.method = "LogRequest";
  call.deadline = Clock::now() + kReadWithin;
  if (log->request.has_plugin()) {
    Writer<v1::ReadPluginLogResponse> writer(*this, *log);
    co_return co_await api_.streams.ReadPluginLog(log->request.plugin(), call, writer);
  }
  Writer<v1::WatchLogResponse> writer(*this, *log);
  co_return co_await api_.streams.WatchLog(log->request.node(), call, writer);
}

void LinkLogs::End(uint64_t number, const absl::Status& why) {
  ended_[number] = ToEnd(why);
  ready_();
}

std::optional<v1::LogLines> LinkLogs::NextToSend() {
  auto number = FirstOf(followed_.upper_bound(last_sent_), ended_.upper_bound(last_sent_));
  if (!number) number = FirstOf(followed_.begin(), ended_.begin());
  if (!number) return std::nullopt;
  last_sent_ = *number;
  v1::LogLines lines;
  if (auto end = ended_.extract(*number); !end.empty()) {
    lines.set_number(*number);
    *lines.mutable_end() = std::move(end.mapped());
    return lines;
  }
  lines = *std::exchange(followed_.at(*number)->at_hand, std::nullopt);
  changed_.NotifyAll();
  return lines;
}

std::optional<uint64_t> LinkLogs::FirstOf(FollowedLogs::const_iterator followed,
                                          EndedLogs::const_iterator ended) const {
  while (followed != followed_.end() && !followed->second->at_hand) ++followed;
  const bool any_ended = ended != ended_.end();
  if (followed != followed_.end() && !(any_ended && ended->first < followed->first)) return followed->first;
  return any_ended ? std::optional(ended->first) : std::nullopt;
}

bool LinkLogs::anything_to_send() const {
  return !ended_.empty() ||
         std::ranges::any_of(followed_, [](const auto& entry) { return entry.second->at_hand.has_value(); });
}

}  // namespace berth
