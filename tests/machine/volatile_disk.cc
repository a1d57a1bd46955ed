#include "tests/machine/volatile_disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/status.h"

namespace berth {
namespace {

// What the cache of a disk holds. Beyond it, the disk writes by itself.
constexpr size_t kMaxCachedBlocks = 64 * 1024 * 1024 / VolatileDisk::kBlockSize;

absl::Status Failed(const std::string& what) { return absl::ErrnoToStatus(errno, what); }

}  // namespace

absl::StatusOr<VolatileDisk> VolatileDisk::Open(const std::string& image, const std::string& changes) {
  VolatileDisk disk;
  disk.image_ = UniqueFd(open(image.c_str(), O_RDONLY | O_CLOEXEC));
  if (!disk.image_.valid()) return Failed("open " + image);
  struct stat facts{};
  if (fstat(disk.image_.get(), &facts) != 0) return Failed("look at " + image);
  disk.size_ = static_cast<uint64_t>(facts.st_size);
  if (disk.size_ == 0 || disk.size_ % kBlockSize != 0)
    return absl::InvalidArgumentError(fmt::format("{}: {} bytes are no whole blocks", image, disk.size_));
  disk.changes_ = UniqueFd(open(changes.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!disk.changes_.valid()) return Failed("make " + changes);
  disk.changed_.resize(disk.size_ / kBlockSize);
  return disk;
}

absl::Status VolatileDisk::ReadBlock(uint64_t number, Block& block) const {
  if (const auto found = cached_.find(number); found != cached_.end()) {
    block = found->second.back();
    return absl::OkStatus();
  }
  const int fd = changed_[number] ? changes_.get() : image_.get();
  const ssize_t got = pread(fd, block.data(), block.size(), static_cast<off_t>(number * kBlockSize));
  if (got == static_cast<ssize_t>(block.size())) return absl::OkStatus();
  return got < 0 ? Failed(fmt::format("read block {}", number))
                 : absl::DataLossError(fmt::format("block {} ends early", number));
}

absl::Status VolatileDisk::Keep(uint64_t number, const Block& block) {
  const ssize_t put =
      pwrite(changes_.get(), block.data(), block.size(), static_cast<off_t>(number * kBlockSize));
  if (put < 0) return Failed(fmt::format("write block {}", number));
  if (put != static_cast<ssize_t>(block.size()))
    return absl::DataLossError(fmt::format("block {} was not written whole", number));
  changed_[number] = true;
  return absl::OkStatus();
}

absl::Status VolatileDisk::Read(uint64_t offset, std::span<char> data) const {
  Block block;
  while (!data.empty()) {
    const uint64_t within = offset % kBlockSize;
    const size_t count = std::min<size_t>(kBlockSize - within, data.size());
    BERTH_RETURN_IF_ERROR(ReadBlock(offset / kBlockSize, block));
    std::copy_n(block.begin() + static_cast<ptrdiff_t>(within), count, data.begin());
    data = data.subspan(count);
    offset += count;
  }
  return absl::OkStatus();
}

absl::Status VolatileDisk::Write(uint64_t offset, std::span<const char> data) {
  Block block;
  while (!data.empty()) {
    const uint64_t number = offset / kBlockSize;
    const uint64_t within = offset % kBlockSize;
    const size_t count = std::min<size_t>(kBlockSize - within, data.size());
    if (count < kBlockSize) BERTH_RETURN_IF_ERROR(ReadBlock(number, block));
    std::copy_n(data.begin(), count, block.begin() + static_cast<ptrdiff_t>(within));
    cached_[number].push_back(block);
    ++cached_blocks_;
    data = data.subspan(count);
    offset += count;
  }
  return cached_blocks_ > kMaxCachedBlocks ? Flush() : absl::OkStatus();
}

absl::Status VolatileDisk::Flush() {
  for (const auto& [number, versions] : cached_) BERTH_RETURN_IF_ERROR(Keep(number, versions.back()));
  cached_.clear();
  cached_blocks_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<VolatileDisk::Loss> VolatileDisk::CutPower(std::mt19937_64& random) {
  Loss loss{.blocks = cached_.size()};
  // Now nearly all is lost, now nearly nothing.
  std::bernoulli_distribution lost(std::uniform_real_distribution<>(0, 1)(random));
  for (const auto& [number, versions] : cached_) {
    if (lost(random)) {
      ++loss.lost;
      // What was flushed, or any version but the last.
      const size_t kept = std::uniform_int_distribution<size_t>(0, versions.size() - 1)(random);
      if (kept > 0) BERTH_RETURN_IF_ERROR(Keep(number, versions[kept - 1]));
    } else {
      BERTH_RETURN_IF_ERROR(Keep(number, versions.back()));
    }
  }
  cached_.clear();
  cached_blocks_ = 0;
  return loss;
}

}  // namespace berth
