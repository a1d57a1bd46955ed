#include "spec/volume_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/toml_reader.h"
#include "spec/permission_text.h"

namespace berth {
namespace {

// In the order of the manual.
constexpr std::initializer_list<std::string_view> kKeys = {"plugin",
                                                           "volume",
                                                           "consumer",
                                                           "name",
                                                           "access_mode",
                                                           "access_type",
                                                           "fs_type",
                                                           "mount_flags",
                                                           "mount_options",
                                                           "readonly",
                                                           "volume_mount_group",
                                                           "owner",
                                                           "group",
                                                           "mode",
                                                           "recursive",
                                                           "selinux_label",
                                                           "secrets_file",
                                                           "secrets_credential",
                                                           "pid",
                                                           "cgroup",
                                                           "unit",
                                                           "remount",
                                                           "ephemeral",
                                                           "context",
                                                           "consumer_labels",
                                                           "publish_context",
                                                           "attach",
                                                           "path",
                                                           "path_options"};

enum class Place { kCommandLine, kVolumesD };

struct Spec {
  v1::PublishVolumeRequest request;
  std::optional<bool> remount;
  std::optional<bool> attach;
  std::string path;
  bool path_suid = false;
  bool path_dev = false;
};

// Why a volume cannot be mounted at this path, as far as its text says; empty: it can.
std::string_view WhyNoPath(std::string_view path) {
  constexpr size_t kLimit = 4000;
  if (!path.starts_with('/')) return "must be an absolute path";
  if (path == "/") return "must not be the root directory";
  if (path.size() > kLimit) return "is longer than 4000 bytes";
  if (path.ends_with('/')) return "must not end with a slash";
  const std::string in_slashes = fmt::format("{}/", path);
  for (const std::string_view part : {"//", "/./", "/../"}) {
    if (in_slashes.find(part) != std::string::npos)
      return "must be a plain path: without \"//\", \".\" and \"..\"";
  }
  for (const std::string_view kernel : {"/proc/", "/sys/", "/dev/"}) {
    if (in_slashes.starts_with(kernel)) return "must not be in /proc, /sys or /dev";
  }
  return {};
}

// "single-node-writer" and "SINGLE_NODE_WRITER" are the same.
std::string Folded(std::string_view text) {
  std::string folded;
  for (const char c : text) {
    folded += c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return folded;
}

// One line for people of one that `status` failed with.
std::string Why(const absl::Status& status) { return std::string(status.message()); }

class SpecReader : public TomlReader {
 public:
  using TomlReader::TomlReader;

  Spec Read(const toml::table& file, Place place) {
    CheckKnown(file, place);
    v1::PublishVolumeRequest& request = spec_.request;
    if (const auto text = Filled(file, "plugin")) request.set_plugin_id(*text);
    if (const auto text = Filled(file, "volume")) request.set_volume_id(*text);
    if (const auto text = Filled(file, "consumer")) request.set_consumer(*text);
    if (const auto text = String(file, "name")) request.set_name(*text);
    ReadCapability(file);
    ReadMountOptions(file);
    if (const auto readonly = Bool(file, "readonly")) request.set_readonly(*readonly);
    ReadPermissions(file);
    ReadSecrets(file);
    ReadLife(file, place);
    spec_.remount = Bool(file, "remount");
    request.set_remount(spec_.remount.value_or(false));
    if (const auto ephemeral = Bool(file, "ephemeral")) request.set_ephemeral(*ephemeral);
    ReadMap(file, "context", *request.mutable_volume_context());
    ReadMap(file, "consumer_labels", *request.mutable_consumer_labels());
    // Present, though perhaps empty, means: it is attached.
    if (Table(file, "publish_context") != nullptr) {
      ReadMap(file, "publish_context", *request.mutable_publish_context()->mutable_values());
    }
    if (place == Place::kVolumesD) ReadDeclared(file);
    return std::move(spec_);
  }

 private:
  void CheckKnown(const toml::table& file, Place place) {
    toml::table rest = file;
    // So near to a known key that another message would mislead.
    if (const toml::node* secrets = file.get("secrets")) {
      Mistake(*secrets, "secrets",
              "do not belong into this file: secrets_file = \"/path\" or secrets_credential = \"name\" say "
              "where they lie");
      rest.erase("secrets");
    }
    if (place == Place::kCommandLine && rest.contains("attach")) {
      Mistake(*file.get("attach"), "attach",
              "only for files in volumes.d; here publish_context says what the attach gave");
      rest.erase("attach");
    }
    for (const std::string_view key : {"path", "path_options"}) {
      if (place != Place::kCommandLine || !rest.contains(key)) continue;
      Mistake(*file.get(key), key, "only for files in volumes.d");
      rest.erase(key);
    }
    CheckKeys(rest, "", kKeys);
  }

  // Something else than the empty text.
  std::optional<std::string> Filled(const toml::table& file, std::string_view key) {
    std::optional<std::string> text = String(file, key);
    if (text.has_value() && text->empty()) {
      Mistake(*file.get(key), key, "must not be empty");
      return std::nullopt;
    }
    return text;
  }

  std::optional<std::string> Absolute(const toml::table& file, std::string_view key) {
    std::optional<std::string> path = Filled(file, key);
    if (path.has_value() && !path->starts_with('/')) {
      Mistake(*file.get(key), key, "must be an absolute path");
      return std::nullopt;
    }
    return path;
  }

  void ReadCapability(const toml::table& file) {
    v1::Capability& capability = *spec_.request.mutable_capability();
    if (const auto text = String(file, "access_mode")) {
      v1::AccessMode mode = v1::ACCESS_MODE_UNKNOWN;
      if (v1::AccessMode_Parse(Folded(*text), &mode) && mode != v1::ACCESS_MODE_UNKNOWN) {
        capability.set_access_mode(mode);
      } else {
        std::vector<std::string> names;
        for (int i = 1; i < v1::AccessMode_descriptor()->value_count(); ++i) {
          names.push_back(v1::AccessMode_descriptor()->value(i)->name());
        }
        Mistake(
            *file.get("access_mode"), "access_mode",
            fmt::format("there is no \"{}\"; there are {}", Printable(*text, 64), fmt::join(names, ", ")));
      }
    }
    if (const auto text = String(file, "access_type")) {
      if (*text == "block") capability.set_access_type(v1::BLOCK);
      if (*text != "block" && *text != "mount") {
        Mistake(*file.get("access_type"), "access_type",
                fmt::format("must be \"mount\" or \"block\", and is \"{}\"", Printable(*text, 64)));
      }
    }
    if (const auto text = String(file, "fs_type")) capability.set_fs_type(*text);
    if (const auto flags = MountFlags(file, ""))
      *capability.mutable_mount_flags() = {flags->begin(), flags->end()};
    if (const auto text = Filled(file, "volume_mount_group")) capability.set_volume_mount_group(*text);
    if (capability.access_type() == v1::BLOCK) {
      NotTogether(file, {"fs_type", "mount_flags", "mount_options", "volume_mount_group"},
                  "only with a file system, not with access_type = \"block\"");
    }
  }

  std::optional<std::vector<std::string>> MountFlags(const toml::table& table, std::string_view prefix) {
    const auto flags = Strings(table, prefix, "mount_flags");
    for (size_t i = 0; flags.has_value() && i < flags->size(); ++i) {
      if (!(*flags)[i].empty()) continue;
      Mistake(*table.get("mount_flags"), fmt::format("{}mount_flags[{}]", prefix, i), "must not be empty");
    }
    return flags;
  }

  // Of this use, instead of the volume's.
  void ReadMountOptions(const toml::table& file) {
    const toml::table* table = Table(file, "mount_options");
    if (table == nullptr) return;
    constexpr std::string_view kPrefix = "mount_options.";
    CheckKeys(*table, kPrefix, {"fs_type", "mount_flags"});
    v1::MountOptions& options = *spec_.request.mutable_mount_options();
    if (const toml::node* type = table->get("fs_type")) {
      if (const auto text = Text(*type, "mount_options.fs_type")) options.set_fs_type(*text);
    }
    if (const auto flags = MountFlags(*table, kPrefix)) {
      *options.mutable_mount_flags()->mutable_values() = {flags->begin(), flags->end()};
    }
  }

  void ReadPermissions(const toml::table& file) {
    v1::RootPermissions permissions;
    bool any = false;
    if (const auto owner = Id(file, "owner", UserId)) {
      permissions.set_owner(*owner);
      any = true;
    }
    if (const auto group = Id(file, "group", GroupId)) {
      permissions.set_group(*group);
      any = true;
    }
    if (const toml::node* node = file.get("mode")) {
      // A bare number would be read as decimal: 750 is not 0750.
      if (!node->is_string()) {
        WrongType(*node, "mode", fmt::format("a string of {}", kModeForm));
      } else if (const auto text = Text(*node, "mode")) {
        const absl::StatusOr<uint32_t> mode = ParseMode(*text);
        if (mode.ok()) permissions.set_mode(*mode);
        if (!mode.ok()) Mistake(*node, "mode", Why(mode.status()));
        any = any || mode.ok();
      }
    }
    if (const auto recursive = Bool(file, "recursive"); recursive.value_or(false)) {
      permissions.set_recursive(true);
      if (!file.contains("owner") && !file.contains("group")) {
        Mistake(*file.get("recursive"), "recursive", "goes with owner or group, and both are missing");
      }
    }
    if (const auto label = Filled(file, "selinux_label")) {
      permissions.set_selinux_label(*label);
      any = true;
    }
    if (any) *spec_.request.mutable_permissions() = permissions;
    const bool block = spec_.request.capability().access_type() == v1::BLOCK;
    if (block || spec_.request.readonly()) {
      NotTogether(file, {"owner", "group", "mode", "selinux_label"},
                  block ? "only with a file system, not with access_type = \"block\""
                        : "not with readonly = true: nothing can be set there");
    }
  }

  std::optional<uint32_t> Id(const toml::table& file, std::string_view key,
                             const std::function<absl::StatusOr<uint32_t>(const std::string&)>& look_up) {
    const toml::node* node = file.get(key);
    if (node == nullptr) return std::nullopt;
    std::string text;
    if (const toml::value<int64_t>* number = node->as_integer()) {
      text = std::to_string(**number);
    } else if (node->is_string()) {
      text = Text(*node, key).value_or("");
    } else {
      WrongType(*node, key, "a name or a number");
      return std::nullopt;
    }
    const absl::StatusOr<uint32_t> id = look_up(text);
    if (id.ok()) return *id;
    Mistake(*node, key, Why(id.status()));
    return std::nullopt;
  }

  void ReadSecrets(const toml::table& file) {
    v1::SecretsReference& reference = *spec_.request.mutable_secrets_reference();
    if (const auto path = Absolute(file, "secrets_file")) reference.set_file(*path);
    if (const auto name = Filled(file, "secrets_credential")) {
      if (name->find('/') != std::string::npos) {
        Mistake(*file.get("secrets_credential"), "secrets_credential",
                "is the name of a credential, without a slash");
      }
      if (file.contains("secrets_file")) {
        Mistake(*file.get("secrets_credential"), "secrets_credential", "not together with secrets_file");
      }
      reference.set_credential(*name);
    }
    if (reference.kind_case() == v1::SecretsReference::KIND_NOT_SET) spec_.request.clear_secrets_reference();
  }

  void ReadLife(const toml::table& file, Place place) {
    v1::ConsumerLife& life = *spec_.request.mutable_life();
    if (const toml::node* node = file.get("pid")) {
      const toml::value<int64_t>* number = node->as_integer();
      if (number == nullptr) {
        WrongType(*node, "pid", "a process's number");
      } else {
        life.set_pid(**number);
      }
      if (place == Place::kVolumesD) {
        Mistake(*node, "pid", "not in volumes.d: a process's number means nothing later; unit and cgroup do");
      }
    }
    if (const auto path = Absolute(file, "cgroup")) life.set_cgroup(*path);
    if (const auto unit = Filled(file, "unit")) life.set_unit(*unit);
    if (life.kind_case() == v1::ConsumerLife::KIND_NOT_SET) spec_.request.clear_life();
    std::string_view first;
    for (const std::string_view key : {"pid", "cgroup", "unit"}) {
      if (!file.contains(key)) continue;
      if (!first.empty()) {
        Mistake(*file.get(key), key,
                fmt::format("not together with {}: a consumer has one of pid, cgroup, unit", first));
      } else {
        first = key;
      }
    }
  }

  void ReadMap(const toml::table& file, std::string_view key,
               google::protobuf::Map<std::string, std::string>& map) {
    const toml::table* table = Table(file, key);
    if (table == nullptr) return;
    for (const auto& [name, node] : *table) {
      const std::string full = fmt::format("{}.{}", key, name.str());
      if (name.empty()) Mistake(node, full, "a key must not be empty");
      // The plugin takes text; what TOML makes of a bare 010 or 1.50 would not be what was written.
      if (const auto text = Text(node, full)) map[std::string(name.str())] = *text;
    }
  }

  void ReadDeclared(const toml::table& file) {
    for (const std::string_view key : {"plugin", "volume"}) {
      if (!file.contains(key)) Mistake(1, key, "is missing; it must be given");
    }
    if (spec_.request.consumer().empty()) {
      const std::string name = path().substr(path().find_last_of('/') + 1);
      constexpr std::string_view kSuffix = ".toml";
      const bool suffixed = name.size() > kSuffix.size() && name.ends_with(kSuffix);
      spec_.request.set_consumer("declared/" +
                                 (suffixed ? name.substr(0, name.size() - kSuffix.size()) : name));
    }
    spec_.request.set_remount(spec_.remount.value_or(true));
    ReadPath(file);
    spec_.attach = Bool(file, "attach");
    if (spec_.attach.value_or(false) && file.contains("publish_context")) {
      Mistake(*file.get("attach"), "attach",
              "not together with publish_context, which says that it is attached already");
    }
  }

  void ReadPath(const toml::table& file) {
    if (const auto path = String(file, "path")) {
      const std::string_view why = WhyNoPath(*path);
      if (!why.empty()) Mistake(*file.get("path"), "path", why);
      if (spec_.request.capability().access_type() == v1::BLOCK) {
        Mistake(*file.get("path"), "path", "only with a file system, not with access_type = \"block\"");
      }
      spec_.path = *path;
    }
    const auto options = Strings(file, "", "path_options");
    if (!options.has_value()) return;
    if (!file.contains("path"))
      Mistake(*file.get("path_options"), "path_options", "goes with path, which is missing");
    for (const std::string& option : *options) {
      if (option == "suid") {
        spec_.path_suid = true;
      } else if (option == "dev") {
        spec_.path_dev = true;
      } else {
        Mistake(*file.get("path_options"), "path_options",
                fmt::format("there is no \"{}\"; there are \"suid\" and \"dev\"", Printable(option, 64)));
      }
    }
  }

  void NotTogether(const toml::table& file, Keys keys, std::string_view why) {
    for (const std::string_view key : keys) {
      if (const toml::node* node = file.get(key)) Mistake(*node, key, why);
    }
  }

  Spec spec_;
};

absl::StatusOr<Spec> Parse(const std::string& path, std::string_view content, Place place) {
  BERTH_ASSIGN_OR_RETURN(const toml::table file, ParseToml(path, content));
  SpecReader reader(path);
  Spec spec = reader.Read(file, place);
  BERTH_RETURN_IF_ERROR(reader.status());
  return spec;
}

}  // namespace

absl::StatusOr<v1::PublishVolumeRequest> ParseVolumeSpec(const std::string& path, std::string_view content) {
  BERTH_ASSIGN_OR_RETURN(Spec spec, Parse(path, content, Place::kCommandLine));
  return std::move(spec.request);
}

absl::StatusOr<v1::PublishVolumeRequest> ReadVolumeSpec(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const std::string content, ReadTomlFile(path));
  return ParseVolumeSpec(path, content);
}

absl::StatusOr<DeclaredVolume> ParseDeclaredVolume(const std::string& path, std::string_view content) {
  BERTH_ASSIGN_OR_RETURN(Spec spec, Parse(path, content, Place::kVolumesD));
  return DeclaredVolume{.request = std::move(spec.request),
                        .attach = spec.attach,
                        .path = std::move(spec.path),
                        .path_suid = spec.path_suid,
                        .path_dev = spec.path_dev};
}

absl::StatusOr<DeclaredVolume> ReadDeclaredVolume(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const std::string content, ReadTrustedTomlFile(path));
  return ParseDeclaredVolume(path, content);
}

}  // namespace berth
