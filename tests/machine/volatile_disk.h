// A disk that can lose its power: it remembers what was flushed, and of what was written since then some.
//
// The image that it begins with is never written. What is flushed lies in a second file, in place; what is
// not lies in memory, every version of every block, as in the cache of a real disk. A power cut keeps any of
// them, or what was flushed, for each block by itself: the order of writes is lost too. One thread. Errors
// are of the two files, and final.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace berth {

class VolatileDisk {
 public:
  static constexpr uint64_t kBlockSize = 4096;

  // `changes` is made again. The size is `image`'s, which is a multiple of kBlockSize.
  [[nodiscard]] static absl::StatusOr<VolatileDisk> Open(const std::string& image,
                                                         const std::string& changes);

  [[nodiscard]] uint64_t size() const { return size_; }

  // Any range within size().
  [[nodiscard]] absl::Status Read(uint64_t offset, std::span<char> data) const;
  [[nodiscard]] absl::Status Write(uint64_t offset, std::span<const char> data);
  [[nodiscard]] absl::Status Flush();

  struct Loss {
    size_t blocks = 0;  // that were written since the last flush
    size_t lost = 0;    // of them, those with a last content that is not on the disk
  };
  [[nodiscard]] absl::StatusOr<Loss> CutPower(std::mt19937_64& random);

 private:
  using Block = std::array<char, kBlockSize>;

  VolatileDisk() = default;
  [[nodiscard]] absl::Status ReadBlock(uint64_t number, Block& block) const;
  [[nodiscard]] absl::Status Keep(uint64_t number, const Block& block);

  UniqueFd image_;
  UniqueFd changes_;
  uint64_t size_ = 0;
  std::vector<bool> changed_;                      // whether a block lies in changes_
  std::map<uint64_t, std::vector<Block>> cached_;  // since the last flush, oldest first
  size_t cached_blocks_ = 0;
};

}  // namespace berth
