#include "rpc/uplink/lease_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string_view>

#include "base/file.h"
#include "base/number_text.h"
#include "base/safe_path.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr size_t kLimit = 256;
constexpr mode_t kDirectoryMode = 0700;
constexpr mode_t kFileMode = 0600;

// The text up to `separator`, which is removed with it; all the rest if there is no separator.
std::string_view TakeUpTo(char separator, std::string_view* text) {
  const size_t end = text->find(separator);
  const std::string_view part = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return part;
}

std::string EpochText(uint64_t epoch) {
  const std::string digits = fmt::format("{}", epoch);
  return fmt::format("epoch {} {} {}\n", digits, digits.size(), HashComponent({digits}));
}

// What a file says: berthd's own form, or an operator's number. Both end with the line. Unset: it is damaged.
std::optional<uint64_t> ParseEpoch(std::string_view text) {
  if (!text.ends_with('\n')) return std::nullopt;
  constexpr std::string_view kLead = "epoch ";
  const bool ours = text.starts_with(kLead);
  std::string_view rest = text.substr(ours ? kLead.size() : 0, text.size() - 1 - (ours ? kLead.size() : 0));
  uint64_t epoch = 0;
  const bool sound =
      ParseNumber(ours ? TakeUpTo(' ', &rest) : rest, &epoch) && (!ours || text == EpochText(epoch));
  return sound ? std::optional(epoch) : std::nullopt;
}

}  // namespace

LeaseStore::Kept LeaseStore::Load(BootTime now) const {
  Kept kept;
  const auto epoch = ReadFile(EpochPath(), kLimit);
  if (epoch.ok()) {
    const std::optional<uint64_t> number = ParseEpoch(*epoch);
    if (number) {
      kept.highest_epoch = *number;
    } else {
      kept.epoch_problem =
          fmt::format("{} {}", EpochPath(), epoch->empty() ? "is empty" : "is damaged or was shortened");
    }
  } else if (absl::IsNotFound(epoch.status())) {
    kept.epoch_missing = true;
  } else {
    kept.epoch_problem = std::string(MessageOf(epoch.status()));
  }

  const auto lease = ReadFile(LeasePath(), kLimit);
  if (absl::IsNotFound(lease.status())) return kept;
  if (!lease.ok()) {
    kept.problems.push_back(fmt::format("whether a lease holds is not known: {}", MessageOf(lease.status())));
    return kept;
  }
  std::string_view text = *lease;
  const std::string_view boot = TakeUpTo(' ', &text);
  uint64_t of_epoch = 0;
  uint64_t ends = 0;
  uint64_t since = 0;
  const bool read = ParseNumber(TakeUpTo(' ', &text), &of_epoch) &&
                    ParseNumber(TakeUpTo(' ', &text), &ends) && ParseNumber(TakeUpTo('\n', &text), &since);
  const auto latest = static_cast<uint64_t>((now + kLongestLease).time_since_epoch().count());
  if (!read || !text.empty() || ends > latest || since > ends) {
    kept.problems.push_back(fmt::format("{} is damaged: whether a lease holds is not known", LeasePath()));
    return kept;
  }
  // Of a boot before this one, or of a scheduler that was never obeyed: it does not count.
  if (boot != boot_id_ || of_epoch == 0) return kept;
  const bool epoch_known = !kept.epoch_missing && kept.epoch_problem.empty();
  if (epoch_known && of_epoch > kept.highest_epoch) return kept;
  const auto at = [](uint64_t count) { return BootTime(Duration(static_cast<Duration::rep>(count))); };
  kept.lease = Lease::Term{.epoch = of_epoch, .ends = at(ends), .since = at(since)};
  return kept;
}

absl::Status LeaseStore::WriteEpoch(uint64_t epoch) const {
  // Two at once would exchange the files twice, and leave the old epoch.
  const std::scoped_lock lock(writer_->mutex);
  if (epoch <= writer_->newest) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(const UniqueFd file, OpenSpare());
  const std::string spare = SparePath();
  const std::string text = EpochText(epoch);
  BERTH_RETURN_IF_ERROR(WriteAll(file.get(), text, fmt::format("write {}", spare)));
  if (ftruncate(file.get(), static_cast<off_t>(text.size())) != 0 || fsync(file.get()) != 0) {
    return ErrnoStatus(errno, fmt::format("write {}", spare));
  }
  // The file of the last one becomes the spare.
  if (renameat2(AT_FDCWD, spare.c_str(), AT_FDCWD, EpochPath().c_str(), RENAME_EXCHANGE) != 0) {
    // There is no last one, or this file system cannot exchange.
    if (rename(spare.c_str(), EpochPath().c_str()) != 0) {
      return ErrnoStatus(errno, fmt::format("rename {} to {}", spare, EpochPath()));
    }
    // Where there is no room for another one now, there may be by then.
    [[maybe_unused]] const absl::Status reserved = Reserve();
  }
  BERTH_RETURN_IF_ERROR(SyncParent(EpochPath()));
  writer_->newest = epoch;
  return absl::OkStatus();
}

absl::Status LeaseStore::Reserve() const {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd file, OpenSpare());
  const int error = posix_fallocate(file.get(), 0, static_cast<off_t>(kLimit));
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, fmt::format("reserve {}", SparePath()));
}

absl::StatusOr<UniqueFd> LeaseStore::OpenSpare() const {
  BERTH_RETURN_IF_ERROR(MakeDirectories(state_dir_ + "/scheduler", kDirectoryMode));
  UniqueFd file(open(SparePath().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kFileMode));
  if (!file.valid()) return ErrnoStatus(errno, fmt::format("open {}", SparePath()));
  return file;
}

absl::Status LeaseStore::WriteLease(const Lease::Term& lease) const {
  const std::string text =
      fmt::format("{} {} {} {}\n", boot_id_, lease.epoch, lease.ends.time_since_epoch().count(),
                  lease.since.time_since_epoch().count());
  return WriteFileSoon(LeasePath(), text, kFileMode);
}

}  // namespace berth
