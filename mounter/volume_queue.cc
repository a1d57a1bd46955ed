#include "mounter/volume_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>
#include <vector>

namespace berth {
namespace {

PublicationKey KeyOf(const PublishRequest& request) {
  return {.consumer = request.consumer, .name = request.name};
}

// Whether two requests are about the same publication, so that their order matters.
bool SameSubject(const VolumeRequest& a, const VolumeRequest& b) {
  if (const auto* first = std::get_if<PublishRequest>(&a)) {
    if (const auto* second = std::get_if<PublishRequest>(&b)) return KeyOf(*first) == KeyOf(*second);
    if (const auto* second = std::get_if<UnpublishRequest>(&b)) return Concerns(*second, KeyOf(*first));
    return false;
  }
  if (const auto* first = std::get_if<UnpublishRequest>(&a)) {
    if (const auto* second = std::get_if<UnpublishRequest>(&b)) return first->consumer == second->consumer;
    return std::holds_alternative<PublishRequest>(b) && SameSubject(b, a);
  }
  return std::holds_alternative<ExpandRequest>(b);
}

bool Forced(const UnpublishRequest& request) { return request.force || request.lazy; }

}  // namespace

absl::StatusOr<VolumeQueue::Operation> VolumeQueue::Submit(VolumeRequest request, TimePoint until) {
  std::vector<Operation> candidates(waiting_.rbegin(), waiting_.rend());
  if (current_) candidates.push_back(current_);
  for (const Operation& candidate : candidates) {
    if (!SameSubject(candidate->request, request)) continue;
    if (candidate->done || candidate->request != request) break;
    candidate->wanted_until = std::max(candidate->wanted_until, until);
    return candidate;
  }
  if (waiting_.size() >= limit_) {
    return absl::ResourceExhaustedError(
        fmt::format("{} requests wait for this volume already", waiting_.size()));
  }
  auto operation = std::make_shared<VolumeOperation>(executor_, std::move(request), until);
  const auto* unpublish = std::get_if<UnpublishRequest>(&operation->request);
  if (unpublish != nullptr) {
    std::erase_if(waiting_, [unpublish](const Operation& waiting) {
      const auto* publish = std::get_if<PublishRequest>(&waiting->request);
      if (publish == nullptr || !Concerns(*unpublish, KeyOf(*publish))) return false;
      waiting->Finish(absl::AbortedError("not begun: an unpublish of the same came after it"));
      return true;
    });
  }
  if (unpublish != nullptr && Forced(*unpublish)) {
    waiting_.push_front(operation);
  } else {
    waiting_.push_back(operation);
  }
  return operation;
}

void VolumeQueue::SubmitFirst(UnpublishRequest request, TimePoint until) {
  waiting_.push_front(std::make_shared<VolumeOperation>(executor_, std::move(request), until));
}

void VolumeQueue::Begin() {
  current_ = std::move(waiting_.front());
  waiting_.pop_front();
}

void VolumeQueue::FailAll(const absl::Status& status) {
  for (const Operation& operation : std::exchange(waiting_, {})) operation->Finish(status);
  if (current_ && !current_->done) current_->Finish(status);
}

void VolumeQueue::EndForward(const std::string& why,
                             const std::function<bool(const VolumeOperation&)>& ends) {
  std::erase_if(waiting_, [&](const Operation& waiting) {
    if (!ends(*waiting)) return false;
    waiting->Finish(NotBegun(why));
    return true;
  });
  // What it has sent goes on; what it has not begun does not begin.
  if (current_ != nullptr && ends(*current_)) current_->forward_blocked = why;
}

bool VolumeQueue::Expects(const std::string& consumer) const {
  const auto for_it = [&consumer](const Operation& operation) {
    const auto* publish = operation ? std::get_if<PublishRequest>(&operation->request) : nullptr;
    return publish != nullptr && publish->consumer == consumer;
  };
  return for_it(current_) || std::ranges::any_of(waiting_, for_it);
}

bool VolumeQueue::AnyUnpublish(const std::function<bool(const UnpublishRequest&)>& holds) const {
  return std::ranges::any_of(waiting_, [&holds](const Operation& operation) {
    const auto* unpublish = std::get_if<UnpublishRequest>(&operation->request);
    return unpublish != nullptr && holds(*unpublish);
  });
}

bool VolumeQueue::UnpublishWaits() const {
  return AnyUnpublish([](const UnpublishRequest&) { return true; });
}

bool VolumeQueue::UnpublishWaits(const PublicationKey& key) const {
  return AnyUnpublish([&key](const UnpublishRequest& unpublish) { return Concerns(unpublish, key); });
}

bool VolumeQueue::ForcedUnpublishWaits(const PublicationKey& key, bool whole_volume) const {
  return AnyUnpublish([&](const UnpublishRequest& unpublish) {
    return Forced(unpublish) && (whole_volume || Concerns(unpublish, key));
  });
}

}  // namespace berth
