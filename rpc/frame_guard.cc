#include "rpc/frame_guard.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"

namespace berth {
namespace {

constexpr std::string_view kGreeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum FrameType : unsigned char {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
  kContinuation = 9,
};
constexpr size_t kHeadBytes = 9;
constexpr unsigned kEndStream = 0x1;
constexpr unsigned kIsAnswer = 0x1;  // of SETTINGS and PING
constexpr unsigned kEndHeaders = 0x4;

}  // namespace

absl::StatusOr<size_t> FrameGuard::Take(std::string_view bytes, TimePoint now) {
  BERTH_RETURN_IF_ERROR(TakeGreeting(&bytes));
  size_t frames = 0;
  while (const auto piece = reader_.Next(&bytes)) {
    if (!piece->begins) continue;
    if (reader_.frame().type != kWindowUpdate) ++frames;
    BERTH_RETURN_IF_ERROR(BeginFrame(now));
  }
  return frames;
}

absl::Status FrameGuard::TakeGreeting(std::string_view* bytes) {
  const std::string_view expected = kGreeting.substr(greeted_, bytes->size());
  if (!bytes->starts_with(expected)) return absl::InvalidArgumentError("it does not speak HTTP/2");
  greeted_ += expected.size();
  bytes->remove_prefix(expected.size());
  return absl::OkStatus();
}

absl::Status FrameGuard::BeginFrame(TimePoint now) {
  const auto& [length, type, flags, stream] = reader_.frame();
  switch (type) {
    case kHeaders:
    case kContinuation: {
      const bool first = type == kHeaders;
      BERTH_RETURN_IF_ERROR(BeginHeaders(length, first, (flags & kEndHeaders) != 0));
      // Of a continuation the flag says nothing.
      if (first && (flags & kEndStream) != 0) EndRequest(stream);
      return absl::OkStatus();
    }
    case kData:
      BERTH_RETURN_IF_ERROR(AddToRequest(stream, length));
      if ((flags & kEndStream) != 0) EndRequest(stream);
      return absl::OkStatus();
    case kReset:
      EndRequest(stream);
      return absl::OkStatus();
    case kSettings:
    case kPing:
      return (flags & kIsAnswer) != 0 ? absl::OkStatus() : CountAnswer(now);
    default:
      return absl::OkStatus();
  }
}

absl::Status FrameGuard::BeginHeaders(size_t length, bool first, bool last) {
  if (first) headers_ = 0;
  // The frames count, too: they may be empty.
  headers_ += kHeadBytes + length;
  if (headers_ > limits_.headers) {
    return absl::ResourceExhaustedError(
        fmt::format("headers of more than {} bytes have begun", limits_.headers));
  }
  if (last) headers_ = 0;
  return absl::OkStatus();
}

absl::Status FrameGuard::CountAnswer(TimePoint now) {
  if (now - answers_since_ >= limits_.answers_within) {
    answers_since_ = now;
    answers_ = 0;
  }
  if (++answers_ <= limits_.answers) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("more than {} pings and settings in {} s", limits_.answers,
                  std::chrono::duration_cast<std::chrono::seconds>(limits_.answers_within).count()));
}

absl::Status FrameGuard::AddToRequest(uint32_t stream, size_t length) {
  requests_[stream] += length;
  in_requests_ += length;
  if (in_requests_ > limits_.requests || requests_.size() > limits_.streams) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} requests of {} bytes and more have begun and are not complete", requests_.size(), in_requests_));
  }
  return absl::OkStatus();
}

void FrameGuard::EndRequest(uint32_t stream) {
  const auto known = requests_.find(stream);
  if (known == requests_.end()) return;
  in_requests_ -= known->second;
  requests_.erase(known);
}

}  // namespace berth
