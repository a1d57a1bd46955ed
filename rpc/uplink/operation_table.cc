#include "rpc/uplink/operation_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace berth {
namespace {

using Kind = OperationTable::Admission::Kind;

OperationTable::Admission Refused(v1::Refusal refusal, std::string why) {
  return {.kind = Kind::kRefused, .refusal = refusal, .why = std::move(why)};
}

}  // namespace

void OperationTable::RestoreResult(v1::OperationResult result, std::string subject) {
  Keep(std::move(result), std::move(subject));
}

OperationTable::Admission OperationTable::Admit(uint64_t id, const std::string& subject, bool reverse) {
  constexpr size_t kReverseShare = 16;
  const size_t share = reverse ? kReverseShare : 1;
  const std::string* known = SubjectOf(id);
  if (known != nullptr && *known != subject) {
    return Refused(v1::ID_REUSED, fmt::format("operation {} is \"{}\": an id is used once", id, *known));
  }
  if (answered_.contains(id)) {
    to_send_.insert(id);
    return {.kind = Kind::kAnswered};
  }
  if (running_.contains(id)) return {.kind = Kind::kRuns};
  if (id < settled_below_ || acknowledged_.contains(id)) {
    return Refused(v1::SETTLED, fmt::format("operation {} was answered and acknowledged before", id));
  }
  if (running_.size() >= limits_.running * share) {
    return Refused(v1::TOO_MANY, fmt::format("{} operations run already", running_.size()));
  }
  if (answered_.size() >= limits_.results * share || answered_bytes_ >= limits_.result_bytes * share) {
    return Refused(v1::TOO_MANY, fmt::format("{} results ({} bytes) wait to be acknowledged",
                                             answered_.size(), answered_bytes_));
  }
  if (acknowledged_.size() >= limits_.acknowledged * share) {
    return Refused(v1::TOO_MANY,
                   fmt::format("{} acknowledged operations lie above settled_below, {}: raise it",
                               acknowledged_.size(), settled_below_));
  }
  running_[id] = subject;
  return {.kind = Kind::kRun};
}

void OperationTable::Finish(v1::OperationResult result) {
  const auto running = running_.find(result.id());
  if (running == running_.end()) return;
  std::string subject = std::move(running->second);
  running_.erase(running);
  // The scheduler has settled it without waiting for this.
  if (result.id() < settled_below_) return;
  Keep(std::move(result), std::move(subject));
}

OperationTable::Changes OperationTable::Acknowledge(const std::vector<uint64_t>& ids,
                                                    uint64_t settled_below) {
  Changes changes;
  for (const uint64_t id : ids) {
    // A result that does not exist cannot have been taken.
    if (!answered_.contains(id)) continue;
    Drop(id);
    acknowledged_.insert(id);
    changes.acknowledged.push_back(id);
  }
  if (settled_below <= settled_below_) return changes;
  settled_below_ = settled_below;
  changes.settled = true;
  std::erase_if(changes.acknowledged, [&](uint64_t id) { return id < settled_below; });
  while (!acknowledged_.empty() && *acknowledged_.begin() < settled_below) {
    changes.forgotten.push_back(*acknowledged_.begin());
    acknowledged_.erase(acknowledged_.begin());
  }
  while (!answered_.empty() && answered_.begin()->first < settled_below) {
    changes.forgotten.push_back(answered_.begin()->first);
    Drop(answered_.begin()->first);
  }
  return changes;
}

void OperationTable::BeginStream() {
  for (const auto& [id, answered] : answered_) to_send_.insert(id);
}

const v1::OperationResult* OperationTable::NextResult() {
  if (to_send_.empty()) return nullptr;
  const uint64_t id = *to_send_.begin();
  to_send_.erase(to_send_.begin());
  return &answered_.at(id).result;
}

const std::string* OperationTable::SubjectOf(uint64_t id) const {
  if (const auto running = running_.find(id); running != running_.end()) return &running->second;
  if (const auto answered = answered_.find(id); answered != answered_.end()) return &answered->second.subject;
  return nullptr;
}

uint64_t OperationTable::highest_id() const {
  uint64_t highest = settled_below_ == 0 ? 0 : settled_below_ - 1;
  if (!running_.empty()) highest = std::max(highest, running_.rbegin()->first);
  if (!answered_.empty()) highest = std::max(highest, answered_.rbegin()->first);
  if (!acknowledged_.empty()) highest = std::max(highest, *acknowledged_.rbegin());
  return highest;
}

void OperationTable::Keep(v1::OperationResult result, std::string subject) {
  const uint64_t id = result.id();
  answered_bytes_ += result.ByteSizeLong();
  answered_[id] = {.result = std::move(result), .subject = std::move(subject)};
  to_send_.insert(id);
}

void OperationTable::Drop(uint64_t id) {
  const auto answered = answered_.find(id);
  answered_bytes_ -= answered->second.result.ByteSizeLong();
  answered_.erase(answered);
  to_send_.erase(id);
}

}  // namespace berth
