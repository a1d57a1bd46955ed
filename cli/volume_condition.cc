#include "cli/volume_condition.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/quoting.h"
#include "cli/values.h"

namespace berth::cli {
namespace {

using std::chrono::system_clock;

std::string Since(const google::protobuf::Timestamp& time, system_clock::time_point now) {
  const auto elapsed = now - system_clock::from_time_t(time.seconds());
  return FormatDuration(std::chrono::duration_cast<std::chrono::milliseconds>(elapsed));
}

Condition Stuck(const v1::Volume& volume, system_clock::time_point now) {
  const v1::Stuck& stuck = volume.stuck();
  const std::string age = stuck.has_since() ? Since(stuck.since(), now) : "";
  return {.word = age.empty() ? "stuck" : "stuck " + age,
          .text = fmt::format("{} does not return{}{}{}", stuck.on(), age.empty() ? "" : ", since " + age,
                              stuck.pid() != 0 ? fmt::format(" (helper process {})", stuck.pid()) : "",
                              stuck.plugin_hangs() ? ": the plugin itself hangs" : "")};
}

// What the operator's `force` and `lazy` have done.
std::vector<Condition> Levers(const v1::Volume& volume, system_clock::time_point now) {
  std::vector<Condition> done;
  if (volume.has_aborted_at()) {
    done.push_back({.word = "aborted",
                    .text = "its file system was aborted " + FormatRelative(volume.aborted_at(), now),
                    .tone = Tone::kCareful});
  }
  if (volume.has_detached_at()) {
    done.push_back({.word = "detached",
                    .text = fmt::format("a mount of it was detached {}: it stays in use until its users end",
                                        FormatRelative(volume.detached_at(), now)),
                    .tone = Tone::kCareful});
  }
  return done;
}

// File systems that hang, are dead, or refuse writes: the worst kind first.
std::vector<Condition> MountsOf(const v1::Volume& volume) {
  std::vector<Condition> ill;
  for (const v1::Publication& use : volume.publications()) {
    if (use.hung().empty()) continue;
    ill.push_back(
        {.word = "hung",
         .text = fmt::format("the file system of {} does not answer: {}", use.consumer(), use.hung())});
  }
  for (const v1::Publication& use : volume.publications()) {
    if (use.dead().empty()) continue;
    ill.push_back({.word = "dead",
                   .text = fmt::format("the file system of {} has ended: {}", use.consumer(), use.dead())});
  }
  for (const v1::Publication& use : volume.publications()) {
    if (use.writes_refused().empty()) continue;
    ill.push_back(
        {.word = "read-only",
         .text = fmt::format("the mount of {} refuses writes: {}", use.consumer(), use.writes_refused())});
  }
  return ill;
}

// What its last error means.
std::optional<Condition> Failing(const v1::Volume& volume) {
  const std::string& error = volume.last_error();
  if (volume.state() == v1::ABSENT && !volume.declared_in().empty() && !volume.still_in_use()) {
    return Condition{
        .word = "not here yet",
        .text = fmt::format("declared in {}{}{}", volume.declared_in(), error.empty() ? "" : ": ", error),
        .tone = error.empty() ? Tone::kCareful : Tone::kBad};
  }
  if (volume.still_in_use() && volume.publications().empty()) {
    return Condition{.word = "in use",
                     .text = "not released, " + (error.empty() ? "the kernel may still have it" : error)};
  }
  if (error.empty()) return std::nullopt;
  return Condition{.word = "failing", .text = error};
}

}  // namespace

std::string NamedInShell(const v1::Volume& volume) {
  return fmt::format("--plugin {} --volume {}", ShellQuoted(volume.plugin_id()),
                     ShellQuoted(volume.volume_id()));
}

std::vector<Condition> ConditionsOf(const v1::Volume& volume, system_clock::time_point now) {
  std::vector<Condition> conditions;
  if (volume.has_without_plugin()) {
    conditions.push_back(
        {.word = "no plugin",
         .text = fmt::format(
             "released without its plugin {}, as {} asked: the plugin has still to undo its part",
             FormatRelative(volume.without_plugin().at(), now), volume.without_plugin().requested_by()),
         .tone = Tone::kCareful});
  } else if (volume.plugin_missing()) {
    conditions.push_back({.word = "no plugin", .text = "its plugin is not on this node"});
  }
  if (volume.has_stuck()) conditions.push_back(Stuck(volume, now));
  for (Condition& ill : MountsOf(volume)) conditions.push_back(std::move(ill));
  for (Condition& done : Levers(volume, now)) conditions.push_back(std::move(done));
  if (volume.awaiting_secrets()) {
    conditions.push_back({.word = "needs secrets",
                          .text = "a step must be repeated and needs secrets, which are never written down"});
  }
  for (const v1::Publication& use : volume.publications()) {
    if (!use.blocked().empty()) {
      conditions.push_back({.word = "blocked",
                            .text = fmt::format("nothing is done for {}: {}", use.consumer(), use.blocked()),
                            .tone = Tone::kCareful});
    }
  }
  if (auto failing = Failing(volume)) conditions.push_back(*std::move(failing));
  const bool uncertain =
      volume.uncertain() ||
      std::any_of(volume.publications().begin(), volume.publications().end(), [](const v1::Publication& use) {
        // Of one that is blocked the reason says it.
        return use.uncertain() && use.blocked().empty();
      });
  if (uncertain) {
    conditions.push_back(
        {.word = "uncertain", .text = "whether the last step happened is not known", .tone = Tone::kCareful});
  }
  if (volume.pending_expansion_bytes() != 0) {
    conditions.push_back({.word = "to be grown",
                          .text = fmt::format("the node's part of growing it to {} is not done yet",
                                              FormatSize(volume.pending_expansion_bytes())),
                          .tone = Tone::kCareful});
  }
  if (volume.condition().abnormal()) {
    conditions.push_back({.word = "abnormal",
                          .text = "its plugin says of it: " + volume.condition().message(),
                          .tone = Tone::kCareful});
  }
  return conditions;
}

}  // namespace berth::cli
