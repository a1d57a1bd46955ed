#include "rpc/uplink/lease.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {
namespace {

// A link is dead after a few that were not answered; so many are never awaited at once.
constexpr size_t kMostUnanswered = 64;

std::string WhyRefused(const LeaseGrant& grant) {
  if (grant.epoch == 0) return "a lease without an epoch";
  if (grant.duration < kShortestLease) {
    return fmt::format("a lease of {} ms; the shortest is 1 s",
                       std::chrono::duration_cast<std::chrono::milliseconds>(grant.duration).count());
  }
  return "";
}

}  // namespace

Lease Lease::WithUnknownEpoch() {
  Lease lease;
  lease.epoch_known_ = false;
  return lease;
}

void Lease::Restore(const Term& term) {
  if (term.epoch == 0 || (epoch_known_ && term.epoch > seen_)) return;
  term_ = term;
  ran_out_ = false;
}

void Lease::OnStream() {
  sent_.clear();
  welcomed_ = 0;
}

void Lease::OnSent(uint64_t number, BootTime sent) {
  // Of two of one number the earlier counts: a lease that ends too soon is the harmless mistake.
  sent_.emplace(number, sent);
  if (sent_.size() > kMostUnanswered) sent_.erase(sent_.begin());
}

AnswerVerdict Lease::OnAnswer(uint64_t number, const std::optional<LeaseGrant>& grant, BootTime now) {
  const auto answered = sent_.find(number);
  if (answered == sent_.end()) {
    return {.why = fmt::format("an answer to heartbeat {}, which is not awaited", number)};
  }
  const BootTime sent = answered->second;
  // Earlier heartbeats are not answered any more: the answer to a later one is newer.
  sent_.erase(sent_.begin(), std::next(answered));
  if (!grant) return {.kind = AnswerVerdict::Kind::kHeard, .why = "no lease was granted"};
  if (std::string why = WhyRefused(*grant); !why.empty()) return {.why = std::move(why)};
  if (!epoch_known_) {
    return {.kind = AnswerVerdict::Kind::kHeard, .why = "the highest lease epoch is not known"};
  }
  if (grant->epoch < seen_) {
    return {.kind = AnswerVerdict::Kind::kOvertaken,
            .why = fmt::format("a lease of epoch {}, and {} is obeyed: another scheduler has taken over",
                               grant->epoch, seen_)};
  }

  seen_ = grant->epoch;
  const uint64_t epoch_to_write = written_ < seen_ ? seen_ : 0;
  const BootTime ends = sent + std::min(grant->duration, kLongestLease);
  if (ends <= now) {
    return {.kind = AnswerVerdict::Kind::kHeard,
            .why = "a lease that was over when its answer came",
            .epoch_to_write = epoch_to_write};
  }
  const bool holds = term_ && now < term_->ends;
  term_ = Term{.epoch = grant->epoch, .ends = ends, .since = holds ? term_->since : now};
  ran_out_ = false;
  return {.kind = AnswerVerdict::Kind::kGranted, .why = "", .epoch_to_write = epoch_to_write};
}

void Lease::OnEpochWritten(uint64_t epoch) { written_ = std::max(written_, epoch); }

bool Lease::OnTime(BootTime now) {
  if (!term_ || ran_out_ || now < term_->ends) return false;
  ran_out_ = true;
  return true;
}

BootTime Lease::NextLook() const { return term_ && !ran_out_ ? term_->ends : BootTime::max(); }

bool Lease::Valid(BootTime now) const {
  return epoch_known_ && term_ && term_->epoch == seen_ && written_ == seen_ && now < term_->ends;
}

v1::LeaseState Lease::State(BootTime now) const {
  if (Valid(now)) return v1::LEASE_VALID;
  return term_ && now >= term_->ends ? v1::LEASE_EXPIRED : v1::LEASE_NONE;
}

bool Lease::OfWelcome(uint64_t epoch) const {
  if (!epoch_known_) return welcomed_ == 0 || epoch == welcomed_;
  return welcomed_ != 0 && epoch == welcomed_ && welcomed_ >= seen_;
}

v1::Refusal Lease::Judge(uint64_t epoch, bool forward, BootTime now) const {
  if (!forward && OfWelcome(epoch)) return v1::REFUSAL_NONE;
  if (!epoch_known_) return OfWelcome(epoch) ? v1::LEASE_NOT_VALID : v1::LEASE_EPOCH;
  if (epoch != seen_) return v1::LEASE_EPOCH;
  // What was not written down would be forgotten by a crash, and a lower epoch obeyed after it.
  if (written_ < seen_) return v1::LEASE_NOT_VALID;
  if (forward && !Valid(now)) return v1::LEASE_NOT_VALID;
  return v1::REFUSAL_NONE;
}

}  // namespace berth
