// Reading a TOML file strictly: every key known, every type right, every mistake named at once with its
// file, line and key, and with what would be right.
//
// A reader of one kind of file derives from, or holds, a TomlReader, takes its values through it and ends
// with status(). Plain values; any thread. Includes toml++, which is slow to compile: from .cc files only.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <toml++/toml.h>

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace berth {

// Reads a regular file of up to 64 KiB. INVALID_ARGUMENT if it is not one or is longer; NOT_FOUND,
// PERMISSION_DENIED and so on if it cannot be read.
[[nodiscard]] absl::StatusOr<std::string> ReadTomlFile(const std::string& path);

// Reads a file that decides what root does, such as a plugin's file. Also INVALID_ARGUMENT if another user
// than root and our own can change the file or its directory, by owner or mode; a sticky directory is fine.
// Checks the file that was opened, not its path. If we are not root, the mistake is only a warning in the
// log. In a user namespace the kernel's overflow uid counts as root.
[[nodiscard]] absl::StatusOr<std::string> ReadTrustedTomlFile(const std::string& path);

// INVALID_ARGUMENT "path:line: not TOML: why".
[[nodiscard]] absl::StatusOr<toml::table> ParseToml(const std::string& path, std::string_view content);

class TomlReader {
 public:
  using Keys = std::initializer_list<std::string_view>;

  // `path` leads each mistake.
  explicit TomlReader(std::string path) : path_(std::move(path)) {}

  // OK, or INVALID_ARGUMENT with one line for each mistake, in the file's order.
  [[nodiscard]] absl::Status status() const;

  // "path:line: key: text".
  void Mistake(size_t line, std::string_view key, std::string_view text);
  void Mistake(const toml::node& where, std::string_view key, std::string_view text);
  // "is an integer, and must be `right`".
  void WrongType(const toml::node& node, std::string_view key, std::string_view right);

  // Every key of `table` must be among `known`; one that is not is named with the one that was probably
  // meant. `prefix` leads the keys in messages: "health.".
  void CheckKeys(const toml::table& table, std::string_view prefix, Keys known);

  // What `table` has under `key`: nothing where it has nothing, or something of another type, which is a
  // mistake then. Strings hold no NUL, which no argument, path or variable can hold.
  [[nodiscard]] const toml::table* Table(const toml::table& table, std::string_view key);
  [[nodiscard]] std::optional<bool> Bool(const toml::table& table, std::string_view key);
  [[nodiscard]] std::optional<std::string> String(const toml::table& table, std::string_view key);
  [[nodiscard]] std::optional<std::vector<std::string>> Strings(const toml::table& table,
                                                                std::string_view prefix,
                                                                std::string_view key);
  [[nodiscard]] std::optional<std::string> Text(const toml::node& node, std::string_view key);

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::multimap<size_t, std::string> mistakes_;  // by line
};

}  // namespace berth
