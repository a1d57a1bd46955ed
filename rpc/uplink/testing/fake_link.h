// For tests only: a stream to a scheduler in memory, played from the scheduler's side; with a lease and rows.
// Loop thread only.
#pragma once

#include <absl/status/statusor.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/task_scope.h"
#include "rpc/uplink/link_lease.h"
#include "rpc/uplink/link_rows.h"
#include "rpc/uplink/link_stream.h"

namespace berth {

// What both ends of a stream see. The test holds it for longer than the node's end.
struct FakeWire {
  explicit FakeWire(asio::any_io_executor executor) : changed(std::move(executor)) {}

  std::vector<v1::NodeMessage> sent;  // by the node
  std::deque<v1::SchedulerMessage> to_node;
  std::optional<absl::Status> broken;  // how the stream ends
  bool takes = true;                   // false: the node's messages get stuck
  bool closed = false;                 // by the node
  bool said = false;                   // `broken` is the scheduler's own status
  absl::Status recheck;
  Condition changed;

  void Say(v1::SchedulerMessage message) {
    to_node.push_back(std::move(message));
    changed.NotifyAll();
  }
  void Break(absl::Status why) {
    broken = std::move(why);
    changed.NotifyAll();
  }
};

class FakeLinkStream final : public LinkStream {
 public:
  explicit FakeLinkStream(std::shared_ptr<FakeWire> wire) : wire_(std::move(wire)) {}

  Awaitable<absl::Status> Send(v1::NodeMessage message, TimePoint deadline) override {
    const auto goes = [wire = wire_] { return wire->takes || wire->broken.has_value(); };
    if (!co_await wire_->changed.WaitUntil(goes, deadline)) {
      co_return absl::DeadlineExceededError("the message was not taken in time");
    }
    if (wire_->broken) co_return absl::UnavailableError("the stream has ended");
    wire_->sent.push_back(std::move(message));
    wire_->changed.NotifyAll();
    co_return absl::OkStatus();
  }
  Awaitable<absl::StatusOr<v1::SchedulerMessage>> Receive() override {
    const auto there = [wire = wire_] { return !wire->to_node.empty() || wire->broken.has_value(); };
    co_await wire_->changed.WaitUntil(there, TimePoint::max());
    if (wire_->to_node.empty()) co_return absl::UnavailableError("the stream has ended");
    v1::SchedulerMessage message = std::move(wire_->to_node.front());
    wire_->to_node.pop_front();
    co_return message;
  }
  Awaitable<absl::Status> Recheck() override { co_return wire_->recheck; }
  std::string peer() const override { return "scheduler.test"; }
  Awaitable<LinkEnd> Close() override {
    wire_->closed = true;
    wire_->changed.NotifyAll();
    co_return LinkEnd{.why = wire_->broken.value_or(absl::OkStatus()), .said = wire_->said};
  }

 private:
  std::shared_ptr<FakeWire> wire_;
};

class FakeLinkDialer final : public LinkDialer {
 public:
  explicit FakeLinkDialer(asio::any_io_executor executor) : executor_(std::move(executor)) {}

  // What dialling comes to, in turn; afterwards always a new wire.
  std::deque<absl::Status> next;
  std::vector<std::string> dialled;
  std::vector<std::shared_ptr<FakeWire>> wires;

  Awaitable<absl::StatusOr<std::unique_ptr<LinkStream>>> Dial(std::string address,
                                                              TimePoint /*deadline*/) override {
    dialled.push_back(std::move(address));
    if (!next.empty()) {
      const absl::Status status = std::exchange(next.front(), absl::OkStatus());
      next.pop_front();
      if (!status.ok()) co_return status;
    }
    wires.push_back(std::make_shared<FakeWire>(executor_));
    co_return std::make_unique<FakeLinkStream>(wires.back());
  }

 private:
  asio::any_io_executor executor_;
};

// Allows what the test says.
class FakeLinkLease final : public LinkLease {
 public:
  v1::LeaseState now = v1::LEASE_VALID;
  uint64_t current_epoch = 1;
  std::vector<uint64_t> heartbeats;
  std::vector<v1::HeartbeatAnswer> answers;
  std::vector<v1::ForcedRelease> forced_releases;
  int streams = 0;
  uint64_t welcomed = 0;

  void OnStream() override { ++streams; }
  absl::Status OnWelcome(uint64_t epoch) override {
    welcomed = epoch;
    if (epoch == 0 || epoch >= current_epoch) return absl::OkStatus();
    return absl::FailedPreconditionError("the scheduler is of lease epoch " + std::to_string(epoch) +
                                         ", and " + std::to_string(current_epoch) + " is obeyed");
  }
  void OnHeartbeat(uint64_t number) override { heartbeats.push_back(number); }
  absl::Status answered;
  Awaitable<absl::Status> OnAnswer(v1::HeartbeatAnswer answer) override {
    answers.push_back(std::move(answer));
    co_return answered;
  }
  v1::Refusal Judge(uint64_t epoch, bool forward) const override {
    if (epoch != current_epoch) return v1::LEASE_EPOCH;
    return forward && now != v1::LEASE_VALID ? v1::LEASE_NOT_VALID : v1::REFUSAL_NONE;
  }
  v1::LeaseState state() const override { return now; }
  uint64_t epoch() const override { return current_epoch; }
  std::optional<Duration> left() const override { return std::nullopt; }
  std::string why_not_valid() const override {
    return now == v1::LEASE_EXPIRED ? "the node's lease has run out"
                                    : "the node has been granted no lease yet";
  }
  std::vector<v1::ForcedRelease> forced_release() const override { return forced_releases; }
  bool gives_up = false;
  bool force_releasing(const std::string& /*plugin_id*/, const std::string& /*volume_id*/) const override {
    return gives_up;
  }
  void AcknowledgeForcedRelease(uint64_t number) override {
    std::erase_if(forced_releases, [&](const v1::ForcedRelease& one) { return one.number() == number; });
  }
};

// Rows in memory, durable at once; or not, as long as `fails` is set.
class FakeLinkRows final : public LinkRows {
 public:
  std::map<std::string, std::string> rows;
  absl::Status fails;
  int failed = 0;

  Awaitable<absl::Status> Put(std::string key, std::string value) override {
    if (!fails.ok()) {
      ++failed;
      co_return fails;
    }
    rows[std::move(key)] = std::move(value);
    co_return absl::OkStatus();
  }
  void PutSoon(std::string key, std::string value) override { rows[std::move(key)] = std::move(value); }
  void DeleteSoon(std::string key) override { rows.erase(key); }
};

}  // namespace berth
