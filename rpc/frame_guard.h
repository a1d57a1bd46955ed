// Watches what a peer without the right to change says on a connection, on its way to gRPC: what gRPC would
// take without end is refused by its beginning.
//
// gRPC goes through headers of any length, though it keeps few of them, and holds a message whole before it
// looks whether it is too long. So this looks at the frames, and at nothing in them:
//
//   "PRI * HTTP/2.0…"  then frames:  length (3) │ type (1) │ flags (1) │ stream (4) │ …
//
//   HEADERS, CONTINUATION*   one block of headers: together no longer than `headers`
//   DATA*                    a request: together no longer than `requests`, all that are not complete yet
//   PING, SETTINGS           gRPC answers each, and hoards answers that are not read: `answers` in a while
//   all others               pass
//
// (RFC 9113, sections 3.4, 4.1, 6.1, 6.2, 6.5, 6.7, 6.10.) Pure: the caller passes the time in; any thread.
// Keeps a number for each request that is not complete, of which there may be `streams`.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "base/clock.h"
#include "rpc/frame_reader.h"

namespace berth {

struct FrameLimits {
  size_t headers = 32U << 10;
  size_t requests = 256U << 10;
  size_t streams = 256;
  // A gRPC client pings ten times a second at most, while much is sent to it.
  size_t answers = 200;
  Duration answers_within = std::chrono::seconds(10);
};

class FrameGuard {
 public:
  explicit FrameGuard(FrameLimits limits = {}) : limits_(limits) {}

  // The bytes that the peer said next, however they were cut; how many frames began in them, but for those
  // that only let more be sent (WINDOW_UPDATE).
  // INVALID_ARGUMENT: it does not speak HTTP/2; RESOURCE_EXHAUSTED: a limit. After an error nothing is to be
  // handed on.
  [[nodiscard]] absl::StatusOr<size_t> Take(std::string_view bytes, TimePoint now);

 private:
  [[nodiscard]] absl::Status TakeGreeting(std::string_view* bytes);
  [[nodiscard]] absl::Status BeginFrame(TimePoint now);
  [[nodiscard]] absl::Status CountAnswer(TimePoint now);
  [[nodiscard]] absl::Status BeginHeaders(size_t length, bool first, bool last);
  // A request goes on by `length` bytes, or is over.
  [[nodiscard]] absl::Status AddToRequest(uint32_t stream, size_t length);
  void EndRequest(uint32_t stream);

  FrameLimits limits_;
  size_t greeted_ = 0;  // bytes of the greeting that came
  FrameReader reader_;
  size_t headers_ = 0;                   // bytes of the block that is coming
  std::map<uint32_t, size_t> requests_;  // by stream: those that are not complete, with what came of them
  size_t in_requests_ = 0;               // of all of them
  TimePoint answers_since_;
  size_t answers_ = 0;
};

}  // namespace berth
