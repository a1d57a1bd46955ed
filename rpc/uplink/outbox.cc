#include "rpc/uplink/outbox.h"

#include <algorithm>

namespace berth {

void Outbox::Changed(const ObjectKey& key) {
  if (const auto known = objects_.find(key); known != objects_.end()) {
    changes_.erase(known->second);
    tombstones_.erase(known->second);
  }
  objects_[key] = ++last_;
  changes_[last_] = {.key = key};
}

void Outbox::Removed(const ObjectKey& key) {
  const auto known = objects_.find(key);
  if (known == objects_.end() || tombstones_.contains(known->second)) return;
  changes_.erase(known->second);
  known->second = ++last_;
  changes_[last_] = {.key = key, .removed = true};
  tombstones_.insert(last_);
  if (tombstones_.size() <= kTombstones) return;
  forgotten_ = *tombstones_.begin();
  objects_.erase(changes_.at(forgotten_).key);
  changes_.erase(forgotten_);
  tombstones_.erase(tombstones_.begin());
  // This stream never heard of it, and need not hear of its end.
  if (forgotten_ > std::max(sent_, full_until_)) BeginWithEverything();
}

void Outbox::Forget(const ObjectKey& key) {
  const auto known = objects_.find(key);
  if (known == objects_.end()) return;
  changes_.erase(known->second);
  tombstones_.erase(known->second);
  objects_.erase(known);
}

void Outbox::Begin(std::optional<uint64_t> have) {
  // A position that we never sent is not of this run.
  if (!have || *have < forgotten_ || *have > last_) return BeginWithEverything();
  full_ = false;
  full_until_ = 0;
  sent_ = *have;
}

void Outbox::BeginWithEverything() {
  full_ = true;
  begun_ = false;
  full_until_ = last_;
  sent_ = 0;
}

std::optional<Outbox::Change> Outbox::Next() {
  begun_ = true;
  // A scheduler that gets everything again never had what was gone by then.
  auto next = changes_.upper_bound(sent_);
  while (next != changes_.end() && next->second.removed && next->first <= full_until_) ++next;
  if (next == changes_.end()) {
    sent_ = last_;
    return std::nullopt;
  }
  sent_ = next->first;
  return next->second;
}

bool Outbox::caught_up() const {
  return std::none_of(changes_.upper_bound(sent_), changes_.end(), [this](const auto& entry) {
    return !entry.second.removed || entry.first > full_until_;
  });
}

}  // namespace berth
