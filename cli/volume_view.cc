#include "cli/volume_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/status.h"
#include "cli/capability_options.h"
#include "cli/values.h"
#include "cli/volume_condition.h"

namespace berth::cli {
namespace {

using std::chrono::system_clock;

std::string StateName(v1::VolumeState state) {
  // Nothing of it is staged or published; its condition says why it is shown.
  if (state == v1::VOLUME_STATE_UNKNOWN) return v1::VolumeState_Name(v1::ABSENT);
  return v1::VolumeState_IsValid(state) ? v1::VolumeState_Name(state) : "UNKNOWN";
}

std::string Running(const v1::Volume& volume, system_clock::time_point now) {
  if (volume.running().empty() || !volume.has_running_since()) return volume.running();
  return fmt::format("{}, began {}", volume.running(), FormatRelative(volume.running_since(), now));
}

Cell ConditionCell(const std::vector<Condition>& conditions) {
  if (conditions.empty()) return {"ok", Tone::kGood};
  std::vector<std::string> words;
  for (const Condition& condition : conditions) {
    if (std::find(words.begin(), words.end(), condition.word) == words.end()) words.push_back(condition.word);
  }
  return {fmt::format("{}", fmt::join(words, ", ")), conditions.front().tone};
}

// What a person should look at: the worst trouble of the volume, or what runs now.
Cell Now(const v1::Volume& volume, const std::vector<Condition>& conditions, system_clock::time_point now) {
  if (conditions.empty() || conditions.front().tone != Tone::kBad) {
    if (!volume.running().empty()) return Running(volume, now);
    if (conditions.empty()) return "";
  }
  std::string text = conditions.front().text;
  std::vector<std::string> tries;
  if (volume.failures() > 1) tries.push_back(fmt::format("failed {} times", volume.failures()));
  if (volume.has_next_retry_at()) tries.push_back("again " + FormatRelative(volume.next_retry_at(), now));
  if (!tries.empty()) text += fmt::format(" ({})", fmt::join(tries, ", "));
  return {text, conditions.front().tone};
}

std::string_view OriginName(v1::PublicationOrigin origin) {
  if (origin == v1::DECLARED) return "declared";
  return origin == v1::SCHEDULER ? "scheduler" : "caller";
}

// Until when it is used: the end of what.
std::string Life(const v1::Publication& use) {
  std::vector<std::string> parts;
  if (use.ephemeral()) parts.emplace_back("ephemeral");
  if (use.remount()) parts.emplace_back("remounted");
  switch (use.life().kind_case()) {
    case v1::ConsumerLife::kPid:
      parts.push_back(fmt::format("until process {} ends", use.life().pid()));
      break;
    case v1::ConsumerLife::kCgroup:
      parts.push_back("until cgroup " + use.life().cgroup() + " is empty");
      break;
    case v1::ConsumerLife::kUnit:
      parts.push_back("until unit " + use.life().unit() + " ends");
      break;
    case v1::ConsumerLife::KIND_NOT_SET:
      break;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

Cell UseTrouble(const v1::Publication& use) {
  if (!use.dead().empty()) return {"dead: " + use.dead(), Tone::kBad};
  if (!use.hung().empty()) return {"hung: " + use.hung(), Tone::kBad};
  if (!use.writes_refused().empty()) return {"read-only: " + use.writes_refused(), Tone::kBad};
  if (use.awaiting_secrets()) return {"needs secrets", Tone::kBad};
  if (!use.blocked().empty()) return {"blocked: " + use.blocked(), Tone::kCareful};
  if (!use.path_error().empty()) return {"path: " + use.path_error(), Tone::kBad};
  return {use.last_error(), Tone::kBad};
}

// Where it is mounted.
std::string Targets(const v1::Publication& use) {
  return use.path_mounted() ? fmt::format("{}, {}", use.path(), use.target_path()) : use.target_path();
}

}  // namespace

std::string PrintableName(std::string_view text) { return text.empty() ? "''" : Printable(text, 200); }

std::string Use(const std::string& consumer, const std::string& name) {
  return name.empty() ? PrintableName(consumer)
                      : fmt::format("{}/{}", PrintableName(consumer), PrintableName(name));
}

Cell StateCell(v1::VolumeState state, bool uncertain) {
  const std::string name = StateName(state);
  if (uncertain) return {name + " (uncertain)", Tone::kBad};
  if (state == v1::PUBLISHED) return {name, Tone::kGood};
  return {name, state == v1::STAGED ? Tone::kPlain : Tone::kCareful};
}

Cell DescribeCondition(const v1::VolumeCondition& condition) {
  std::string text = condition.abnormal() ? "abnormal" : "normal";
  if (!condition.message().empty()) text += ", " + condition.message();
  return {text, condition.abnormal() ? Tone::kBad : Tone::kPlain};
}

Table VolumeTable(const v1::ListVolumesResponse& volumes, system_clock::time_point now) {
  Table table({"PLUGIN", "VOLUME", "STATE", "CONDITION", "CAPABILITY", "CONSUMERS", "NOW"});
  for (const v1::Volume& volume : volumes.volumes()) {
    std::vector<std::string> uses;
    for (const v1::Publication& use : volume.publications()) uses.push_back(Use(use.consumer(), use.name()));
    const std::vector<Condition> conditions = ConditionsOf(volume, now);
    // The condition says already what is uncertain.
    const std::string& label = volume.label();
    const std::string named = volume.volume_id() + (label.empty() ? "" : fmt::format(" ({})", label));
    table.Add({volume.plugin_id(), named, StateCell(volume.state(), false), ConditionCell(conditions),
               DescribeCapability(volume.capability()), fmt::format("{}", fmt::join(uses, ", ")),
               Now(volume, conditions, now)});
  }
  return table;
}

Table VolumeDetails(const v1::Volume& volume, system_clock::time_point now) {
  Table table;
  table.Add({"plugin", volume.plugin_id()});
  if (!volume.driver_name().empty()) {
    table.Add({"driver", fmt::format("{} {}", volume.driver_name(), volume.driver_version())});
  }
  table.Add({"volume", volume.volume_id()});
  if (!volume.label().empty()) table.Add({"label", volume.label()});
  table.Add({"state", StateCell(volume.state(), volume.uncertain())});
  if (!volume.declared_in().empty()) table.Add({"declared in", volume.declared_in()});
  table.Add({"capability", DescribeCapability(volume.capability())});
  if (!volume.capability().mount_flags().empty()) {
    table.Add({"mount flags", fmt::format("{}", fmt::join(volume.capability().mount_flags(), ","))});
  }
  if (!volume.capability().volume_mount_group().empty()) {
    table.Add({"mount group", volume.capability().volume_mount_group()});
  }
  table.Add({"staged at", volume.staging_path()});
  if (!volume.running().empty()) table.Add({"running", Running(volume, now)});
  for (const Condition& condition : ConditionsOf(volume, now)) {
    table.Add({condition.word, Cell(condition.text, condition.tone)});
  }
  if (!volume.advice().empty()) table.Add({"do", volume.advice()});
  if (volume.has_next_retry_at()) table.Add({"next try", FormatRelative(volume.next_retry_at(), now)});
  return table;
}

Table UseTable(const v1::Volume& volume, system_clock::time_point now) {
  Table uses({"CONSUMER", "NAME", "STATE", "ACCESS", "ORIGIN", "SINCE", "TARGET", "LIFE", "TROUBLE"});
  for (const v1::Publication& use : volume.publications()) {
    uses.Add({use.consumer(), use.name(), StateCell(use.state(), use.uncertain()),
              use.readonly() ? "read-only" : "read-write", std::string(OriginName(use.origin())),
              use.has_published_at() ? FormatRelative(use.published_at(), now) : "", Targets(use), Life(use),
              UseTrouble(use)});
  }
  return uses;
}

void AddUsage(Table& table, const google::protobuf::RepeatedPtrField<v1::VolumeUsage>& usage,
              const std::vector<Cell>& subject) {
  for (const v1::VolumeUsage& each : usage) {
    const auto number = [&](int64_t value) {
      return each.unit() == "BYTES" ? FormatSize(value) : fmt::to_string(value);
    };
    const double share =
        each.total() > 0 ? 100.0 * static_cast<double>(each.used()) / static_cast<double>(each.total()) : 0;
    std::vector<Cell> row = subject;
    for (std::string cell : {each.unit(), number(each.total()), number(each.used()), number(each.available()),
                             each.total() > 0 ? fmt::format("{:.0f}%", share) : std::string()}) {
      row.emplace_back(std::move(cell));
    }
    table.Add(std::move(row));
  }
}

}  // namespace berth::cli
