#include "rpc/uplink/frame_reader.h"

#include <algorithm>

namespace berth {
namespace {

// The first bytes of `from`, at most `most` of them, which leave it.
std::string_view TakeFrom(std::string_view* from, size_t most) {
  const std::string_view taken = from->substr(0, most);
  from->remove_prefix(taken.size());
  return taken;
}

}  // namespace

std::optional<FrameReader::Piece> FrameReader::Next(std::string_view* bytes) {
  if (bytes->empty()) return std::nullopt;
  if (left_ > 0) {
    const std::string_view content = TakeFrom(bytes, left_);
    left_ -= content.size();
    return Piece{.begins = false, .content = content};
  }
  const std::string_view taken = TakeFrom(bytes, head_.size() - filled_);
  std::ranges::copy(taken, head_.begin() + static_cast<std::ptrdiff_t>(filled_));
  filled_ += taken.size();
  if (filled_ < head_.size()) return std::nullopt;
  filled_ = 0;
  const uint32_t stream =
      uint32_t{head_[5]} << 24 | uint32_t{head_[6]} << 16 | uint32_t{head_[7]} << 8 | uint32_t{head_[8]};
  frame_ = {.length = size_t{head_[0]} << 16 | size_t{head_[1]} << 8 | head_[2],
            .type = head_[3],
            .flags = head_[4],
            .stream = stream & 0x7fffffffU};
  left_ = frame_.length;
  return Piece{.begins = true, .content = {}};
}

}  // namespace berth
