#include "supervisor/plugin_file_reader.h"

#include <fmt/format.h>
#include <sys/un.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <initializer_list>

#include "base/status.h"
#include "supervisor/plugin_file_sections.h"
#include "supervisor/plugin_launch.h"

namespace berth {
namespace {

constexpr size_t kSocketPathLimit = sizeof(sockaddr_un{}.sun_path) - 1;

constexpr std::initializer_list<std::string_view> kTopKeys = {"id",
                                                              "kind",
                                                              "enabled",
                                                              "socket",
                                                              "command",
                                                              "args",
                                                              "env",
                                                              "volumes_path",
                                                              "user",
                                                              "group",
                                                              "supplementary_groups",
                                                              "capability_bounding_set",
                                                              "ambient_capabilities",
                                                              "no_new_privileges",
                                                              "umask",
                                                              "working_directory",
                                                              "children",
                                                              "serves_mounts",
                                                              "start_timeout",
                                                              "stop_timeout",
                                                              "limits",
                                                              "rlimits",
                                                              "log",
                                                              "health",
                                                              "restart",
                                                              "token",
                                                              "pod_info"};
// What only makes sense for a process of ours.
constexpr std::initializer_list<std::string_view> kProcessKeys = {"command",
                                                                  "args",
                                                                  "env",
                                                                  "user",
                                                                  "group",
                                                                  "supplementary_groups",
                                                                  "capability_bounding_set",
                                                                  "ambient_capabilities",
                                                                  "no_new_privileges",
                                                                  "umask",
                                                                  "working_directory",
                                                                  "children",
                                                                  "serves_mounts",
                                                                  "start_timeout",
                                                                  "stop_timeout",
                                                                  "limits",
                                                                  "rlimits",
                                                                  "log",
                                                                  "restart"};
constexpr std::initializer_list<std::string_view> kSetByBerth = {"CSI_ENDPOINT", "BERTH_NODE_ID",
                                                                 "BERTH_PLUGIN_DIR"};

bool Contains(std::initializer_list<std::string_view> list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

class FileReader : private ValueReader {
 public:
  FileReader(const std::string& path, const PluginPaths& paths) : ValueReader(path), paths_(paths) {}

  absl::StatusOr<PluginConfig> Read(const toml::table& file) {
    config_.file = path();
    CheckKeys(file, "", kTopKeys);
    const toml::node* socket = file.get("socket");
    ReadId(file, socket != nullptr);
    const bool kind_known = ReadKind(file);
    ReadBool(file, "", "enabled", &config_.enabled);
    if (const toml::node* node = file.get("volumes_path")) ReadVolumesPath(*node);
    if (const toml::table* health = Table(file, "health")) {
      ReadHealth(*this, *health, socket != nullptr, &config_.health);
    }
    ReadBool(file, "", "pod_info", &config_.pod_info);
    if (const toml::node* tokens = file.get("token")) {
      ReadTokens(*this, *tokens, kind_known ? config_.kind : PluginKind::kMonolith, &config_.tokens);
    }
    if (socket != nullptr) {
      ReadSocket(file, *socket);
    } else {
      ReadProcess(file, kind_known);
    }
    BERTH_RETURN_IF_ERROR(status());
    return std::move(config_);
  }

 private:
  void ReadId(const toml::table& file, bool external) {
    constexpr std::string_view kRule =
        "must be 1 to 63 of the characters a-z, 0-9, dot, underscore and hyphen, the first of them a letter "
        "or digit";
    const toml::node* node = file.get("id");
    size_t line = 1;
    if (node == nullptr) {
      config_.id = std::filesystem::path(path()).stem().string();
      if (!ValidPluginId(config_.id)) {
        return Mistake(1, "id",
                       fmt::format("missing, and the file's name \"{}\" cannot stand for it: an id {}",
                                   Printable(config_.id, 128), kRule));
      }
    } else {
      line = node->source().begin.line;
      std::optional<std::string> id = Text(*node, "id");
      if (!id.has_value()) return;
      if (!ValidPluginId(*id)) {
        return Mistake(line, "id", fmt::format("\"{}\" {}", Printable(*id, 128), kRule));
      }
      config_.id = *std::move(id);
    }
    if (external) return;
    const std::string socket = PluginSocketPath(paths_, config_.id);
    if (socket.size() > kSocketPathLimit) {
      Mistake(
          line, "id",
          fmt::format("its socket {} would have a path of {} bytes, and a Unix socket's holds {}: shorten "
                      "the id or the runtime directory {} by {}",
                      socket, socket.size(), kSocketPathLimit, paths_.runtime_dir,
                      socket.size() - kSocketPathLimit));
    }
  }

  // Whether it is known now.
  bool ReadKind(const toml::table& file) {
    constexpr std::string_view kRight =
        "must be \"node\", \"controller\" or \"monolith\" (which of CSI's services it serves; monolith: "
        "both)";
    const toml::node* node = file.get("kind");
    if (node == nullptr) {
      Mistake(1, "kind", fmt::format("missing; {}", kRight));
      return false;
    }
    const std::optional<std::string> kind = Text(*node, "kind");
    if (!kind.has_value()) return false;
    for (const PluginKind each : {PluginKind::kNode, PluginKind::kController, PluginKind::kMonolith}) {
      if (*kind != PluginKindName(each)) continue;
      config_.kind = each;
      return true;
    }
    Mistake(*node, "kind", fmt::format("\"{}\" is not possible; it {}", Printable(*kind, 64), kRight));
    return false;
  }

  // A plugin that berthd does not run.
  void ReadSocket(const toml::table& file, const toml::node& socket) {
    for (const std::string_view key : kProcessKeys) {
      const toml::node* node = file.get(key);
      if (node == nullptr) continue;
      Mistake(*node, key,
              key == "command"
                  ? "not with socket: give command for a plugin that berthd runs, socket for an "
                    "external plugin"
                  : "not with socket: berthd does not run this plugin, so that it cannot apply it");
    }
    const std::optional<std::string> path = Text(socket, "socket");
    if (!path.has_value()) return;
    config_.socket = *path;
    if (!path->starts_with('/')) {
      return Mistake(socket, "socket",
                     fmt::format("\"{}\" must be the absolute path of a Unix socket, without unix://",
                                 Printable(*path)));
    }
    if (path->size() > kSocketPathLimit) {
      Mistake(
          socket, "socket",
          fmt::format("is a path of {} bytes, and a Unix socket's holds {}", path->size(), kSocketPathLimit));
    }
  }

  // A plugin that berthd runs.
  void ReadProcess(const toml::table& file, bool kind_known) {
    ReadCommand(file);
    ReadEnvironment(file);
    // Where the kind is not known, neither is what it must be allowed to do.
    ReadUser(*this, file, kind_known ? config_.kind : PluginKind::kController, &config_.user);
    if (const toml::node* node = file.get("working_directory")) ReadWorkingDirectory(*node);
    ReadChoice<ChildrenPolicy>(file, "", "children",
                               {{"end", ChildrenPolicy::kEnd}, {"keep", ChildrenPolicy::kKeep}},
                               &config_.children);
    ReadBool(file, "", "serves_mounts", &config_.serves_mounts);
    ReadDuration(file, "", "start_timeout", &config_.start_timeout);
    ReadDuration(file, "", "stop_timeout", &config_.stop_timeout);
    if (const toml::table* limits = Table(file, "limits")) ReadLimits(*this, *limits, &config_.limits);
    if (const toml::table* rlimits = Table(file, "rlimits")) ReadRlimits(*this, *rlimits, &config_.rlimits);
    if (const toml::table* log = Table(file, "log")) ReadLog(*this, *log, &config_.log);
    if (const toml::table* restart = Table(file, "restart")) ReadRestart(*this, *restart, &config_.restart);
  }

  void ReadVolumesPath(const toml::node& node) {
    const std::optional<std::string> given = Text(node, "volumes_path");
    if (!given.has_value()) return;
    const std::filesystem::path path(*given);
    if (!path.is_absolute() || path == "/" || path.lexically_normal().string() != *given ||
        given->ends_with('/')) {
      return Mistake(node, "volumes_path",
                     fmt::format("\"{}\" must be the absolute path of a directory, without \"..\" and "
                                 "without a slash at its end: \"/csi/volumes\"",
                                 Printable(*given)));
    }
    config_.volumes_path = *given;
  }

  void ReadWorkingDirectory(const toml::node& node) {
    const std::optional<std::string> path = Text(node, "working_directory");
    if (!path.has_value()) return;
    const absl::StatusOr<std::string> expanded = Expand(*path, PluginVariables(paths_, config_.id));
    if (!expanded.ok()) return Mistake(node, "working_directory", MessageOf(expanded.status()));
    if (!expanded->starts_with('/')) {
      return Mistake(node, "working_directory",
                     fmt::format("\"{}\" must be an absolute path", Printable(*path)));
    }
    config_.user.working_directory = *path;
  }

  void ReadCommand(const toml::table& file) {
    const toml::node* command = file.get("command");
    const toml::node* args = file.get("args");
    if (command == nullptr) {
      Mistake(1, "command",
              "missing; give the absolute path of the plugin's program (or socket, for an "
              "external plugin)");
    } else if (const toml::array* whole = command->as_array()) {
      if (args != nullptr) {
        Mistake(*args, "args", "command is an array and holds the arguments already; give one or the other");
      }
      std::vector<std::string> words = Words(*whole, "command");
      if (whole->empty()) {
        Mistake(*command, "command", "is empty; it begins with the absolute path of the plugin's program");
      } else if (!words.empty()) {
        config_.arguments.assign(words.begin() + 1, words.end());
        TakeCommand(*command, words.front());
      }
    } else if (command->is_string()) {
      if (const std::optional<std::string> path = Text(*command, "command")) TakeCommand(*command, *path);
    } else {
      WrongType(*command, "command", "the absolute path of the plugin's program, or an array that begins so");
    }
    if (args == nullptr || (command != nullptr && command->is_array())) return;
    if (const toml::array* list = args->as_array()) {
      config_.arguments = Words(*list, "args");
    } else {
      WrongType(*args, "args", "an array of strings: [\"--flag\", \"value\"]");
    }
  }

  // The strings of `list`, or none if one of them is wrong.
  std::vector<std::string> Words(const toml::array& list, std::string_view key) {
    std::vector<std::string> words;
    bool good = true;
    for (size_t i = 0; i < list.size(); ++i) {
      const toml::node& node = *list.get(i);
      const std::string name = fmt::format("{}[{}]", key, i);
      std::optional<std::string> word = Text(node, name);
      if (word.has_value()) CheckExpansion(node, name, *word);
      good = good && word.has_value();
      words.push_back(std::move(word).value_or(""));
    }
    if (!good) words.clear();
    return words;
  }

  void CheckExpansion(const toml::node& node, std::string_view key, std::string_view text) {
    const absl::Status expanded = Expand(text, PluginVariables(paths_, config_.id)).status();
    if (!expanded.ok()) Mistake(node, key, MessageOf(expanded));
  }

  void TakeCommand(const toml::node& node, const std::string& path) {
    config_.command = path;
    if (path.starts_with('/')) return;
    Mistake(node, "command",
            fmt::format("\"{}\" must be an absolute path: no search path is used", Printable(path)));
  }

  void ReadEnvironment(const toml::table& file) {
    const toml::table* env = Table(file, "env");
    if (env == nullptr) return;
    for (const auto& [key, node] : *env) {
      const std::string name(key.str());
      const std::string full = "env." + name;
      const bool starts_well =
          !name.empty() && (isalpha(static_cast<unsigned char>(name[0])) || name[0] == '_');
      if (!starts_well ||
          !std::all_of(name.begin(), name.end(), [](unsigned char c) { return isalnum(c) || c == '_'; })) {
        Mistake(key.source().begin.line, full,
                "is not a variable's name: letters, digits and underscores, no digit first");
        continue;
      }
      if (Contains(kSetByBerth, name)) {
        Mistake(key.source().begin.line, full, "is set by berthd, and cannot be given here");
        continue;
      }
      if (node.is_string()) {
        const std::optional<std::string> text = Text(node, full);
        if (!text.has_value()) continue;
        CheckExpansion(node, full, *text);
        config_.environment[name] = {EnvironmentValue::Source::kText, *text};
      } else if (const toml::table* source = node.as_table()) {
        ReadEnvironmentSource(name, full, *source);
      } else {
        WrongType(node, full, "a string, {file = \"/path\"} or {credential = \"name\"}");
      }
    }
  }

  void ReadEnvironmentSource(const std::string& name, const std::string& full, const toml::table& source) {
    CheckKeys(source, full + ".", {"file", "credential"});
    const toml::node* file = source.get("file");
    const toml::node* credential = source.get("credential");
    if ((file == nullptr) == (credential == nullptr)) {
      return Mistake(source, full, "must have one of file = \"/path\" and credential = \"name\"");
    }
    if (file != nullptr) {
      const std::optional<std::string> path = Text(*file, full + ".file");
      if (!path.has_value()) return;
      config_.environment[name] = {EnvironmentValue::Source::kFile, *path};
      if (!path->starts_with('/')) {
        return Mistake(*file, full + ".file",
                       fmt::format("\"{}\" must be an absolute path", Printable(*path)));
      }
      return;
    }
    const std::optional<std::string> credential_name = Text(*credential, full + ".credential");
    if (!credential_name.has_value()) return;
    config_.environment[name] = {EnvironmentValue::Source::kCredential, *credential_name};
    if (credential_name->empty() || credential_name->find('/') != std::string::npos ||
        credential_name->starts_with('.')) {
      return Mistake(*credential, full + ".credential", "is not the name of a credential");
    }
    if (paths_.credentials_dir.empty()) {
      return Mistake(*credential, full + ".credential",
                     "berthd was given no credentials (systemd: LoadCredential= in berthd.service)");
    }
  }

  const PluginPaths& paths_;
  PluginConfig config_;
};

}  // namespace

absl::StatusOr<PluginConfig> ReadPluginFile(const std::string& path, const toml::table& file,
                                            const PluginPaths& paths) {
  return FileReader(path, paths).Read(file);
}

}  // namespace berth
