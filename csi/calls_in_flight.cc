#include "csi/calls_in_flight.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <map>
#include <string_view>
#include <utility>

namespace berth {

CallsInFlight::Call::Call(std::shared_ptr<CallsInFlight> calls, asio::any_io_executor executor,
                          const char* name, TimePoint deadline)
    : calls_(std::move(calls)), executor_(std::move(executor)), name_(name), deadline_(deadline) {
  if (calls_ != nullptr) place_ = calls_->calls_.insert(calls_->calls_.end(), this);
}

CallsInFlight::Call::~Call() {
  if (calls_ == nullptr) return;
  calls_->calls_.erase(place_);
  if (!calls_->calls_.empty() || !calls_->on_idle_) return;
  // Not from here: the callee may want to do much, and this is the end of a call.
  asio::post(executor_, [weak = std::weak_ptr(calls_)] {
    const std::shared_ptr<CallsInFlight> calls = weak.lock();
    if (calls != nullptr && calls->calls_.empty()) calls->on_idle_();
  });
}

std::optional<TimePoint> CallsInFlight::busy_until() const {
  if (calls_.empty()) return std::nullopt;
  return (*std::max_element(calls_.begin(), calls_.end(),
                            [](const Call* a, const Call* b) { return a->deadline_ < b->deadline_; }))
      ->deadline_;
}

std::vector<std::string> CallsInFlight::names() const {
  std::map<std::string_view, int> counts;
  for (const Call* call : calls_) ++counts[call->name_];
  std::vector<std::string> names;
  for (const auto& [path, count] : counts) {
    // "/csi.v1.Node/NodeStageVolume"
    const std::string_view name = path.substr(path.rfind('/') + 1);
    names.push_back(count == 1 ? std::string(name) : fmt::format("{} ({})", name, count));
  }
  return names;
}

}  // namespace berth
