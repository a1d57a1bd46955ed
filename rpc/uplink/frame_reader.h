// Reads the heads of HTTP/2 frames in the bytes of one side of a connection, however these are cut:
//
//   length (3) │ type (1) │ flags (1) │ stream (4) │ content …
//
// (RFC 9113, section 4.1.) Keeps no content. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace berth {

class FrameReader {
 public:
  struct Frame {
    size_t length = 0;  // of the content
    unsigned type = 0;
    unsigned flags = 0;
    uint32_t stream = 0;
  };
  struct Piece {
    bool begins = false;       // frame() is another one, of which nothing has come yet
    std::string_view content;  // else: what has come of it
  };

  // Takes the next piece from `bytes`. nullopt: they are used up.
  [[nodiscard]] std::optional<Piece> Next(std::string_view* bytes);
  [[nodiscard]] const Frame& frame() const { return frame_; }

 private:
  std::array<unsigned char, 9> head_{};
  size_t filled_ = 0;  // of the head
  size_t left_ = 0;    // of the content
  Frame frame_;
};

}  // namespace berth
