// What a volume of this plugin is made of.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace berth::hostpath {

enum class Kind {
  kDirectory,  // a directory of the pool's own file system, bind-mounted; its capacity is advisory
  kImage,      // a file system (ext4 or xfs) in a sparse file on a loop device; true capacity
  kBlock,      // a sparse file on a loop device, handed out raw (and mounted too, if it was asked for so)
};

// Its name in parameters, options and messages.
[[nodiscard]] constexpr std::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kDirectory:
      return "directory";
    case Kind::kImage:
      return "image";
    case Kind::kBlock:
      return "block";
  }
  return "";
}

[[nodiscard]] constexpr std::optional<Kind> ParseKind(std::string_view word) {
  for (const Kind kind : {Kind::kDirectory, Kind::kImage, Kind::kBlock}) {
    if (KindName(kind) == word) return kind;
  }
  return std::nullopt;
}

// How far the making of a file system in an image has come. It is written before mkfs begins and after it has
// ended, so that a crash between the two does not look like data.
enum class FormatState { kNone = 0, kFormatting = 1, kFormatted = 2 };

// Sizes of images are multiples of this: what every file system and loop device here is content with.
inline constexpr int64_t kSizeGranule = 4096;
inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;

}  // namespace berth::hostpath
