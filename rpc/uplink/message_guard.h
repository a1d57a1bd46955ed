// Watches what a scheduler says on a link for messages that are longer than one may be.
//
// gRPC has a limit of its own, but looks at it once it holds the message whole, and lets the peer send as
// much as the message says it has: up to 4 GiB. A compressed message may be of any size once it is unpacked.
// So the bytes are looked at on their way to gRPC, and a message is refused by its first five:
//
//   HTTP/2 frame:  length (3) │ type (1) │ flags (1) │ stream (4) │ …       type 0: DATA
//   in DATA:       compressed (1) │ length (4) │ message …                  across frames, one after another
//
// (RFC 9113, section 4.1; gRPC over HTTP2, "Length-Prefixed-Message".) There is one stream on a link, and
// gRPC takes no DATA that is padded, so neither is looked for.
//
// Pure; any thread.
#pragma once

#include <absl/status/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "rpc/uplink/frame_reader.h"

namespace berth {

class MessageGuard {
 public:
  // `limit`: bytes of a message.
  explicit MessageGuard(uint32_t limit) : limit_(limit) {}

  // The bytes that the peer said next, however they were cut. RESOURCE_EXHAUSTED: a message is too long;
  // UNIMPLEMENTED: it is compressed. After an error nothing is to be handed on.
  [[nodiscard]] absl::Status Take(std::string_view bytes);

 private:
  [[nodiscard]] absl::Status TakeData(std::string_view data);

  uint32_t limit_;
  FrameReader reader_;
  std::array<unsigned char, 5> head_{};  // of a message
  size_t filled_ = 0;                    // of it
  size_t message_left_ = 0;
};

}  // namespace berth
