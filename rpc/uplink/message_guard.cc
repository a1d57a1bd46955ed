#include "rpc/uplink/message_guard.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"

namespace berth {
namespace {

constexpr unsigned kDataFrame = 0;

}  // namespace

absl::Status MessageGuard::Take(std::string_view bytes) {
  while (const auto piece = reader_.Next(&bytes)) {
    if (!piece->begins && reader_.frame().type == kDataFrame) BERTH_RETURN_IF_ERROR(TakeData(piece->content));
  }
  return absl::OkStatus();
}

absl::Status MessageGuard::TakeData(std::string_view data) {
  while (!data.empty()) {
    if (message_left_ > 0) {
      const size_t passed = std::min(message_left_, data.size());
      message_left_ -= passed;
      data.remove_prefix(passed);
      continue;
    }
    head_[filled_++] = static_cast<unsigned char>(data.front());
    data.remove_prefix(1);
    if (filled_ < head_.size()) continue;
    filled_ = 0;
    message_left_ = size_t{head_[1]} << 24 | size_t{head_[2]} << 16 | size_t{head_[3]} << 8 | head_[4];
    if (head_[0] != 0) {
      return absl::UnimplementedError(
          "the scheduler has compressed a message, which this node does not take");
    }
    if (message_left_ > limit_) {
      return absl::ResourceExhaustedError(fmt::format(
          "the scheduler has begun a message of {} bytes, and one may have {}", message_left_, limit_));
    }
  }
  return absl::OkStatus();
}

}  // namespace berth
