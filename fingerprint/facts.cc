#include "fingerprint/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "base/safe_path.h"
#include "base/status.h"
#include "csi/names.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;
using ControllerCapability = csi::ControllerServiceCapability::RPC;
using NodeCapability = csi::NodeServiceCapability::RPC;
using PluginService = csi::PluginCapability::Service;
using StringMap = google::protobuf::Map<std::string, std::string>;

// The specification's limits, which give a warning where Berth can live with more …
constexpr size_t kNameLimit = 63;
constexpr size_t kStringLimit = 128;
constexpr size_t kMapLimit = 4096;
// … and the limits of what Berth will keep, show and hand on to a scheduler.
constexpr size_t kNodeIdLimit = 256;
constexpr size_t kKeptStringLimit = 4096;
constexpr size_t kKeptMapLimit = 65536;
constexpr int kKeptCapabilities = 256;
constexpr size_t kKeptWarnings = 16;

bool IsAlphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// 1 to 63 characters: alphanumerics, and between two of them those in `inner`.
bool IsLabel(std::string_view text, std::string_view inner) {
  if (text.empty() || text.size() > kNameLimit) return false;
  if (!IsAlphanumeric(text.front()) || !IsAlphanumeric(text.back())) return false;
  return std::all_of(text.begin(), text.end(), [inner](char c) {
    return IsAlphanumeric(c) || inner.find(c) != std::string_view::npos;
  });
}

bool HasUpperCase(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// A value from outside, as it is shown in a message.
std::string Quoted(std::string_view value) { return fmt::format("\"{}\"", Printable(value, kStringLimit)); }

size_t SizeOf(const StringMap& map) {
  size_t size = 0;
  for (const auto& [key, value] : map) size += key.size() + value.size();
  return size;
}

std::map<std::string, std::string> Sorted(const StringMap& map) { return {map.begin(), map.end()}; }

absl::Status Faulty(std::string_view rpc, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", rpc, what));
}

// Collects what CheckAnswers finds, one answer after the other.
class Checker {
 public:
  absl::Status Info(const csi::GetPluginInfoResponse& info) {
    if (info.name().empty()) return Faulty("GetPluginInfo", "the plugin gives no name");
    if (!IsLabel(info.name(), "-.")) {
      return Faulty(
          "GetPluginInfo",
          fmt::format("the name {} is not like a domain name (at most {} letters, digits, dashes and "
                      "dots, with a letter or digit at both ends)",
                      Quoted(info.name()), kNameLimit));
    }
    if (info.vendor_version().empty()) Warn("GetPluginInfo: vendor_version is empty");
    BERTH_RETURN_IF_ERROR(CheckString("GetPluginInfo", "vendor_version", info.vendor_version()));
    BERTH_RETURN_IF_ERROR(CheckMap("GetPluginInfo", "manifest", info.manifest()));
    facts_.name = info.name();
    facts_.vendor_version = info.vendor_version();
    facts_.manifest = Sorted(info.manifest());
    return absl::OkStatus();
  }

  absl::Status PluginCapabilities(const std::optional<csi::GetPluginCapabilitiesResponse>& answer) {
    if (!answer) {
      Warn("GetPluginCapabilities is not implemented: taken as none");
      return absl::OkStatus();
    }
    BERTH_RETURN_IF_ERROR(CheckCount("GetPluginCapabilities", answer->capabilities_size()));
    for (const auto& capability : answer->capabilities()) {
      switch (capability.type_case()) {
        case csi::PluginCapability::kService:
          Insert("GetPluginCapabilities", capability.service().type(), &facts_.plugin_services);
          break;
        case csi::PluginCapability::kVolumeExpansion:
          Insert("GetPluginCapabilities", capability.volume_expansion().type(), &facts_.volume_expansion);
          break;
        case csi::PluginCapability::TYPE_NOT_SET:  // Of a kind that a later CSI has.
          break;
      }
    }
    return absl::OkStatus();
  }

  absl::Status ControllerCapabilities(const std::optional<csi::ControllerGetCapabilitiesResponse>& answer,
                                      ExpectedServices expected) {
    if (expected.controller && !expected.node && !facts_.HasController()) {
      return absl::FailedPreconditionError(
          "its file says that it is a controller, but GetPluginCapabilities has no CONTROLLER_SERVICE");
    }
    if (!answer) {
      if (expected.controller && facts_.HasController()) {
        return absl::FailedPreconditionError(
            "it says CONTROLLER_SERVICE but does not serve Controller at its socket; if its controller runs "
            "elsewhere, its kind is node");
      }
      return absl::OkStatus();
    }
    BERTH_RETURN_IF_ERROR(CheckCount("ControllerGetCapabilities", answer->capabilities_size()));
    for (const auto& capability : answer->capabilities()) {
      if (capability.has_rpc()) {
        Insert("ControllerGetCapabilities", capability.rpc().type(), &facts_.controller_capabilities);
      }
    }
    return absl::OkStatus();
  }

  // A plugin that promises groups and has none at its socket can do the rest of its work.
  absl::Status GroupCapabilities(const std::optional<csi::GroupControllerGetCapabilitiesResponse>& answer,
                                 ExpectedServices expected) {
    if (!answer) {
      if (expected.controller && facts_.HasService(PluginService::GROUP_CONTROLLER_SERVICE)) {
        Warn("GroupControllerGetCapabilities is not implemented: taken as none");
      }
      return absl::OkStatus();
    }
    BERTH_RETURN_IF_ERROR(CheckCount("GroupControllerGetCapabilities", answer->capabilities_size()));
    for (const auto& capability : answer->capabilities()) {
      if (capability.has_rpc()) {
        Insert("GroupControllerGetCapabilities", capability.rpc().type(), &facts_.group_capabilities);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Node(const PluginAnswers& answers, ExpectedServices expected) {
    facts_.has_node_service =
        expected.node && (answers.node_capabilities.has_value() || answers.node_info.has_value());
    if (!expected.node) return absl::OkStatus();
    if (!facts_.has_node_service) {
      return absl::FailedPreconditionError(
          "it does not serve Node at its socket; if only its controller runs here, its kind is controller");
    }
    if (!answers.node_capabilities) {
      Warn("NodeGetCapabilities is not implemented: taken as none");
    } else {
      BERTH_RETURN_IF_ERROR(
          CheckCount("NodeGetCapabilities", answers.node_capabilities->capabilities_size()));
      for (const auto& capability : answers.node_capabilities->capabilities()) {
        if (capability.has_rpc()) {
          Insert("NodeGetCapabilities", capability.rpc().type(), &facts_.node_capabilities);
        }
      }
    }
    if (!answers.node_info) {
      // The specification asks for it only where volumes must be attached.
      if (!facts_.NeedsAttach()) return absl::OkStatus();
      return Faulty("NodeGetInfo",
                    "not implemented, though volumes of this plugin must be attached to a node");
    }
    return NodeInfo(*answers.node_info);
  }

  // What makes no sense together. Nothing here keeps Berth from working with the plugin.
  void Contradictions() {
    const bool expands = facts_.ControllerCan(ControllerCapability::EXPAND_VOLUME) ||
                         facts_.NodeCan(NodeCapability::EXPAND_VOLUME);
    // Where only one half of the plugin is seen, the other may have it.
    const bool sees_all = !facts_.controller_capabilities.empty() || !facts_.HasController();
    if (!facts_.volume_expansion.empty() && !expands && sees_all && facts_.has_node_service) {
      Warn("volume expansion is announced, but neither controller nor node has EXPAND_VOLUME");
    }
    if (facts_.ControllerCan(ControllerCapability::LIST_VOLUMES_PUBLISHED_NODES) &&
        !facts_.ControllerCan(ControllerCapability::PUBLISH_UNPUBLISH_VOLUME)) {
      Warn("LIST_VOLUMES_PUBLISHED_NODES without PUBLISH_UNPUBLISH_VOLUME");
    }
    if (!facts_.topology.empty() && !facts_.HasService(PluginService::VOLUME_ACCESSIBILITY_CONSTRAINTS)) {
      Warn("NodeGetInfo gives a topology, but VOLUME_ACCESSIBILITY_CONSTRAINTS is missing");
    }
  }

  CheckedFacts Take() {
    if (more_warnings_ > 0) warnings_.push_back(fmt::format("and {} more", more_warnings_));
    return {.facts = std::move(facts_), .warnings = std::move(warnings_)};
  }

 private:
  void Warn(std::string warning) {
    if (warnings_.size() < kKeptWarnings) {
      warnings_.push_back(std::move(warning));
    } else {
      ++more_warnings_;
    }
  }

  absl::Status NodeInfo(const csi::NodeGetInfoResponse& info) {
    if (info.node_id().empty()) return Faulty("NodeGetInfo", "the plugin gives no node_id");
    if (info.node_id().size() > kNodeIdLimit) {
      return Faulty("NodeGetInfo",
                    fmt::format("node_id has {} bytes, {} are allowed", info.node_id().size(), kNodeIdLimit));
    }
    if (info.max_volumes_per_node() < 0) {
      return Faulty("NodeGetInfo",
                    fmt::format("max_volumes_per_node is negative ({})", info.max_volumes_per_node()));
    }
    const auto& segments = info.accessible_topology().segments();
    BERTH_RETURN_IF_ERROR(CheckMap("NodeGetInfo", "accessible_topology", segments));
    facts_.node_id = info.node_id();
    if (info.max_volumes_per_node() > 0) facts_.max_volumes_per_node = info.max_volumes_per_node();

    std::set<std::string> seen;
    std::set<std::string> prefixes;
    for (const auto& [key, value] : Sorted(segments)) {
      // To a scheduler they would be one key with two values.
      if (!seen.insert(LowerCase(key)).second) {
        Warn(fmt::format("NodeGetInfo: topology key {} differs from another one by case only: left out",
                         Quoted(key)));
        continue;
      }
      facts_.topology.emplace(key, value);
      const size_t slash = key.find('/');
      const std::string_view prefix =
          slash == std::string::npos ? std::string_view() : std::string_view(key).substr(0, slash);
      const std::string_view name =
          slash == std::string::npos ? std::string_view(key) : std::string_view(key).substr(slash + 1);
      const bool prefix_ok = slash == std::string::npos || (IsLabel(prefix, "-.") && !HasUpperCase(prefix));
      if (!prefix_ok || !IsLabel(name, "-_.")) {
        Warn(fmt::format("NodeGetInfo: topology key {} is not of the form prefix/name", Quoted(key)));
      }
      if (!IsLabel(value, "-_.")) {
        Warn(fmt::format("NodeGetInfo: the value {} of topology key {} is not a name", Quoted(value),
                         Quoted(key)));
      }
      if (slash != std::string::npos) prefixes.emplace(prefix);
    }
    if (prefixes.size() > 1) Warn("NodeGetInfo: topology keys have more than one prefix");
    return absl::OkStatus();
  }

  absl::Status CheckString(std::string_view rpc, std::string_view field, const std::string& value) {
    if (value.size() > kKeptStringLimit) {
      return Faulty(rpc, fmt::format("{} has {} bytes", field, value.size()));
    }
    if (value.size() > kStringLimit) {
      Warn(fmt::format("{}: {} has {} bytes, {} are allowed", rpc, field, value.size(), kStringLimit));
    }
    return absl::OkStatus();
  }

  absl::Status CheckMap(std::string_view rpc, std::string_view field, const StringMap& map) {
    const size_t size = SizeOf(map);
    if (size > kKeptMapLimit) return Faulty(rpc, fmt::format("{} has {} bytes", field, size));
    if (size > kMapLimit) {
      Warn(fmt::format("{}: {} has {} bytes, {} are allowed", rpc, field, size, kMapLimit));
    }
    return absl::OkStatus();
  }

  static absl::Status CheckCount(std::string_view rpc, int count) {
    if (count <= kKeptCapabilities) return absl::OkStatus();
    return Faulty(rpc, fmt::format("{} capabilities, more than there can be", count));
  }

  void Insert(std::string_view rpc, int number, std::set<int>* set) {
    if (number == 0) {
      Warn(fmt::format("{}: a capability of type UNKNOWN", rpc));
    } else {
      set->insert(number);
    }
  }

  PluginFacts facts_;
  std::vector<std::string> warnings_;
  int more_warnings_ = 0;
};

using NameOf = std::string (*)(int);

void DiffSet(std::string_view what, const std::set<int>& before, const std::set<int>& after, NameOf name,
             std::vector<std::string>* out) {
  for (const int number : after) {
    if (!before.contains(number)) out->push_back(fmt::format("{} {} gained", what, name(number)));
  }
  for (const int number : before) {
    if (!after.contains(number)) out->push_back(fmt::format("{} {} lost", what, name(number)));
  }
}

void DiffMap(std::string_view what, const std::map<std::string, std::string>& before,
             const std::map<std::string, std::string>& after, std::vector<std::string>* out) {
  for (const auto& [key, value] : after) {
    const auto old = before.find(key);
    if (old == before.end()) {
      out->push_back(fmt::format("{} {} gained: {}", what, Quoted(key), Quoted(value)));
    } else if (old->second != value) {
      out->push_back(
          fmt::format("{} {} changed from {} to {}", what, Quoted(key), Quoted(old->second), Quoted(value)));
    }
  }
  for (const auto& [key, value] : before) {
    if (!after.contains(key)) out->push_back(fmt::format("{} {} lost", what, Quoted(key)));
  }
}

std::string LimitText(const std::optional<int64_t>& limit) {
  return limit ? std::to_string(*limit) : std::string("no limit");
}

// Adds `value` so that no two different lists of values give the same text.
void AppendField(std::string* out, std::string_view value) {
  *out += fmt::format("{}:", value.size());
  *out += value;
}

void AppendNumbers(std::string* out, const std::set<int>& numbers) {
  *out += fmt::format("{}[", numbers.size());
  for (const int number : numbers) *out += fmt::format("{},", number);
  *out += ']';
}

}  // namespace

bool Promises(const std::optional<csi::GetPluginCapabilitiesResponse>& answer, PluginService::Type service) {
  return answer && std::any_of(answer->capabilities().begin(), answer->capabilities().end(),
                               [service](const csi::PluginCapability& capability) {
                                 return capability.has_service() && capability.service().type() == service;
                               });
}

absl::StatusOr<CheckedFacts> CheckAnswers(const PluginAnswers& answers, ExpectedServices expected) {
  Checker checker;
  BERTH_RETURN_IF_ERROR(checker.Info(answers.info));
  BERTH_RETURN_IF_ERROR(checker.PluginCapabilities(answers.plugin_capabilities));
  BERTH_RETURN_IF_ERROR(checker.ControllerCapabilities(answers.controller_capabilities, expected));
  BERTH_RETURN_IF_ERROR(checker.GroupCapabilities(answers.group_capabilities, expected));
  BERTH_RETURN_IF_ERROR(checker.Node(answers, expected));
  checker.Contradictions();
  return checker.Take();
}

absl::Status CheckSuccessor(const PluginFacts& known, const PluginFacts& now, bool holds_volumes) {
  if (known.name != now.name) {
    return absl::FailedPreconditionError(
        fmt::format("the driver's name changed from {} to {}: another driver needs a plugin id of its own",
                    Quoted(known.name), Quoted(now.name)));
  }
  if (known.node_id != now.node_id && !known.node_id.empty() && holds_volumes) {
    return absl::AbortedError(
        fmt::format("the node id changed from {} to {} while volumes are in use under the old one",
                    Quoted(known.node_id), Quoted(now.node_id)));
  }
  return absl::OkStatus();
}

bool MayLetGo(const absl::Status& refusal) { return absl::IsAborted(refusal); }

std::vector<std::string> DiffFacts(const PluginFacts& before, const PluginFacts& after) {
  std::vector<std::string> out;
  const auto text = [&out](std::string_view what, const std::string& old_value,
                           const std::string& new_value) {
    if (old_value == new_value) return;
    out.push_back(fmt::format("{} changed from {} to {}", what, Quoted(old_value), Quoted(new_value)));
  };
  text("driver name", before.name, after.name);
  text("vendor version", before.vendor_version, after.vendor_version);
  DiffMap("manifest entry", before.manifest, after.manifest, &out);
  DiffSet("plugin service", before.plugin_services, after.plugin_services, PluginServiceName, &out);
  DiffSet("volume expansion", before.volume_expansion, after.volume_expansion, VolumeExpansionName, &out);
  DiffSet("controller capability", before.controller_capabilities, after.controller_capabilities,
          ControllerCapabilityName, &out);
  DiffSet("group controller capability", before.group_capabilities, after.group_capabilities,
          GroupControllerCapabilityName, &out);
  DiffSet("node capability", before.node_capabilities, after.node_capabilities, NodeCapabilityName, &out);
  if (before.has_node_service != after.has_node_service) {
    out.emplace_back(after.has_node_service ? "node service gained" : "node service lost");
  }
  text("node id", before.node_id, after.node_id);
  if (before.max_volumes_per_node != after.max_volumes_per_node) {
    out.push_back(fmt::format("max volumes changed from {} to {}", LimitText(before.max_volumes_per_node),
                              LimitText(after.max_volumes_per_node)));
  }
  DiffMap("topology key", before.topology, after.topology, &out);
  return out;
}

std::string ComputedClass(const PluginFacts& facts) {
  std::string text;
  AppendField(&text, facts.name);
  AppendField(&text, facts.vendor_version);
  AppendNumbers(&text, facts.plugin_services);
  AppendNumbers(&text, facts.volume_expansion);
  AppendNumbers(&text, facts.controller_capabilities);
  AppendNumbers(&text, facts.node_capabilities);
  text += facts.has_node_service ? "node" : "none";
  AppendField(&text, LimitText(facts.max_volumes_per_node));
  for (const auto& [key, value] : facts.topology) {
    AppendField(&text, key);
    AppendField(&text, value);
  }
  // Last and only where there are any, so that the class of all other plugins stays what it was.
  if (!facts.group_capabilities.empty()) {
    text += "group";
    AppendNumbers(&text, facts.group_capabilities);
  }
  return HashComponent({text});
}

}  // namespace berth
