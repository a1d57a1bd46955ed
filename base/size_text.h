// Sizes as people write them in files: "512MiB", "16KiB", "2GB", "4096B".
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace berth {

// One whole number and one unit, binary (KiB, MiB, GiB, TiB) or decimal (kB or KB, MB, GB, TB), or B; below
// 2^63 bytes. Nothing else is a size.
[[nodiscard]] std::optional<uint64_t> ParseSize(std::string_view text);

// In the greatest binary unit that it is a whole number of: "16KiB", "1000B".
[[nodiscard]] std::string FormatSize(uint64_t bytes);

}  // namespace berth
