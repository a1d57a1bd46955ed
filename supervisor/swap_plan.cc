#include "supervisor/swap_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "base/file.h"
#include "base/status.h"
#include "base/toml_reader.h"
#include "supervisor/plugin_launch.h"

namespace berth {
namespace {

constexpr int64_t kSwapStateFormat = 1;
constexpr size_t kStateLimit = 1024 * size_t{1024};

template <class NameOf>
void Lost(const std::set<int>& before, const std::set<int>& now, std::string_view what, NameOf name_of,
          std::vector<std::string>& reasons) {
  for (const int each : before) {
    if (now.contains(each)) continue;
    const std::string name = name_of(each);
    reasons.push_back(
        fmt::format("{} {} is missing", what, name.empty() ? fmt::format("number {}", each) : name));
  }
}

std::string Topology(const std::map<std::string, std::string>& topology) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : topology) {
    parts.push_back(fmt::format("{}={}", Printable(key, 128), Printable(value, 128)));
  }
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, ","));
}

toml::table TableOf(const SwapOverride& override) {
  toml::array arguments;
  for (const std::string& each : override.arguments) arguments.push_back(each);
  toml::table table;
  table.insert("command", override.command);
  table.insert("args", std::move(arguments));
  table.insert("file_fingerprint", override.file_fingerprint);
  return table;
}

std::optional<SwapOverride> OverrideOf(const toml::table& table, std::string_view key) {
  const toml::table* part = table[key].as_table();
  if (part == nullptr) return std::nullopt;
  SwapOverride override;
  override.command = (*part)["command"].value_or(std::string());
  override.file_fingerprint = (*part)["file_fingerprint"].value_or(std::string());
  if (const toml::array* arguments = (*part)["args"].as_array()) {
    for (const toml::node& each : *arguments) {
      override.arguments.push_back(each.value_or(std::string()));
    }
  }
  return override;
}

}  // namespace

absl::Status CompareForSwap(const PluginFacts& before, const PluginFacts& now, SwapTerms terms) {
  using ::csi::v1::ControllerServiceCapability;
  using ::csi::v1::GroupControllerServiceCapability;
  using ::csi::v1::NodeServiceCapability;
  using ::csi::v1::PluginCapability;
  std::vector<std::string> reasons;
  if (now.name != before.name) {
    reasons.push_back(
        fmt::format("its name is {}, not {}", Printable(now.name, 128), Printable(before.name, 128)));
  }
  if (now.node_id != before.node_id && terms.holds_volumes) {
    reasons.push_back(fmt::format("its node id is \"{}\", and volumes are in use under \"{}\"",
                                  Printable(now.node_id, 256), Printable(before.node_id, 256)));
  }
  if (before.has_node_service && !now.has_node_service) reasons.emplace_back("it has no node service");
  const bool unused = !terms.holds_volumes && !before.controller_capabilities.contains(
                                                  ControllerServiceCapability::RPC::PUBLISH_UNPUBLISH_VOLUME);
  const bool accepted =
      terms.changes == SwapChanges::kAccept || (terms.changes == SwapChanges::kAcceptWhileUnused && unused);
  if (!accepted) {
    const size_t others = reasons.size();
    Lost(
        before.plugin_services, now.plugin_services, "plugin capability",
        [](int type) { return PluginCapability::Service::Type_Name(type); }, reasons);
    Lost(
        before.volume_expansion, now.volume_expansion, "plugin capability",
        [](int type) { return PluginCapability::VolumeExpansion::Type_Name(type); }, reasons);
    Lost(
        before.controller_capabilities, now.controller_capabilities, "controller capability",
        [](int type) { return ControllerServiceCapability::RPC::Type_Name(type); }, reasons);
    Lost(
        before.group_capabilities, now.group_capabilities, "group controller capability",
        [](int type) { return GroupControllerServiceCapability::RPC::Type_Name(type); }, reasons);
    Lost(
        before.node_capabilities, now.node_capabilities, "node capability",
        [](int type) { return NodeServiceCapability::RPC::Type_Name(type); }, reasons);
    if (now.topology != before.topology) {
      reasons.push_back(
          fmt::format("its topology is {}, not {}", Topology(now.topology), Topology(before.topology)));
    }
    if (reasons.size() > others) reasons.back() += " (plugin swap --accept-changes takes it)";
  }
  if (reasons.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("{}", fmt::join(reasons, ", ")));
}

bool OverrideHolds(const SwapOverride& override, const PluginConfig& file, const PluginPaths& paths) {
  return override.file_fingerprint == LaunchFingerprint(file, paths);
}

PluginConfig WithOverride(PluginConfig file, const std::optional<SwapOverride>& override) {
  if (!override.has_value()) return file;
  file.command = override->command;
  file.arguments = override->arguments;
  return file;
}

std::string SwapStatePath(const std::string& state_dir, std::string_view id) {
  return fmt::format("{}/swaps/{}.toml", state_dir, id);
}

absl::StatusOr<SwapState> ReadSwapState(const std::string& path) {
  const absl::StatusOr<std::string> content = ReadFile(path, kStateLimit);
  if (absl::IsNotFound(content.status())) return SwapState();
  if (!content.ok()) return content.status();
  BERTH_ASSIGN_OR_RETURN(const toml::table table, ParseToml(path, *content));
  if (table["format"].value_or(int64_t{0}) != kSwapStateFormat) {
    return absl::InvalidArgumentError(fmt::format("read {}: its format is not {}", path, kSwapStateFormat));
  }
  SwapState state;
  state.serving = OverrideOf(table, "serving");
  state.trying = table["trying"].value_or(false);
  state.next = OverrideOf(table, "next");
  for (const auto& each : {state.serving, state.next}) {
    if (each.has_value() && !each->command.starts_with('/')) {
      return absl::InvalidArgumentError(fmt::format("read {}: a command is missing", path));
    }
  }
  return state;
}

absl::Status WriteSwapState(const std::string& path, const SwapState& state) {
  if (state == SwapState()) return RemoveFile(path);
  BERTH_RETURN_IF_ERROR(MakeDirectories(std::filesystem::path(path).parent_path().string(), 0700));
  toml::table table;
  table.insert("format", kSwapStateFormat);
  table.insert("trying", state.trying);
  if (state.serving.has_value()) table.insert("serving", TableOf(*state.serving));
  if (state.next.has_value()) table.insert("next", TableOf(*state.next));
  std::ostringstream text;
  text << table << '\n';
  return WriteFileAtomic(path, text.str(), 0600);
}

}  // namespace berth
