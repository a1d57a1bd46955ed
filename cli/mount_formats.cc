#include "cli/mount_formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "base/systemd_bus.h"
#include "cli/failure.h"
#include "cli/output.h"
#include "cli/quoting.h"
#include "cli/values.h"

namespace berth::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kShown = 200;

constexpr std::array<std::pair<std::string_view, MountFormat>, 8> kFormats = {{
    {"table", MountFormat::kTable},
    {"json", MountFormat::kJson},
    {"oci", MountFormat::kOci},
    {"podman", MountFormat::kPodman},
    {"docker", MountFormat::kDocker},
    {"nspawn", MountFormat::kNspawn},
    {"systemd", MountFormat::kSystemd},
    {"env", MountFormat::kEnv},
}};

absl::Status CannotSay(std::string_view what, std::string_view why, std::string_view hint) {
  return WithHint(absl::FailedPreconditionError(fmt::format("{}: {}", Printable(what, kShown), why)), hint);
}

constexpr std::string_view kOtherPath = "Another place: --at NAME=/path; formats that can: oci, json";

bool IsBlock(const PlacedMount& mount) { return mount.mount.access_type() == v1::BLOCK; }

// "b 8:1" names a device in all of them, so it must be known.
absl::Status CheckDevice(const PlacedMount& mount) {
  if (!IsBlock(mount) || mount.mount.device_major() != 0) return absl::OkStatus();
  return CannotSay(mount.mount.source_path(), "the node does not say which block device it is",
                   "What is wrong with it: berthctl volume explain");
}

// Both paths, and the checks that all line-based formats need.
absl::Status CheckLine(const PlacedMount& mount, std::string_view forbidden, std::string_view why) {
  for (const std::string& path : {mount.mount.source_path(), mount.destination}) {
    if (HasControlCharacter(path)) {
      return CannotSay(path, "holds a control character, which this format cannot express", kOtherPath);
    }
    if (path.find_first_of(forbidden) != std::string::npos) return CannotSay(path, why, kOtherPath);
  }
  return CheckDevice(mount);
}

// `mounts` are in the documents as they are: a path that is no text cannot be.
absl::Status CheckJson(const std::vector<PlacedMount>& mounts) {
  for (const PlacedMount& mount : mounts) {
    if (!IsUtf8(mount.destination))
      return CannotSay(mount.destination, "is not UTF-8, as JSON is", kOtherPath);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> JsonOf(const std::vector<PlacedMount>& mounts) {
  BERTH_RETURN_IF_ERROR(CheckJson(mounts));
  OrderedJson list = OrderedJson::array();
  for (const PlacedMount& mount : mounts) {
    list.push_back(OrderedJson::parse(ToJson(mount.mount, false)));
    list.back()["destination"] = mount.destination;
  }
  return OrderedJson({{"mounts", std::move(list)}}).dump() + "\n";
}

// ---- OCI ----

absl::StatusOr<std::string> Oci(const std::vector<PlacedMount>& mounts) {
  BERTH_RETURN_IF_ERROR(CheckJson(mounts));
  OrderedJson document = {{"mounts", OrderedJson::array()}};
  for (const PlacedMount& mount : mounts) {
    BERTH_RETURN_IF_ERROR(CheckDevice(mount));
    const bool readonly = mount.mount.readonly();
    if (!IsBlock(mount)) {
      OrderedJson options = {"rbind", readonly ? "ro" : "rw"};
      if (!mount.mount.propagation().empty()) options.push_back(mount.mount.propagation());
      document["mounts"].push_back({{"destination", mount.destination},
                                    {"type", "bind"},
                                    {"source", mount.mount.source_path()},
                                    {"options", std::move(options)}});
      continue;
    }
    const OrderedJson device = {
        {"type", "b"}, {"major", mount.mount.device_major()}, {"minor", mount.mount.device_minor()}};
    OrderedJson& node = document["linux"]["devices"].emplace_back(device);
    node["path"] = mount.destination;
    node["fileMode"] = readonly ? 0440 : 0660;
    node["uid"] = node["gid"] = 0;
    OrderedJson& access = document["linux"]["resources"]["devices"].emplace_back(device);
    access["allow"] = true;
    access["access"] = readonly ? "r" : "rw";
  }
  return document.dump(2) + "\n";
}

// ---- podman, docker ----

absl::StatusOr<std::string> Container(const std::vector<PlacedMount>& mounts, std::string_view tool) {
  std::vector<std::string> words;
  for (const PlacedMount& mount : mounts) {
    const std::string& source = mount.mount.source_path();
    const std::string& destination = mount.destination;
    if (IsBlock(mount)) {
      BERTH_RETURN_IF_ERROR(
          CheckLine(mount, ":", fmt::format("{}'s --device has no way to write a ':'", tool)));
      words.push_back("--device " + ShellQuoted(fmt::format("{}:{}:{}", source, destination,
                                                            mount.mount.readonly() ? "r" : "rw")));
      continue;
    }
    // Podman up to 4.3 takes what stands between the first and the second '=' for the path.
    BERTH_RETURN_IF_ERROR(
        CheckLine(mount, tool == "podman" ? "=" : "", "podman's --mount has no way to write a '='"));
    // Blanks at the end are cut, or refused, by some versions of both.
    if (source.ends_with(' ') || destination.ends_with(' ')) {
      return CannotSay(source.ends_with(' ') ? source : destination,
                       fmt::format("ends with a blank, which {} cuts off", tool), kOtherPath);
    }
    std::string value = "type=bind," + CsvField("source=" + source) + "," + CsvField("target=" + destination);
    if (mount.mount.readonly()) value += ",readonly";
    if (!mount.mount.propagation().empty()) value += ",bind-propagation=" + mount.mount.propagation();
    words.push_back("--mount " + ShellQuoted(value));
  }
  return fmt::format("{}\n", fmt::join(words, " "));
}

// ---- systemd ----

// Both bind from a mount namespace that follows the host's, so that what the host unmounts goes there too.
// Nothing can go the other way.
absl::Status CheckPropagation(const PlacedMount& mount, std::string_view tool) {
  const std::string& propagation = mount.mount.propagation();
  if (propagation != "shared" && propagation != "rshared") return absl::OkStatus();
  return CannotSay(
      mount.mount.source_path(),
      fmt::format("{} cannot bind it {}: mounts made inside would not reach the host", tool, propagation),
      "Formats that can: oci, podman, docker");
}

// The only name of a device outside /dev that systemd accepts.
std::string DeviceRule(const PlacedMount& mount) {
  return fmt::format("/dev/block/{}:{} {}", mount.mount.device_major(), mount.mount.device_minor(),
                     mount.mount.readonly() ? "r" : "rw");
}

absl::StatusOr<std::string> Nspawn(const std::vector<PlacedMount>& mounts) {
  std::vector<std::string> words;
  for (const PlacedMount& mount : mounts) {
    BERTH_RETURN_IF_ERROR(CheckLine(mount, "", ""));
    BERTH_RETURN_IF_ERROR(CheckPropagation(mount, "systemd-nspawn"));
    words.push_back(ShellQuoted(fmt::format("--bind{}={}:{}", mount.mount.readonly() ? "-ro" : "",
                                            BackslashEscaped(mount.mount.source_path(), ":"),
                                            BackslashEscaped(mount.destination, ":"))));
    if (IsBlock(mount)) words.push_back(ShellQuoted("--property=DeviceAllow=" + DeviceRule(mount)));
  }
  return fmt::format("{}\n", fmt::join(words, " "));
}

// A path in a list of a unit file: words are split at blanks and colons, quotes are taken away, and '%'
// begins a specifier.
std::string UnitPath(std::string_view path) {
  std::string text;
  for (const char c : BackslashEscaped(path, ": \"'")) {
    if (c == '%') text += '%';
    text += c;
  }
  return text;
}

// The units that a unit with these mounts needs: each waits until a declared volume is published.
std::string SystemdUnit(const std::vector<PlacedMount>& mounts) {
  std::string units;
  for (const PlacedMount& mount : mounts) {
    if (mount.mount.declared().empty()) continue;
    units += fmt::format(" berth-volume@{}.service", EscapeUnitName(mount.mount.declared()));
  }
  return units.empty() ? "" : fmt::format("[Unit]\nRequires={0}\nAfter={0}\n", units.substr(1));
}

absl::StatusOr<std::string> Systemd(const std::vector<PlacedMount>& mounts) {
  std::string text;
  for (const PlacedMount& mount : mounts) {
    BERTH_RETURN_IF_ERROR(CheckLine(mount, "", ""));
    BERTH_RETURN_IF_ERROR(CheckPropagation(mount, "systemd"));
    // The option at the end keeps an escaped blank from being the line's last character, which is cut off.
    text += fmt::format("{}={}:{}:rbind\n", mount.mount.readonly() ? "BindReadOnlyPaths" : "BindPaths",
                        UnitPath(mount.mount.source_path()), UnitPath(mount.destination));
    if (IsBlock(mount)) text += fmt::format("DeviceAllow={}\n", DeviceRule(mount));
  }
  return text;
}

// ---- env ----

std::string VariableName(const v1::ConsumerMount& mount) {
  std::string name = "BERTH_VOLUME_";
  for (const char c : mount.name().empty() ? mount.volume_id() : mount.name()) {
    const bool keeps = (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (c >= 'a' && c <= 'z') {
      name += static_cast<char>(c - 'a' + 'A');
    } else {
      name += keeps ? c : '_';
    }
  }
  return name;
}

absl::StatusOr<std::string> Env(const std::vector<PlacedMount>& mounts) {
  std::string text;
  std::map<std::string, std::string> taken;  // by which volume
  for (const PlacedMount& mount : mounts) {
    BERTH_RETURN_IF_ERROR(CheckLine(mount, "", ""));
    const std::string name = VariableName(mount.mount);
    const auto [other, free] = taken.emplace(name, mount.mount.volume_id());
    if (!free) {
      return CannotSay(
          mount.mount.volume_id(),
          fmt::format("its variable would be {}, as for {}", name, Printable(other->second, kShown)),
          "Publish them under other names: --name NAME");
    }
    text += fmt::format("{}={}\n", name, ShellQuoted(mount.mount.source_path()));
    text += fmt::format("{}_ACCESS={}\n", name, mount.mount.readonly() ? "ro" : "rw");
  }
  return text;
}

}  // namespace

absl::StatusOr<MountFormat> ParseMountFormat(std::string_view name) {
  std::vector<std::string> known;
  for (const auto& [word, format] : kFormats) {
    if (word == name) return format;
    known.emplace_back(word);
  }
  return UsageError(
      fmt::format("--format: there is no '{}'{}", Printable(name, kShown), DidYouMean(name, known)),
      fmt::format("There are {}", kMountFormats));
}

absl::StatusOr<std::string> FormatMounts(MountFormat format, const std::vector<PlacedMount>& mounts) {
  switch (format) {
    case MountFormat::kOci:
      return Oci(mounts);
    case MountFormat::kPodman:
      return Container(mounts, "podman");
    case MountFormat::kDocker:
      return Container(mounts, "docker");
    case MountFormat::kNspawn:
      return Nspawn(mounts);
    case MountFormat::kSystemd:
      return Systemd(mounts);
    case MountFormat::kEnv:
      return Env(mounts);
    case MountFormat::kJson:
    case MountFormat::kTable:
      break;
  }
  return JsonOf(mounts);
}

Table MountTable(const std::vector<PlacedMount>& mounts) {
  Table table({"VOLUME", "NAME", "PLUGIN", "ACCESS", "TYPE", "PATH HERE", "FOR THE CONSUMER"});
  for (const PlacedMount& mount : mounts) {
    const v1::ConsumerMount& info = mount.mount;
    const std::string type = IsBlock(mount)
                                 ? fmt::format("block {}:{}", info.device_major(), info.device_minor())
                                 : info.fs_type();
    table.Add({info.volume_id(), info.name(), info.plugin_id(), info.readonly() ? "read-only" : "read-write",
               type, info.source_path(), mount.destination});
  }
  return table;
}

absl::Status ShowMounts(const Output& output, MountFormat format, const std::vector<PlacedMount>& mounts) {
  if (format == MountFormat::kTable) {
    output.Show(MountTable(mounts));
    return absl::OkStatus();
  }
  BERTH_ASSIGN_OR_RETURN(const std::string text, FormatMounts(format, mounts));
  if (format == MountFormat::kSystemd) output.Text(SystemdUnit(mounts) + "[Service]\n");
  output.Text(text);
  return absl::OkStatus();
}

}  // namespace berth::cli
