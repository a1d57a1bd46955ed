#include "rpc/log_pace.h"

#include <utility>

namespace berth {

std::optional<uint64_t> LogPace::Take(TimePoint now) {
  if (!began_ || now - *began_ >= window_) {
    began_ = now;
    told_ = 0;
  }
  if (told_ >= lines_) {
    ++left_out_;
    return std::nullopt;
  }
  ++told_;
  return std::exchange(left_out_, 0);
}

}  // namespace berth
