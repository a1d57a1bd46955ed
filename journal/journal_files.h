// The journal's file as a whole: set aside when it is damaged, replaced when it cannot be trusted any more.
//
// Blocks on the local disk. Used by JournalWriter alone, under the lock, while it has the file closed.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace berth {

// Locks the journal `path` and all files next to it that this header names, as long as the result is open: by
// the file <path>.lock (mode 0600), which stays. FAILED_PRECONDITION: another process has it. The lock
// belongs to the process (fcntl(2)): a child does not inherit it, and one process must take it once only.
[[nodiscard]] absl::StatusOr<UniqueFd> LockJournal(const std::string& path);

// The message for a process that does not get it.
[[nodiscard]] absl::Status JournalInUse(const std::string& path);

// Renames `path`, with its log and its index, to path.corrupt-<UTC time>, durably; nothing is deleted.
// Returns the file's new name.
[[nodiscard]] absl::StatusOr<std::string> SetJournalAside(const std::string& path);

// Where the file that is to take the place of `path` is written. What an earlier try left is removed.
[[nodiscard]] absl::StatusOr<std::string> PrepareReplacement(const std::string& path);
// Replaces `path` by it, whole and on the disk; the log of `path` goes; `keep_old`: the old file is set
// aside. From the call on the new file counts, also after a power cut: FinishReplacement does the rest at the
// next start.
[[nodiscard]] absl::Status ReplaceJournal(const std::string& path, bool keep_old);
// What a crash in the middle of ReplaceJournal left to do. OK where nothing is.
[[nodiscard]] absl::Status FinishReplacement(const std::string& path);

// Whether the file is empty while its log is not: then what it held is lost.
[[nodiscard]] bool JournalWasEmptied(const std::string& path);

// The free space on the disk for us, in bytes; the largest number if it is not known.
[[nodiscard]] uint64_t FreeBytes(const std::string& path);

}  // namespace berth
