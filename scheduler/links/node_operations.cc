#include "scheduler/links/node_operations.h"

#include <algorithm>
#include <utility>

namespace berth::scheduler {
namespace {

// The node takes it without a valid lease (Operation, scheduler.proto).
bool IsReverse(const v1::Operation& operation) { return !operation.has_publish(); }

}  // namespace

void NodeOperations::Open(uint64_t id) {
  highest_ = std::max(highest_, id);
  open_.try_emplace(id);
}

NodeOperations::Messages NodeOperations::Add(Pending pending) {
  const uint64_t id = pending.operation.id();
  pending.operation.set_lease_epoch(epoch_);
  Open(id);
  open_[id] = {.phase = Phase::kToSend, .pending = std::move(pending)};
  return SendMore();
}

NodeOperations::Messages NodeOperations::Close(uint64_t id) {
  const auto found = open_.extract(id);
  if (found.empty()) return {};
  Messages messages = SendMore();
  // Without a stream the node says it again on the next one, and is answered then.
  if (found.mapped().phase == Phase::kAnswered && !run_id_.empty()) messages.push_back(Acknowledge(id));
  return messages;
}

void NodeOperations::StreamBegins(std::string run_id) {
  StreamEnds();
  run_id_ = std::move(run_id);
}

void NodeOperations::StreamEnds() {
  may_send_ = false;
  run_id_.clear();
  for (auto& [id, entry] : open_) {
    if (entry.phase == Phase::kSent || entry.phase == Phase::kRefused) entry.phase = Phase::kToSend;
  }
}

NodeOperations::Messages NodeOperations::HeartbeatAnswered(bool synced) {
  may_send_ = may_send_ || synced;
  for (auto& [id, entry] : open_) {
    if (entry.phase == Phase::kRefused) entry.phase = Phase::kToSend;
  }
  return SendMore();
}

NodeOperations::Messages NodeOperations::Take(const v1::OperationResult& result) {
  const bool settled = result.refusal() == v1::SETTLED || result.refusal() == v1::ID_REUSED;
  const bool refused = result.refusal() != v1::REFUSAL_NONE && !settled;
  const auto found = open_.find(result.id());
  if (found == open_.end()) {
    if (result.refusal() != v1::REFUSAL_NONE) return {};
    return {Acknowledge(result.id())};
  }
  Entry& entry = found->second;
  switch (entry.phase) {
    case Phase::kOpen:  // it cannot have one: it was never sent
    case Phase::kAnswered:
    case Phase::kSettled:
      return {};
    case Phase::kToSend:  // of an earlier stream
    case Phase::kSent:
    case Phase::kRefused:
      break;
  }
  if (refused) {
    if (entry.phase == Phase::kSent) entry.phase = Phase::kRefused;
    return {};
  }
  entry.phase = settled ? Phase::kSettled : Phase::kAnswered;
  Messages messages = SendMore();
  // It may call Close, and end `entry`.
  const Answered answered = std::move(entry.pending.answered);
  answered(result);
  return messages;
}

NodeOperations::Messages NodeOperations::SendMore() {
  Messages messages;
  if (!may_send_) return messages;
  SendMore(/*reverse=*/true, messages);
  SendMore(/*reverse=*/false, messages);
  return messages;
}

void NodeOperations::SendMore(bool reverse, Messages& messages) {
  const auto sent = [reverse](const auto& entry) {
    return entry.second.phase == Phase::kSent && IsReverse(entry.second.pending.operation) == reverse;
  };
  auto out = static_cast<size_t>(std::count_if(open_.begin(), open_.end(), sent));
  for (auto& [id, entry] : open_) {
    if (out >= kMostSent) return;
    if (entry.phase != Phase::kToSend || IsReverse(entry.pending.operation) != reverse) continue;
    if (entry.pending.cancel != 0 && entry.pending.cancel_run == run_id_) {
      messages.emplace_back().mutable_cancel()->set_operation_id(entry.pending.cancel);
    }
    *messages.emplace_back().mutable_operation() = entry.pending.operation;
    entry.phase = Phase::kSent;
    ++out;
  }
}

v1::SchedulerMessage NodeOperations::Acknowledge(uint64_t id) const {
  v1::SchedulerMessage message;
  message.mutable_acknowledge()->add_operation_ids(id);
  message.mutable_acknowledge()->set_settled_below(open_.empty() ? highest_ + 1 : open_.begin()->first);
  return message;
}

}  // namespace berth::scheduler
