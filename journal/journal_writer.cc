#include "journal/journal_writer.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "base/status.h"
#include "journal/journal_files.h"

namespace berth {

absl::Status JournalWriter::OpenDatabase() {
  BERTH_ASSIGN_OR_RETURN(database_, JournalDatabase::Open(options_));
  auto contents = database_->Load();
  if (!contents.ok()) {
    database_->Abandon();
    return contents.status();
  }
  contents_ = *std::move(contents);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Open(JournalDatabase::Options options) {
  std::unique_ptr<JournalWriter> writer(new JournalWriter(std::move(options)));
  const std::string& path = writer->options_.path;
  // SQLite locks the journal's file, but not what takes its place.
  BERTH_ASSIGN_OR_RETURN(writer->lock_, LockJournal(path));
  BERTH_RETURN_IF_ERROR(FinishReplacement(path));
  absl::Status status = JournalWasEmptied(path)
                            ? absl::DataLossError(fmt::format("journal {}: empty, but for its log", path))
                            : writer->OpenDatabase();
  if (status.code() == absl::StatusCode::kDataLoss) {
    writer->database_.reset();
    BERTH_ASSIGN_OR_RETURN(writer->set_aside_, SetJournalAside(path));
    SPDLOG_ERROR("{}: set aside as {}, and started again", MessageOf(status), writer->set_aside_);
    status = writer->OpenDatabase();
  }
  if (!status.ok()) return status;
  return writer;
}

std::map<std::string, std::string> JournalWriter::TakeUnreadable() {
  return std::exchange(contents_.unreadable, {});
}

absl::Status JournalWriter::RefusesNewWork() {
  const uint64_t free = FreeBytes(options_.path);
  const uint64_t least = options_.reserve.free_bytes;
  full_ = free < least;
  if (!full_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("the disk is full: {} bytes are free next to {}, and the last {} are for releasing volumes",
                  free, options_.path, least));
}

void JournalWriter::Commit(const JournalBatch& batch) {
  const absl::Status refused = RefusesNewWork();
  auto write = [this, &batch](auto taken) {
    std::vector<JournalChange> changes;
    for (const auto& one : batch) {
      if (!one->result.ok() || !taken(*one)) continue;
      changes.insert(changes.end(), one->changes.begin(), one->changes.end());
    }
    return Apply(changes);
  };
  auto fail = [&batch](const absl::Status& status, auto taken) {
    for (const auto& one : batch) {
      if (one->result.ok() && taken(*one)) one->result = status;
    }
  };
  bool new_work = false;
  for (const auto& one : batch) {
    if (!one->prepare) continue;
    one->result = refused.ok() ? one->prepare() : refused;
    new_work = new_work || one->result.ok();
  }
  auto all = [](const JournalWrite& /*write*/) { return true; };
  absl::Status status = write(all);
  if (status.code() == absl::StatusCode::kResourceExhausted && new_work) {
    // What lets volumes go is not to suffer from what does not fit.
    fail(status, [](const JournalWrite& one) { return one.prepare != nullptr; });
    status = write(all);
  }
  if (!status.ok()) fail(status, all);
}

absl::Status JournalWriter::Apply(const std::vector<JournalChange>& changes) {
  if (!unsound_.ok()) return Rewrite(changes);
  if (changes.empty()) return absl::OkStatus();
  const absl::Status status = database_->Apply(changes);
  if (status.ok()) {
    for (const JournalChange& change : changes) contents_.Apply(change);
    return status;
  }
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    full_ = true;
    return status;
  }
  unsound_ = status;
  SPDLOG_ERROR("{}: writing every row again", MessageOf(status));
  return Rewrite(changes);
}

absl::Status JournalWriter::Rewrite(const std::vector<JournalChange>& changes) {
  JournalContents next = contents_;
  for (const JournalChange& change : changes) next.Apply(change);
  const bool damaged = unsound_.code() == absl::StatusCode::kDataLoss;
  if (database_ != nullptr) database_->Abandon();
  database_.reset();

  auto replace = [&]() -> absl::Status {
    JournalDatabase::Options options = options_;
    options.reserve = {.free_bytes = 0, .log_bytes = 0, .file_bytes = 0};
    BERTH_ASSIGN_OR_RETURN(options.path, PrepareReplacement(options_.path));
    BERTH_RETURN_IF_ERROR(JournalDatabase::WriteNew(std::move(options), next));
    BERTH_RETURN_IF_ERROR(ReplaceJournal(options_.path, damaged));
    BERTH_ASSIGN_OR_RETURN(database_, JournalDatabase::Open(options_));
    return absl::OkStatus();
  };
  const absl::Status status = replace();
  if (!status.ok()) {
    return Annotate(status, fmt::format("the journal is not sound ({}) and could not be written again",
                                        MessageOf(unsound_)));
  }
  contents_ = std::move(next);
  unsound_ = absl::OkStatus();
  SPDLOG_WARN("journal {}: written again, with {} volumes", options_.path, contents_.volumes.size());
  return absl::OkStatus();
}

std::string JournalWriter::problem() const {
  if (!unsound_.ok()) {
    return fmt::format("nothing is acknowledged until the journal has been written again: {}",
                       MessageOf(unsound_));
  }
  if (!full_) return {};
  return fmt::format("the disk is full next to {}: nothing new is published; volumes can be released",
                     options_.path);
}

}  // namespace berth
