#include "rpc/node_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "base/shell_quoted.h"
#include "base/status.h"
#include "mounter/volume_advice.h"
#include "rpc/convert.h"
#include "rpc/convert_volume.h"

namespace berth {
namespace {

using Severity = Finding::Severity;

// For a command that people copy.
std::string Word(const std::string& text) { return ShellQuoted(Printable(text, 256)); }

Finding OfPlugin(const PluginSnapshot& plugin, Severity severity, std::string code, std::string text,
                 std::string advice) {
  Finding finding;
  finding.severity = severity;
  finding.code = std::move(code);
  finding.plugin_id = plugin.id;
  finding.text = std::move(text);
  finding.advice = std::move(advice);
  return finding;
}

std::string Explain(const std::string& plugin_id, const std::string& volume_id) {
  return fmt::format("berthctl volume explain --plugin {} {}", Word(plugin_id), Word(volume_id));
}

Finding OfVolume(const VolumeView& volume, Severity severity, std::string code, std::string text) {
  Finding finding;
  finding.severity = severity;
  finding.code = std::move(code);
  finding.plugin_id = volume.plugin_id;
  finding.volume_id = volume.volume_id;
  finding.text = fmt::format("volume {} of plugin {}{}", PrintableName(volume.volume_id),
                             PrintableName(volume.plugin_id), text);
  finding.advice = AdviceFor(volume);
  if (finding.advice.empty()) finding.advice = Explain(volume.plugin_id, volume.volume_id);
  return finding;
}

// What has failed and is not done yet. An error of something that has come to its end since is settled.
bool Failing(const VolumeView& volume) {
  if (volume.last_error.empty()) return false;
  const auto fails = [](const PublicationView& use) {
    return use.state != PublicationState::kPublished && !use.last_error.empty() && !use.blocked;
  };
  const bool moving =
      volume.stage_state == StageState::kStaging || volume.stage_state == StageState::kUnstaging;
  return volume.still_in_use || volume.next_retry_at.has_value() || moving || volume.uncertain ||
         volume.publications.empty() || std::ranges::any_of(volume.publications, fails);
}

std::string CorrectFile(const PluginSnapshot& plugin) {
  return fmt::format("correct {}, then: berthctl reload", Printable(plugin.config_file, 512));
}

std::string ReadItsLog(const PluginSnapshot& plugin) {
  return fmt::format("berthctl plugin {} {}", plugin.external ? "show" : "logs", Word(plugin.id));
}

std::string Text(const PluginSnapshot& plugin) {
  return fmt::format("plugin {} is {}{}", PrintableName(plugin.id), PluginStateName(plugin.state),
                     ReasonSuffix(plugin.reason));
}

}  // namespace

bool IsOnItsWay(const PluginSnapshot& plugin, TimePoint now) {
  if (plugin.paused) return true;
  const bool starts = plugin.state == PluginState::kStarting ||
                      (plugin.state == PluginState::kReady && !plugin.registered && plugin.reason.empty());
  return starts && now < plugin.since + plugin.start_timeout;
}

bool WaitsForStart(const PluginMap& plugins, const std::string& name, TimePoint now) {
  const auto named = plugins.find(name);
  if (named != plugins.end()) return IsOnItsWay(named->second, now);
  return std::ranges::any_of(plugins, [&](const auto& entry) {
    const PluginSnapshot& plugin = entry.second;
    return IsOnItsWay(plugin, now) && (!plugin.facts.has_value() || plugin.facts->name == name);
  });
}

std::vector<Finding> FindingsOf(const PluginSnapshot& plugin, int held, TimePoint now) {
  std::vector<Finding> findings;
  const auto add = [&](Severity severity, const char* code, std::string advice) {
    findings.push_back(OfPlugin(plugin, severity, code, Text(plugin), std::move(advice)));
  };
  if (!plugin.file_error.empty()) {
    findings.push_back(
        OfPlugin(plugin, Severity::kWarning, "plugin.file",
                 fmt::format("plugin {}: {}", PrintableName(plugin.id), Printable(plugin.file_error)),
                 CorrectFile(plugin)));
  }
  if (IsOnItsWay(plugin, now)) {
    add(Severity::kInfo, "plugin.starting", "");
    return findings;
  }
  switch (plugin.state) {
    case PluginState::kFailed:
      // It was never launched, by this berthd at least: then its file is what is wrong.
      add(Severity::kError, "plugin.failed",
          plugin.started_at || plugin.last_exit_at
              ? fmt::format("{}; then: berthctl plugin start {}", ReadItsLog(plugin), Word(plugin.id))
              : CorrectFile(plugin));
      break;
    case PluginState::kUnhealthy:
      add(Severity::kWarning, "plugin.unhealthy", ReadItsLog(plugin));
      break;
    case PluginState::kBackingOff:
      add(Severity::kWarning, "plugin.backing_off", ReadItsLog(plugin));
      break;
    case PluginState::kStarting:
      add(Severity::kWarning, "plugin.late", ReadItsLog(plugin));
      break;
    case PluginState::kStopped:
      // By a person, or its file: in order, unless something needs it.
      if (held > 0) {
        findings.push_back(
            OfPlugin(plugin, Severity::kWarning, "plugin.stopped",
                     fmt::format("plugin {} is stopped, and {} volume{} in use through it cannot be released",
                                 PrintableName(plugin.id), held, held == 1 ? "" : "s"),
                     fmt::format("berthctl plugin start {}", Word(plugin.id))));
      }
      break;
    case PluginState::kDraining:
      add(Severity::kInfo, "plugin.draining", "");
      break;
    case PluginState::kReady:
      if (plugin.registered) break;
      findings.push_back(OfPlugin(plugin, Severity::kError, "plugin.refused",
                                  fmt::format("plugin {} answers but takes no work{}",
                                              PrintableName(plugin.id), ReasonSuffix(plugin.reason)),
                                  fmt::format("berthctl plugin show {}", Word(plugin.id))));
      break;
  }
  return findings;
}

std::vector<Finding> FindingsOf(const VolumeView& volume) {
  std::vector<Finding> findings;
  const auto add = [&](Severity severity, const char* code, const std::string& text) -> Finding& {
    return findings.emplace_back(OfVolume(volume, severity, code, text));
  };
  if (volume.stuck) {
    const auto helper =
        volume.stuck->pid > 0 ? fmt::format(" (process {})", volume.stuck->pid) : std::string();
    add(Severity::kError, "volume.stuck",
        fmt::format(" is stuck in {}{}", PrintableName(volume.stuck->on), helper));
  } else if (volume.awaiting_secrets) {
    add(Severity::kWarning, "volume.awaiting_secrets",
        ": a step has to be repeated, and its secrets were never written down");
  } else if (volume.uncertain) {
    // Until something fails, the step is merely repeated.
    add(volume.last_error.empty() ? Severity::kInfo : Severity::kWarning, "volume.uncertain",
        ": whether the last step happened is not known" + ReasonSuffix(volume.last_error));
  } else if (Failing(volume) && !volume.without_plugin) {
    add(volume.plugin_refuses ? Severity::kError : Severity::kWarning,
        volume.still_in_use ? "volume.in_use" : "volume.failing", ReasonSuffix(volume.last_error));
  }
  for (const PublicationView& use : volume.publications) {
    if (!use.dead.empty()) {
      add(Severity::kError, "mount.dead",
          fmt::format(": its mount for consumer {} is dead{}", PrintableName(use.consumer),
                      ReasonSuffix(use.dead)))
          .consumer = use.consumer;
    }
    if (!use.hung.empty()) {
      add(Severity::kError, "mount.hung",
          fmt::format(": the file system of its mount for consumer {} does not answer{}",
                      PrintableName(use.consumer), ReasonSuffix(use.hung)))
          .consumer = use.consumer;
    }
    if (!use.writes_refused.empty()) {
      add(Severity::kError, "mount.read_only",
          fmt::format(": its mount for consumer {} refuses writes{}", PrintableName(use.consumer),
                      ReasonSuffix(use.writes_refused)))
          .consumer = use.consumer;
    }
    if (use.blocked) {
      add(Severity::kWarning, "publication.blocked",
          fmt::format(", for consumer {}{}", PrintableName(use.consumer), ReasonSuffix(use.blocked->text)))
          .consumer = use.consumer;
    }
  }
  return findings;
}

std::optional<Finding> WithoutItsPlugin(const VolumeView& volume) {
  if (volume.without_plugin) {
    return OfVolume(
        volume, Severity::kWarning, "volume.without_plugin",
        fmt::format(" was released without its plugin, at the request of {}: the plugin has still "
                    "to undo its part, and the node must be fenced before it is detached",
                    PrintableName(volume.without_plugin->requested_by)));
  }
  if (!volume.plugin_missing) return std::nullopt;
  return OfVolume(volume, Severity::kError, "plugin.missing",
                  ": its plugin is not on this node any more, and cannot take it back");
}

std::vector<Finding> FindingsOf(const DeclaredView& file, const std::string& plugin_id, bool starting) {
  std::vector<Finding> findings;
  const auto add = [&](Severity severity, const char* code, std::string text) -> Finding& {
    Finding& finding = findings.emplace_back();
    finding.severity = severity;
    finding.code = code;
    finding.plugin_id = plugin_id;
    finding.volume_id = file.request.volume_id();
    finding.consumer = file.request.consumer();
    finding.path = file.file;
    finding.text = std::move(text);
    return finding;
  };
  for (const std::string& mistake : LinesOf(file.error_in_file)) {  // which names the file
    add(Severity::kWarning, "declared.broken", mistake).advice = "correct it, then: berthctl reload";
  }
  if (!findings.empty() || IsWell(file)) return findings;
  if (file.last_error.empty()) {
    add(Severity::kInfo, "declared.pending",
        fmt::format("{}: {}", PrintableName(file.file), file.state.empty() ? "waiting" : file.state));
    return findings;
  }
  add(starting ? Severity::kInfo : Severity::kWarning, "declared.pending",
      PrintableName(file.file) + ReasonSuffix(file.last_error))
      .advice = Explain(plugin_id, file.request.volume_id());
  return findings;
}

std::vector<Finding> FindingsOf(const v1::LinkStatus& link, WallTime now) {
  constexpr int64_t kAwayForLong = 60;  // seconds
  std::vector<Finding> findings;
  const auto add = [&](const char* code, std::string text) {
    Finding& finding = findings.emplace_back();
    finding.code = code;
    finding.text = std::move(text);
    finding.advice = "berthctl scheduler";
  };
  const bool up = link.state() == v1::LinkStatus::SYNCING || link.state() == v1::LinkStatus::SYNCED;
  const int64_t away = ToProto(now).seconds() - link.since().seconds();
  if (!up && away > kAwayForLong) {
    const int64_t minutes = away / 60;
    add("scheduler.away", fmt::format("the scheduler has not been reached for {} minute{}{}", minutes,
                                      minutes == 1 ? "" : "s", ReasonSuffix(link.last_error())));
  }
  if (link.lease() == v1::LEASE_EXPIRED) {
    add("scheduler.lease", "the scheduler's lease has run out: nothing new of the scheduler's is begun");
  }
  return findings;
}

Finding FindingOf(const v1::NodeDrain& drain) {
  const int left = drain.publications_left();
  const std::string far = left == 0 ? "nothing that counts is published here any more"
                                    : fmt::format("{} publication{} left", left, left == 1 ? " is" : "s are");
  Finding finding;
  finding.severity = Severity::kInfo;
  finding.code = "node.drain";
  finding.text = fmt::format("this node is being drained, {}{}", far, ReasonSuffix(drain.reason()));
  finding.advice = "berthctl undrain puts it back into use";
  return finding;
}

void SortFindings(std::vector<Finding>* findings, size_t limit) {
  std::vector<Finding> sorted;
  sorted.reserve(findings->size());
  for (const Severity severity : {Severity::kError, Severity::kWarning, Severity::kInfo}) {
    for (Finding& finding : *findings) {
      if (finding.severity == severity) sorted.push_back(std::move(finding));
    }
  }
  *findings = std::move(sorted);
  if (findings->size() <= limit) return;
  const size_t more = findings->size() - limit;
  Finding rest;
  rest.severity = (*findings)[limit].severity;
  rest.code = "findings.more";
  rest.text = fmt::format("and {} more", more);
  rest.advice = "berthctl doctor";
  findings->resize(limit);
  findings->push_back(std::move(rest));
}

v1::NodeHealth HealthOf(const std::vector<Finding>& findings) {
  v1::NodeHealth health = v1::HEALTHY;
  for (const Finding& finding : findings) {
    if (finding.severity == Severity::kError) return v1::FAILING;
    if (finding.severity == Severity::kWarning) health = v1::DEGRADED;
  }
  return health;
}

}  // namespace berth
