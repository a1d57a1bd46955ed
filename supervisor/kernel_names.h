// Capabilities and resource limits by the names that the kernel's manuals give them, as plugin files use
// them.
//
// Pure but for the running kernel's number of capabilities, which is read once; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

// The number of CAP_SYS_ADMIN: "CAP_SYS_ADMIN" or "cap_sys_admin". None for another name.
[[nodiscard]] std::optional<int> CapabilityNumber(std::string_view name);
// "CAP_SYS_ADMIN"; "capability 63" for one that has no name here.
[[nodiscard]] std::string CapabilityName(int number);
// The greatest number that the running kernel knows (/proc/sys/kernel/cap_last_cap).
[[nodiscard]] int LastCapability();

enum class LimitUnit { kCount, kBytes };
struct ResourceName {
  std::string_view name;  // "nofile"
  int resource;           // RLIMIT_NOFILE
  LimitUnit unit;
};
// setrlimit(2)'s, by name.
[[nodiscard]] const std::vector<ResourceName>& ResourceNames();

}  // namespace berth
