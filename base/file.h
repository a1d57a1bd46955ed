// Small files, whole: read with a limit, written so that a crash leaves the old content or the new.
// For local disk only (these calls block). Any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace berth {

// NOT_FOUND if it does not exist; OUT_OF_RANGE if it is longer than `limit` bytes; else the errno's code.
[[nodiscard]] absl::StatusOr<std::string> ReadFile(const std::string& path, size_t limit);

// The same of an open one; `path` is for messages.
[[nodiscard]] absl::StatusOr<std::string> ReadOpenFile(int fd, const std::string& path, size_t limit);

// Writes a temporary file next to `path`, fsyncs, renames, and fsyncs the directory. `mode` exactly, whatever
// the umask.
[[nodiscard]] absl::Status WriteFileAtomic(const std::string& path, std::string_view content, mode_t mode);
// The same without waiting for the disk: whole after a crash of the program, anything after one of the host.
[[nodiscard]] absl::Status WriteFileSoon(const std::string& path, std::string_view content, mode_t mode);
// Makes a file or directory durable as it is now.
[[nodiscard]] absl::Status SyncFile(const std::string& path);
// Makes durable what was made, renamed or removed in the directory of `path`.
[[nodiscard]] absl::Status SyncParent(const std::string& path);
// Unlinks it, and waits for the disk. OK if it does not exist.
[[nodiscard]] absl::Status RemoveFile(const std::string& path);

// Makes `path` and what is missing above it, each new directory with `mode` exactly; one that is there is
// left as it is. NOT a walk for hostile paths: see safe_path.h.
[[nodiscard]] absl::Status MakeDirectories(const std::string& path, mode_t mode);

// Writes all of `data`.
[[nodiscard]] absl::Status WriteAll(int fd, std::string_view data, std::string_view what);

}  // namespace berth
