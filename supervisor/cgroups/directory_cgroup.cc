// A plugin's cgroup directory of our own making, and what all kinds of places share.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/size_text.h"
#include "base/status.h"
#include "supervisor/cgroups/plugin_cgroup_kinds.h"

namespace berth::cgroup_internal {
namespace {

std::optional<uint64_t> ReadNumber(const CgroupDir& group, const char* file) {
  const absl::StatusOr<std::string> text = group.Read(file);
  uint64_t number = 0;
  // "max" is no number.
  if (!text.ok() || std::from_chars(text->data(), text->data() + text->size(), number).ec != std::errc()) {
    return std::nullopt;
  }
  return number;
}

uint64_t ReadCounter(const CgroupDir& group, const char* file, std::string_view key) {
  const absl::StatusOr<std::string> text = group.Read(file);
  return text.ok() ? FlatKeyedValue(*text, key) : 0;
}

std::string Enumerate(const std::vector<std::string>& words) {
  if (words.size() < 2) return words.empty() ? "" : words.front();
  return fmt::format("{} and {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

class DirectoryCgroupImpl : public PluginCgroup {
 public:
  DirectoryCgroupImpl(CgroupDir group, CgroupLimits limits, std::string unenforced)
      : group_(std::move(group)),
        limits_(limits),
        unenforced_(std::move(unenforced)),
        before_(ReadCounters(group_)) {}

  [[nodiscard]] std::string describe() const override { return "cgroup " + group_.path(); }
  [[nodiscard]] const std::string& unenforced() const override { return unenforced_; }
  [[nodiscard]] bool has_group() const override { return true; }
  [[nodiscard]] int cgroup_fd() const override { return group_.fd(); }
  [[nodiscard]] uint64_t group_id() const override { return group_.Id(); }

  // One that was cloned into the group is in it already: moving it there again would cost the loop 10 ms.
  Awaitable<absl::Status> Enter(pid_t pid, TimePoint /*deadline*/) override {
    BERTH_CO_ASSIGN_OR_RETURN(const std::vector<pid_t> members, group_.Members());
    if (std::find(members.begin(), members.end(), pid) != members.end()) co_return absl::OkStatus();
    co_return group_.Write("cgroup.procs", fmt::format("{}", pid));
  }

  Awaitable<CgroupExit> HowItEnded() override {
    GroupCounters now = ReadCounters(group_);
    now.oom_kill -= std::min(now.oom_kill, before_.oom_kill);
    now.oom -= std::min(now.oom, before_.oom);
    now.pids_max -= std::min(now.pids_max, before_.pids_max);
    co_return Judge(now, limits_);
  }

  absl::StatusOr<std::vector<pid_t>> Members() const override { return group_.Members(); }
  Awaitable<absl::Status> KillAll(TimePoint deadline) override {
    co_return co_await group_.KillAll(deadline);
  }

  Awaitable<void> Release() override {
    // Refused while anything is in it; then the next launch makes another, and this one goes when it is
    // empty.
    if (!group_.StillThere() || rmdir(group_.path().c_str()) != 0) co_return;
    rmdir(std::filesystem::path(group_.path()).parent_path().c_str());
  }

 private:
  CgroupDir group_;
  CgroupLimits limits_;
  std::string unenforced_;
  GroupCounters before_;
};

}  // namespace

Enforceable EnforceableBy(const std::vector<std::string>& controllers) {
  const auto has = [&](std::string_view name) {
    return std::find(controllers.begin(), controllers.end(), name) != controllers.end();
  };
  return {.memory = has("memory"), .pids = has("pids"), .cpu = has("cpu")};
}

std::string Unenforced(const CgroupLimits& limits, Enforceable enforceable, std::string_view why) {
  std::vector<std::string> names;
  if (limits.memory_max.has_value() && !enforceable.memory) names.emplace_back("memory");
  if (limits.pids_max.has_value() && !enforceable.pids) names.emplace_back("pids");
  if (limits.cpus.has_value() && !enforceable.cpu) names.emplace_back("cpus");
  if (names.empty()) return "";
  return fmt::format("its limit{} of {} {} not enforced: {}", names.size() == 1 ? "" : "s", Enumerate(names),
                     names.size() == 1 ? "is" : "are", why);
}

std::string MissingControllers(Enforceable enforceable) {
  std::vector<std::string> names;
  if (!enforceable.memory) names.emplace_back("memory");
  if (!enforceable.pids) names.emplace_back("pids");
  if (!enforceable.cpu) names.emplace_back("cpu");
  return Enumerate(names);
}

std::string ScopeName(std::string_view plugin_id, int number) {
  std::string id = EscapeUnitName(plugin_id);
  // A unit's name holds 255 bytes. An id that is too long escaped fits as it is, and all of its characters
  // may stand in a unit's name.
  if (id.size() > 200) id = std::string(plugin_id);
  return fmt::format("{}{}{}{}", kScopePrefix, id, number == 1 ? "" : fmt::format("-{}", number),
                     kScopeSuffix);
}

std::string DirectoryName(std::string_view plugin_id, int number) {
  return fmt::format("{}{}", plugin_id, number == 1 ? "" : fmt::format("+{}", number));
}

GroupCounters ReadCounters(const CgroupDir& group) {
  return {.oom_kill = ReadCounter(group, "memory.events", "oom_kill"),
          .oom = ReadCounter(group, "memory.events", "oom"),
          .pids_max = ReadCounter(group, "pids.events", "max")};
}

CgroupExit Judge(const GroupCounters& counters, const CgroupLimits& limits) {
  CgroupExit end;
  end.out_of_memory = counters.oom_kill > 0;
  end.pids_limit_hit = counters.pids_max > 0;
  if (end.out_of_memory) {
    end.text = "out of memory";
    if (!limits.memory_max.has_value()) {
      end.text += " (the machine's: it has no limit of its own)";
    } else if (counters.oom > 0) {
      end.text += fmt::format(" (its limit is {})", FormatSize(*limits.memory_max));
    } else {
      end.text += fmt::format(" (the machine's, not its limit of {})", FormatSize(*limits.memory_max));
    }
  }
  if (end.pids_limit_hit) {
    if (!end.text.empty()) end.text += "; ";
    end.text += limits.pids_max.has_value()
                    ? fmt::format("met its limit of {} processes and threads", *limits.pids_max)
                    : "met a limit of processes and threads";
  }
  return end;
}

CgroupLimits ReadLimits(const CgroupDir& group) {
  CgroupLimits limits;
  limits.memory_max = ReadNumber(group, "memory.max");
  limits.pids_max = ReadNumber(group, "pids.max");
  return limits;
}

std::unique_ptr<PluginCgroup> DirectoryCgroup(CgroupDir group, CgroupLimits limits, std::string unenforced) {
  return std::make_unique<DirectoryCgroupImpl>(std::move(group), limits, std::move(unenforced));
}

}  // namespace berth::cgroup_internal
