#include "supervisor/plugin_config.h"

#include <dirent.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <initializer_list>
#include <set>

#include "base/file.h"
#include "base/safe_path.h"
#include "base/status.h"
#include "base/toml_reader.h"
#include "supervisor/duration_text.h"

namespace berth {
namespace {

constexpr size_t kValueLimit = 64 * size_t{1024};  // of one environment variable from a file
constexpr size_t kSocketPathLimit = sizeof(sockaddr_un{}.sun_path) - 1;
constexpr size_t kIdLimit = 63;

constexpr std::initializer_list<std::string_view> kTopKeys = {
    "id",     "kind",          "enabled",      "command", "args",   "env",
    "socket", "start_timeout", "stop_timeout", "health",  "restart"};
constexpr std::initializer_list<std::string_view> kHealthKeys = {"interval", "timeout", "failures",
                                                                 "fingerprint_interval"};
constexpr std::initializer_list<std::string_view> kRestartKeys = {
    "policy", "initial_backoff", "max_backoff", "burst", "window", "stable_after"};
constexpr std::initializer_list<std::string_view> kSetByBerth = {"CSI_ENDPOINT", "BERTH_NODE_ID",
                                                                 "BERTH_PLUGIN_DIR"};

bool Contains(std::initializer_list<std::string_view> list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Reads one file's tables and gathers what is wrong with them.
class Reader : private TomlReader {
 public:
  Reader(const std::string& path, const PluginPlaces& places) : TomlReader(path), places_(places) {}

  absl::StatusOr<PluginConfig> Read(const toml::table& file) {
    config_.file = path();
    CheckKeys(file, "", kTopKeys);
    ReadId(file);
    ReadKind(file);
    config_.enabled = Bool(file, "enabled").value_or(true);
    if (const toml::node* socket = file.get("socket")) {
      Mistake(*socket, "socket",
              "a plugin that somebody else runs is not supported by this version; give the command that "
              "berthd is to run instead");
    }
    ReadCommand(file);
    ReadEnvironment(file);
    ReadDuration(file, "", "start_timeout", &config_.start_timeout);
    ReadDuration(file, "", "stop_timeout", &config_.stop_timeout);
    if (const toml::table* health = Table(file, "health")) ReadHealth(*health);
    if (const toml::table* restart = Table(file, "restart")) ReadRestart(*restart);
    BERTH_RETURN_IF_ERROR(status());
    return std::move(config_);
  }

 private:
  void ReadId(const toml::table& file) {
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
    const std::string socket = PluginSocketPath(places_, config_.id);
    if (socket.size() > kSocketPathLimit) {
      Mistake(
          line, "id",
          fmt::format("its socket {} would have a path of {} bytes, and a Unix socket's holds {}: shorten "
                      "the id or the runtime directory {} by {}",
                      socket, socket.size(), kSocketPathLimit, places_.runtime_dir,
                      socket.size() - kSocketPathLimit));
    }
  }

  void ReadKind(const toml::table& file) {
    constexpr std::string_view kRight =
        "must be \"node\", \"controller\" or \"monolith\" (which of CSI's services it serves; monolith: "
        "both)";
    const toml::node* node = file.get("kind");
    if (node == nullptr) return Mistake(1, "kind", fmt::format("missing; {}", kRight));
    const std::optional<std::string> kind = Text(*node, "kind");
    if (!kind.has_value()) return;
    for (const PluginKind each : {PluginKind::kNode, PluginKind::kController, PluginKind::kMonolith}) {
      if (*kind != PluginKindName(each)) continue;
      config_.kind = each;
      return;
    }
    Mistake(*node, "kind", fmt::format("\"{}\" is none; it {}", Printable(*kind, 64), kRight));
  }

  void ReadCommand(const toml::table& file) {
    const toml::node* command = file.get("command");
    const toml::node* args = file.get("args");
    if (command == nullptr) {
      if (file.get("socket") == nullptr) {
        Mistake(1, "command", "missing; give the absolute path of the plugin's program");
      }
    } else if (const toml::array* whole = command->as_array()) {
      if (args != nullptr) {
        Mistake(*args, "args", "command is an array and holds the arguments already; give one or the other");
      }
      std::vector<std::string> words = Words(*whole, "command");
      if (whole->empty()) {
        Mistake(*command, "command", "is empty; it begins with the absolute path of the plugin's program");
      } else if (!words.empty()) {
        config_.arguments.assign(words.begin() + 1, words.end());
        CheckCommand(*command, words.front());
      }
    } else if (command->is_string()) {
      if (const std::optional<std::string> path = Text(*command, "command")) CheckCommand(*command, *path);
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
    const absl::Status status = Expand(text, PluginVariables(places_, config_.id)).status();
    if (!status.ok()) Mistake(node, key, std::string(status.message()));
  }

  void CheckCommand(const toml::node& node, const std::string& path) {
    config_.command = path;
    if (!path.starts_with('/')) {
      return Mistake(node, "command",
                     fmt::format("\"{}\" must be an absolute path: no search path is used", Printable(path)));
    }
    struct stat info{};
    if (stat(path.c_str(), &info) != 0) {
      return Mistake(node, "command", std::string(ErrnoStatus(errno, path).message()));
    }
    if (!S_ISREG(info.st_mode)) return Mistake(node, "command", fmt::format("{} is not a file", path));
    if (access(path.c_str(), X_OK) != 0) {
      Mistake(node, "command", fmt::format("{} is not executable (chmod +x)", path));
    }
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
      return CheckReadable(*file, full + ".file", *path);
    }
    const std::optional<std::string> credential_name = Text(*credential, full + ".credential");
    if (!credential_name.has_value()) return;
    config_.environment[name] = {EnvironmentValue::Source::kCredential, *credential_name};
    if (credential_name->empty() || credential_name->find('/') != std::string::npos ||
        credential_name->starts_with('.')) {
      return Mistake(*credential, full + ".credential", "is not the name of a credential");
    }
    if (places_.credentials_dir.empty()) {
      return Mistake(*credential, full + ".credential",
                     "berthd was given no credentials (systemd: LoadCredential= in berthd.service)");
    }
    CheckReadable(*credential, full + ".credential", places_.credentials_dir + "/" + *credential_name);
  }

  void CheckReadable(const toml::node& node, std::string_view key, const std::string& path) {
    struct stat info{};
    if (stat(path.c_str(), &info) != 0) {
      return Mistake(node, key, std::string(ErrnoStatus(errno, path).message()));
    }
    if (!S_ISREG(info.st_mode)) return Mistake(node, key, fmt::format("{} is not a file", path));
    if (static_cast<size_t>(info.st_size) > kValueLimit) {
      Mistake(node, key, fmt::format("{} is longer than {} bytes", path, kValueLimit));
    }
  }

  void ReadDuration(const toml::table& table, std::string_view prefix, std::string_view key,
                    Duration* value) {
    constexpr std::string_view kRight =
        "a duration: a string like \"500ms\", \"30s\", \"2m\" or \"1h\", or whole seconds";
    const toml::node* node = table.get(key);
    if (node == nullptr) return;
    const std::string full = fmt::format("{}{}", prefix, key);
    std::optional<Duration> duration;
    if (const toml::value<int64_t>* whole = node->as_integer()) {
      const int64_t most = std::chrono::duration_cast<std::chrono::seconds>(kLongestDuration).count();
      if (**whole >= 0 && **whole <= most) duration = std::chrono::seconds(**whole);
    } else if (node->is_string()) {
      duration = ParseDuration(**node->as_string());
    } else {
      return WrongType(*node, full, kRight);
    }
    if (!duration.has_value() || *duration <= Duration::zero()) {
      return Mistake(*node, full, fmt::format("must be {}, above zero and at most a year", kRight));
    }
    *value = *duration;
  }

  void ReadCount(const toml::table& table, std::string_view prefix, std::string_view key, int* value) {
    constexpr int64_t kMost = 1'000'000;
    const toml::node* node = table.get(key);
    if (node == nullptr) return;
    const std::string full = fmt::format("{}{}", prefix, key);
    const toml::value<int64_t>* count = node->as_integer();
    if (count == nullptr) return WrongType(*node, full, "an integer");
    if (**count < 1 || **count > kMost)
      return Mistake(*node, full, fmt::format("must be from 1 to {}", kMost));
    *value = static_cast<int>(**count);
  }

  void ReadHealth(const toml::table& health) {
    CheckKeys(health, "health.", kHealthKeys);
    ReadDuration(health, "health.", "interval", &config_.health.interval);
    ReadDuration(health, "health.", "timeout", &config_.health.timeout);
    ReadCount(health, "health.", "failures", &config_.health.failures);
    ReadDuration(health, "health.", "fingerprint_interval", &config_.health.fingerprint_interval);
  }

  void ReadRestart(const toml::table& restart) {
    CheckKeys(restart, "restart.", kRestartKeys);
    if (const toml::node* node = restart.get("policy")) ReadRestartMode(*node);
    ReadDuration(restart, "restart.", "initial_backoff", &config_.restart.initial_backoff);
    ReadDuration(restart, "restart.", "max_backoff", &config_.restart.max_backoff);
    ReadCount(restart, "restart.", "burst", &config_.restart.burst);
    ReadDuration(restart, "restart.", "window", &config_.restart.window);
    ReadDuration(restart, "restart.", "stable_after", &config_.restart.stable_after);
    if (config_.restart.initial_backoff > config_.restart.max_backoff) {
      const toml::node* node = restart.get("initial_backoff");
      Mistake(
          node == nullptr ? restart : *node, "restart.initial_backoff",
          fmt::format("{} is above restart.max_backoff, {}", FormatDuration(config_.restart.initial_backoff),
                      FormatDuration(config_.restart.max_backoff)));
    }
  }

  void ReadRestartMode(const toml::node& node) {
    const std::optional<std::string> mode = Text(node, "restart.policy");
    if (!mode.has_value()) return;
    if (*mode == "always") {
      config_.restart.mode = RestartMode::kAlways;
    } else if (*mode == "on-failure") {
      config_.restart.mode = RestartMode::kOnFailure;
    } else if (*mode == "never") {
      config_.restart.mode = RestartMode::kNever;
    } else {
      Mistake(node, "restart.policy",
              fmt::format("\"{}\" is none; it must be \"always\", \"on-failure\" or \"never\"",
                          Printable(*mode, 64)));
    }
  }

  const PluginPlaces& places_;
  PluginConfig config_;
};

// The id that a broken file gives, where it can still be read.
std::string ClaimedId(const std::string& path) {
  const absl::StatusOr<std::string> content = ReadTomlFile(path);
  if (!content.ok()) return "";
  const absl::StatusOr<toml::table> table = ParseToml(path, *content);
  if (!table.ok()) return "";
  const std::optional<std::string> id = (*table)["id"].value<std::string>();
  return id.has_value() && ValidPluginId(*id) ? *id : "";
}

// The value of a variable that lies in a file: one line end at its end is the editor's, not the value's.
absl::StatusOr<std::string> ReadValue(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(std::string value, ReadFile(path, kValueLimit));
  if (value.ends_with('\n')) value.pop_back();
  if (value.ends_with('\r')) value.pop_back();
  if (value.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(fmt::format("{} holds a NUL character", path));
  }
  return value;
}

}  // namespace

std::string PluginRuntimeDir(const PluginPlaces& places, std::string_view id) {
  return fmt::format("{}/plugins/{}", places.runtime_dir, id);
}

std::string PluginSocketPath(const PluginPlaces& places, std::string_view id) {
  return PluginRuntimeDir(places, id) + "/csi.sock";
}

std::string PluginStateDir(const PluginPlaces& places, std::string_view id) {
  return fmt::format("{}/plugins/{}", places.state_dir, id);
}

Variables PluginVariables(const PluginPlaces& places, std::string_view id) {
  const std::string socket = PluginSocketPath(places, id);
  Variables variables = {{"CSI_ENDPOINT", "unix://" + socket},
                         {"CSI_SOCKET", socket},
                         {"BERTH_NODE_ID", places.node_id},
                         {"BERTH_PLUGIN_DIR", PluginStateDir(places, id)}};
  if (!places.credentials_dir.empty()) variables["CREDENTIALS_DIRECTORY"] = places.credentials_dir;
  return variables;
}

bool ValidPluginId(std::string_view id) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  if (id.empty() || id.size() > kIdLimit || !plain(id.front())) return false;
  return std::all_of(id.begin(), id.end(),
                     [&](char c) { return plain(c) || c == '.' || c == '_' || c == '-'; });
}

absl::StatusOr<PluginConfig> ParsePluginFile(const std::string& path, std::string_view content,
                                             const PluginPlaces& places) {
  BERTH_ASSIGN_OR_RETURN(const toml::table table, ParseToml(path, content));
  return Reader(path, places).Read(table);
}

absl::StatusOr<PluginConfig> LoadPluginFile(const std::string& path, const PluginPlaces& places) {
  BERTH_ASSIGN_OR_RETURN(const std::string content, ReadTomlFile(path));
  return ParsePluginFile(path, content, places);
}

absl::StatusOr<std::vector<PluginFile>> LoadPluginDir(const std::string& dir, const PluginPlaces& places) {
  DIR* open = opendir(dir.c_str());
  if (open == nullptr) return ErrnoStatus(errno, fmt::format("read {}", dir));
  std::set<std::string> names;
  while (const dirent* entry = readdir(open)) {
    const std::string_view name = entry->d_name;
    if (name.ends_with(".toml") && !name.starts_with('.')) names.emplace(name);
  }
  closedir(open);

  std::vector<PluginFile> files;
  std::map<std::string, std::string> taken;  // id → the file that has it
  for (const std::string& name : names) {
    const std::string path = dir + "/" + name;
    PluginFile file{path, "", LoadPluginFile(path, places)};
    if (file.config.ok()) {
      const auto [first, is_first] = taken.emplace(file.config->id, path);
      if (is_first) {
        file.id = file.config->id;
      } else {
        file.config = absl::InvalidArgumentError(fmt::format(
            "{}: id: \"{}\" is the id of {} already, which keeps it; give each file an id of its own", path,
            first->first, first->second));
      }
    }
    files.push_back(std::move(file));
  }
  // Broken files are named last: none takes a good one's id.
  for (PluginFile& file : files) {
    if (file.config.ok()) continue;
    const std::filesystem::path path(file.path);
    const std::string stem = Printable(path.stem().string(), 128);
    for (const std::string& id : {ClaimedId(file.path), stem, Printable(path.filename().string(), 128)}) {
      if (id.empty() || taken.contains(id)) continue;
      file.id = id;
      break;
    }
    for (int n = 2; file.id.empty(); ++n) {
      if (const std::string id = fmt::format("{}#{}", stem, n); !taken.contains(id)) file.id = id;
    }
    taken.emplace(file.id, file.path);
  }
  return files;
}

absl::StatusOr<std::vector<std::string>> PluginArguments(const PluginConfig& config,
                                                         const PluginPlaces& places) {
  const Variables variables = PluginVariables(places, config.id);
  std::vector<std::string> arguments;
  arguments.reserve(config.arguments.size());
  for (const std::string& argument : config.arguments) {
    BERTH_ASSIGN_OR_RETURN(std::string expanded, Expand(argument, variables));
    arguments.push_back(std::move(expanded));
  }
  return arguments;
}

absl::StatusOr<std::vector<std::string>> PluginEnvironment(const PluginConfig& config,
                                                           const PluginPlaces& places) {
  const Variables variables = PluginVariables(places, config.id);
  std::map<std::string, std::string> environment = {
      {"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
      {"HOME", "/"},
      {"LANG", "C.UTF-8"},
      {"CSI_ENDPOINT", variables.at("CSI_ENDPOINT")},
      {"BERTH_NODE_ID", variables.at("BERTH_NODE_ID")},
      {"BERTH_PLUGIN_DIR", variables.at("BERTH_PLUGIN_DIR")},
  };
  for (const auto& [name, given] : config.environment) {
    absl::StatusOr<std::string> value = std::string();
    switch (given.source) {
      case EnvironmentValue::Source::kText:
        value = Expand(given.value, variables);
        break;
      case EnvironmentValue::Source::kFile:
        value = ReadValue(given.value);
        break;
      case EnvironmentValue::Source::kCredential:
        value = ReadValue(places.credentials_dir + "/" + given.value);
        break;
    }
    if (!value.ok()) return Annotate(value.status(), fmt::format("{}: env.{}", config.file, name));
    environment[name] = *std::move(value);
  }
  std::vector<std::string> result;
  result.reserve(environment.size());
  for (const auto& [name, value] : environment) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

std::string LaunchFingerprint(const PluginConfig& config, const PluginPlaces& places) {
  std::string text;
  const auto add = [&text](std::string_view part) { text += fmt::format("{}:{},", part.size(), part); };
  add(config.id);
  add(config.command);
  add(std::to_string(config.arguments.size()));
  for (const std::string& argument : config.arguments) add(argument);
  for (const auto& [name, value] : config.environment) {
    add(name);
    add(std::to_string(static_cast<int>(value.source)));
    add(value.value);
  }
  for (const auto& [name, value] : PluginVariables(places, config.id)) {
    add(name);
    // systemd names the credentials' directory anew for each run of a service.
    if (name != "CREDENTIALS_DIRECTORY") add(value);
  }
  return HashComponent({text});
}

}  // namespace berth
