// The immutable flag of a directory (chattr +i): nothing can be made in it, and it cannot be removed, by root
// neither. Any thread; touches the directory's own file system.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

namespace berth {

// `directory` is a descriptor of it, open for reading.
//
// Sets the flag on an empty directory. FAILED_PRECONDITION: it is not empty, and was left without the flag.
// Any other error: its file system has no such flag, or the caller may not set it.
[[nodiscard]] absl::Status MakeImmutable(int directory);
// Takes the flag away where it is set.
[[nodiscard]] absl::Status MakeMutable(int directory);
// Errors: its file system has no such flag.
[[nodiscard]] absl::StatusOr<bool> IsImmutable(int directory);

// The name of an entry of the directory; empty: it has none.
[[nodiscard]] absl::StatusOr<std::string> FirstEntry(int directory);

}  // namespace berth
