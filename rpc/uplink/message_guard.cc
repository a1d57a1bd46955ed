#include "rpc/uplink/message_guard.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"

namespace berth {
namespace {

constexpr unsigned char kDataFrame = 0;

// The first bytes of `from`, at most `most` of them, which leave it.
std::string_view TakeFrom(std::string_view* from, size_t most) {
  const std::string_view taken = from->substr(0, most);
  from->remove_prefix(taken.size());
  return taken;
}

}  // namespace

template <size_t kSize>
bool MessageGuard::Head<kSize>::Fill(std::string_view* from) {
  const std::string_view taken = TakeFrom(from, kSize - filled);
  std::ranges::copy(taken, bytes.begin() + static_cast<std::ptrdiff_t>(filled));
  filled += taken.size();
  if (filled < kSize) return false;
  filled = 0;
  return true;
}

absl::Status MessageGuard::Take(std::string_view bytes) {
  while (!bytes.empty()) {
    if (frame_left_ == 0) {
      if (!frame_.Fill(&bytes)) break;
      const auto& head = frame_.bytes;
      frame_left_ = size_t{head[0]} << 16 | size_t{head[1]} << 8 | head[2];
      is_data_ = head[3] == kDataFrame;
      continue;
    }
    const std::string_view part = TakeFrom(&bytes, frame_left_);
    frame_left_ -= part.size();
    if (is_data_) BERTH_RETURN_IF_ERROR(TakeData(part));
  }
  return absl::OkStatus();
}

absl::Status MessageGuard::TakeData(std::string_view data) {
  while (!data.empty()) {
    if (message_left_ > 0) {
      message_left_ -= TakeFrom(&data, message_left_).size();
      continue;
    }
    if (!message_.Fill(&data)) break;
    const auto& head = message_.bytes;
    message_left_ = size_t{head[1]} << 24 | size_t{head[2]} << 16 | size_t{head[3]} << 8 | head[4];
    if (head[0] != 0) {
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
