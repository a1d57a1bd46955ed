#include "supervisor/kernel_names.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "base/file.h"

namespace berth {
namespace {

// By number, as linux/capability.h has them.
constexpr std::array<std::string_view, CAP_LAST_CAP + 1> kCapabilities = {"CHOWN",
                                                                          "DAC_OVERRIDE",
                                                                          "DAC_READ_SEARCH",
                                                                          "FOWNER",
                                                                          "FSETID",
                                                                          "KILL",
                                                                          "SETGID",
                                                                          "SETUID",
                                                                          "SETPCAP",
                                                                          "LINUX_IMMUTABLE",
                                                                          "NET_BIND_SERVICE",
                                                                          "NET_BROADCAST",
                                                                          "NET_ADMIN",
                                                                          "NET_RAW",
                                                                          "IPC_LOCK",
                                                                          "IPC_OWNER",
                                                                          "SYS_MODULE",
                                                                          "SYS_RAWIO",
                                                                          "SYS_CHROOT",
                                                                          "SYS_PTRACE",
                                                                          "SYS_PACCT",
                                                                          "SYS_ADMIN",
                                                                          "SYS_BOOT",
                                                                          "SYS_NICE",
                                                                          "SYS_RESOURCE",
                                                                          "SYS_TIME",
                                                                          "SYS_TTY_CONFIG",
                                                                          "MKNOD",
                                                                          "LEASE",
                                                                          "AUDIT_WRITE",
                                                                          "AUDIT_CONTROL",
                                                                          "SETFCAP",
                                                                          "MAC_OVERRIDE",
                                                                          "MAC_ADMIN",
                                                                          "SYSLOG",
                                                                          "WAKE_ALARM",
                                                                          "BLOCK_SUSPEND",
                                                                          "AUDIT_READ",
                                                                          "PERFMON",
                                                                          "BPF",
                                                                          "CHECKPOINT_RESTORE"};
static_assert(kCapabilities[CAP_SYS_ADMIN] == "SYS_ADMIN");
static_assert(kCapabilities[CAP_LAST_CAP] == "CHECKPOINT_RESTORE");

constexpr std::string_view kPrefix = "CAP_";

int ReadLastCapability() {
  const absl::StatusOr<std::string> text = ReadFile("/proc/sys/kernel/cap_last_cap", 64);
  int last = CAP_LAST_CAP;
  if (text.ok()) std::from_chars(text->data(), text->data() + text->size(), last);
  return last;
}

}  // namespace

std::optional<int> CapabilityNumber(std::string_view name) {
  const bool lower = name.starts_with("cap_");
  if (!lower && !name.starts_with(kPrefix)) return std::nullopt;
  std::string word(name.substr(kPrefix.size()));
  if (lower) {
    if (std::any_of(word.begin(), word.end(), [](unsigned char c) { return std::isupper(c) != 0; })) {
      return std::nullopt;
    }
    for (char& c : word) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  const auto* const found = std::find(kCapabilities.begin(), kCapabilities.end(), word);
  if (found == kCapabilities.end()) return std::nullopt;
  return static_cast<int>(found - kCapabilities.begin());
}

std::string CapabilityName(int number) {
  if (number < 0 || static_cast<size_t>(number) >= kCapabilities.size()) {
    return fmt::format("capability {}", number);
  }
  return fmt::format("{}{}", kPrefix, kCapabilities.at(static_cast<size_t>(number)));
}

int LastCapability() {
  static const int last = ReadLastCapability();
  return last;
}

const std::vector<ResourceName>& ResourceNames() {
  static const std::vector<ResourceName> names = {
      {"as", RLIMIT_AS, LimitUnit::kBytes},
      {"core", RLIMIT_CORE, LimitUnit::kBytes},
      {"cpu", RLIMIT_CPU, LimitUnit::kCount},
      {"data", RLIMIT_DATA, LimitUnit::kBytes},
      {"fsize", RLIMIT_FSIZE, LimitUnit::kBytes},
      {"locks", RLIMIT_LOCKS, LimitUnit::kCount},
      {"memlock", RLIMIT_MEMLOCK, LimitUnit::kBytes},
      {"msgqueue", RLIMIT_MSGQUEUE, LimitUnit::kBytes},
      {"nice", RLIMIT_NICE, LimitUnit::kCount},
      {"nofile", RLIMIT_NOFILE, LimitUnit::kCount},
      {"nproc", RLIMIT_NPROC, LimitUnit::kCount},
      {"rss", RLIMIT_RSS, LimitUnit::kBytes},
      {"rtprio", RLIMIT_RTPRIO, LimitUnit::kCount},
      {"rttime", RLIMIT_RTTIME, LimitUnit::kCount},
      {"sigpending", RLIMIT_SIGPENDING, LimitUnit::kCount},
      {"stack", RLIMIT_STACK, LimitUnit::kBytes},
  };
  return names;
}

}  // namespace berth
