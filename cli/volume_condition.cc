#include "cli/volume_condition.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/quoting.h"
#include "cli/values.h"

namespace berth::cli {
namespace {

using std::chrono::system_clock;

std::string Since(const google::protobuf::Timestamp& time, system_clock::time_point now) {
  const auto elapsed = now - system_clock::from_time_t(time.seconds());
  return FormatDuration(std::chrono::duration_cast<std::chrono::milliseconds>(elapsed));
}

// "berthctl volume unpublish --plugin P --volume V --consumer C --name N", ready to be run.
std::string Unpublish(const v1::Volume& volume, const v1::Publication& use) {
  std::string command = fmt::format("berthctl volume unpublish {} --consumer {}", NamedInShell(volume),
                                    ShellQuoted(use.consumer()));
  if (!use.name().empty()) command += " --name " + ShellQuoted(use.name());
  return command;
}

// A use that a command for the whole volume may name: the one that is being undone, else the first.
const v1::Publication* UseToEnd(const v1::Volume& volume) {
  const auto& uses = volume.publications();
  const auto found = std::find_if(uses.begin(), uses.end(),
                                  [](const v1::Publication& use) { return use.state() == v1::UNPUBLISHING; });
  if (found != uses.end()) return &*found;
  return uses.empty() ? nullptr : &*uses.begin();
}

Condition Stuck(const v1::Volume& volume, system_clock::time_point now) {
  const v1::Stuck& stuck = volume.stuck();
  const std::string age = stuck.has_since() ? Since(stuck.since(), now) : "";
  Condition condition{.word = age.empty() ? "stuck" : "stuck " + age, .text = {}, .next = {}};
  condition.text = fmt::format("{} does not come back{}{}", stuck.on(), age.empty() ? "" : ", since " + age,
                               stuck.pid() != 0 ? fmt::format(" (helper process {})", stuck.pid()) : "");
  condition.next = "It ends when the file system, or the plugin, answers; other volumes do not wait for it.";
  if (const v1::Publication* use = UseToEnd(volume)) {
    condition.next += fmt::format(" To give the file system up, with what it has not written: {} --force",
                                  Unpublish(volume, *use));
  }
  return condition;
}

Condition Dead(const v1::Volume& volume, const v1::Publication& use) {
  Condition condition{.word = "dead",
                      .text = fmt::format("the mount of {} does not answer: {}", use.consumer(), use.dead()),
                      .next = {}};
  if (use.remount()) {
    condition.next =
        fmt::format("It is mounted again of itself; {} must be restarted to see it.", use.consumer());
  } else if (use.ephemeral()) {
    condition.next = fmt::format(
        "An ephemeral volume is not repaired, since its unpublish deletes it. Once {} has ended: {}",
        use.consumer(), Unpublish(volume, use));
  } else {
    condition.next =
        fmt::format("End {}, then {}; publish it again afterwards", use.consumer(), Unpublish(volume, use));
  }
  return condition;
}

Condition AwaitingSecrets(const v1::Volume& volume) {
  const v1::Publication* use = UseToEnd(volume);
  return {.word = "needs secrets",
          .text = "a step must be repeated and needs secrets, which are never written down",
          .next = fmt::format("Repeat the publish with --secrets-file, or let it go: {}",
                              use == nullptr ? "berthctl volume unpublish" : Unpublish(volume, *use))};
}

Condition Held(const v1::Volume& volume, const v1::Publication& use) {
  // Another node may have it by its scheduler's will: repeating the publish by hand is no advice.
  const std::string_view back = use.origin() == v1::SCHEDULER ? "It goes on once its scheduler is heard; or"
                                                              : "Repeat the publish to have it back, or";
  return {.word = "held",
          .text = fmt::format("nothing is done for {}: {}", use.consumer(), use.held()),
          .next = fmt::format("{} let it go: {}", back, Unpublish(volume, use)),
          .tone = Tone::kCareful};
}

Condition NotHereYet(const v1::Volume& volume) {
  return {
      .word = "not here yet",
      .text = fmt::format("declared in {}{}{}", volume.declared_in(), volume.last_error().empty() ? "" : ": ",
                          volume.last_error()),
      .next =
          "What it waits for is awaited, and what failed is tried again, of itself; a changed file is read "
          "with: berthctl reload",
      .tone = volume.last_error().empty() ? Tone::kCareful : Tone::kBad};
}

Condition InUse(const v1::Volume& volume, system_clock::time_point now) {
  return {
      .word = "in use",
      .text = "not released, " +
              (volume.last_error().empty() ? "the kernel may still have it" : volume.last_error()),
      .next = fmt::format(
          "It is released by itself once its users have ended{}. Until then it is not free: do not "
          "attach it to another node.",
          volume.has_next_retry_at() ? ", next look " + FormatRelative(volume.next_retry_at(), now) : "")};
}

Condition Failing(const v1::Volume& volume, system_clock::time_point now) {
  Condition condition{.word = "failing", .text = volume.last_error(), .next = {}};
  if (volume.has_next_retry_at()) {
    condition.next = fmt::format("It is tried again {}.", FormatRelative(volume.next_retry_at(), now));
  } else if (volume.running().empty()) {
    condition.next = "Repeat what failed, or unpublish it.";
  }
  return condition;
}

}  // namespace

std::string NamedInShell(const v1::Volume& volume) {
  return fmt::format("--plugin {} --volume {}", ShellQuoted(volume.plugin_id()),
                     ShellQuoted(volume.volume_id()));
}

std::vector<Condition> ConditionsOf(const v1::Volume& volume, system_clock::time_point now) {
  std::vector<Condition> conditions;
  if (volume.has_stuck()) conditions.push_back(Stuck(volume, now));
  for (const v1::Publication& use : volume.publications()) {
    if (!use.dead().empty()) conditions.push_back(Dead(volume, use));
  }
  if (volume.awaiting_secrets()) conditions.push_back(AwaitingSecrets(volume));
  for (const v1::Publication& use : volume.publications()) {
    if (!use.held().empty()) conditions.push_back(Held(volume, use));
  }
  if (volume.state() == v1::ABSENT && !volume.declared_in().empty() && !volume.may_live_on()) {
    conditions.push_back(NotHereYet(volume));
  } else if (volume.may_live_on() && volume.publications().empty()) {
    conditions.push_back(InUse(volume, now));
  } else if (!volume.last_error().empty()) {
    conditions.push_back(Failing(volume, now));
  }
  const bool uncertain =
      volume.uncertain() || std::any_of(volume.publications().begin(), volume.publications().end(),
                                        [](const v1::Publication& use) { return use.uncertain(); });
  if (uncertain) {
    conditions.push_back({.word = "uncertain",
                          .text = "whether the last step happened is not known; it is repeated or reversed",
                          .next = "",
                          .tone = Tone::kCareful});
  }
  if (volume.owed_expansion_bytes() != 0) {
    conditions.push_back({.word = "to be grown",
                          .text = fmt::format("the node's part of growing it to {} is still owed",
                                              FormatSize(volume.owed_expansion_bytes())),
                          .next = "",
                          .tone = Tone::kCareful});
  }
  if (volume.condition().abnormal()) {
    conditions.push_back({.word = "abnormal",
                          .text = "its plugin says of it: " + volume.condition().message(),
                          .next = "",
                          .tone = Tone::kCareful});
  }
  return conditions;
}

}  // namespace berth::cli
