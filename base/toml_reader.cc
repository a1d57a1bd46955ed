#include "base/toml_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>

#include "base/file.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

constexpr size_t kTomlLimit = 64 * size_t{1024};

// Insertions, deletions and substitutions from one name to the other.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// The known key that was probably meant, if any is near enough.
std::optional<std::string_view> Nearest(std::string_view word, TomlReader::Keys known) {
  std::optional<std::string_view> nearest;
  size_t best = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string_view candidate : known) {
    const size_t distance = EditDistance(word.substr(0, 64), candidate);
    if (distance >= best) continue;
    best = distance;
    nearest = candidate;
  }
  return nearest;
}

std::string_view TypeName(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::none:
      return "nothing";
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "true or false";
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time:
      return "a date or time";
  }
  return "something else";
}

// The owner that the kernel shows of files whose owner has no number in this user namespace, such as the
// machine's root. Unset: this is not in a user namespace.
std::optional<uid_t> OverflowUid() {
  const auto map = ReadFile("/proc/self/uid_map", kTomlLimit);
  unsigned long first = 0;
  unsigned long outside = 0;
  unsigned long count = 0;
  const bool all = map.ok() && std::sscanf(map->c_str(), "%lu %lu %lu", &first, &outside, &count) == 3 &&
                   count >= std::numeric_limits<uid_t>::max();
  if (all) return std::nullopt;
  const auto text = ReadFile("/proc/sys/kernel/overflowuid", kTomlLimit);
  unsigned long uid = 0;
  if (!text.ok() || std::sscanf(text->c_str(), "%lu", &uid) != 1) return std::nullopt;
  return static_cast<uid_t>(uid);
}

// Says who can change what is open at `fd`, in addition to root and our own user. Empty if there is no one.
std::string WhoElseChanges(int fd) {
  struct stat info{};
  if (fstat(fd, &info) != 0) return fmt::format("it is not known who ({})", std::strerror(errno));
  const bool ours = info.st_uid == 0 || info.st_uid == geteuid();
  if (!ours && info.st_uid != OverflowUid()) return fmt::format("its owner, uid {}", info.st_uid);
  // In a sticky directory only its owner removes or renames a file.
  if (S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) != 0) return "";
  if ((info.st_mode & S_IWOTH) != 0) return fmt::format("everybody (mode {:04o})", info.st_mode & 07777);
  if ((info.st_mode & S_IWGRP) == 0 || info.st_gid == 0) return "";
  return fmt::format("its group, gid {} (mode {:04o})", info.st_gid, info.st_mode & 07777);
}

absl::Status CheckTrusted(const std::string& path, int file) {
  const std::string directory = std::filesystem::path(path).parent_path();
  const UniqueFd above(open(directory.empty() ? "." : directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (const auto& [what, fd] : {std::pair(path, file), std::pair(directory, above.get())}) {
    const std::string who = WhoElseChanges(fd);
    if (who.empty()) continue;
    absl::Status mistake = absl::InvalidArgumentError(
        fmt::format("{}: {}{} can change it, and what it says is done as root: chown root {}, chmod go-w {}",
                    path, what == path ? "" : fmt::format("in {}, which ", what), who, what, what));
    if (geteuid() == 0) return mistake;
    SPDLOG_WARN("{}", MessageOf(mistake));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Read(const std::string& path, bool trusted) {
  // A pipe is opened without waiting for a writer.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info{};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, fmt::format("read {}", path));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(fmt::format("read {}: not a file", path));
  if (trusted) BERTH_RETURN_IF_ERROR(CheckTrusted(path, fd.get()));
  absl::StatusOr<std::string> content = ReadOpenFile(fd.get(), path, kTomlLimit);
  if (absl::IsOutOfRange(content.status())) return absl::InvalidArgumentError(content.status().message());
  return content;
}

}  // namespace

absl::StatusOr<std::string> ReadTomlFile(const std::string& path) { return Read(path, /*trusted=*/false); }

absl::StatusOr<std::string> ReadTrustedTomlFile(const std::string& path) {
  return Read(path, /*trusted=*/true);
}

absl::StatusOr<toml::table> ParseToml(const std::string& path, std::string_view content) {
  try {
    return toml::parse(content, path);
  } catch (const toml::parse_error& error) {  // How the library, as Debian builds it, says so.
    return absl::InvalidArgumentError(fmt::format("{}:{}: not TOML: {}", path, error.source().begin.line,
                                                  Printable(error.description(), 512)));
  }
}

absl::Status TomlReader::status() const {
  if (mistakes_.empty()) return absl::OkStatus();
  std::vector<std::string_view> lines;
  lines.reserve(mistakes_.size());
  for (const auto& [line, text] : mistakes_) lines.push_back(text);
  return absl::InvalidArgumentError(fmt::format("{}", fmt::join(lines, "\n")));
}

void TomlReader::Mistake(size_t line, std::string_view key, std::string_view text) {
  mistakes_.emplace(line, fmt::format("{}:{}: {}: {}", path_, line, Printable(key, 128), text));
}

void TomlReader::Mistake(const toml::node& where, std::string_view key, std::string_view text) {
  Mistake(where.source().begin.line, key, text);
}

void TomlReader::WrongType(const toml::node& node, std::string_view key, std::string_view right) {
  Mistake(node, key, fmt::format("is {}, and must be {}", TypeName(node), right));
}

void TomlReader::CheckKeys(const toml::table& table, std::string_view prefix, Keys known) {
  for (const auto& [key, value] : table) {
    if (std::find(known.begin(), known.end(), key.str()) != known.end()) continue;
    const std::optional<std::string_view> nearest = Nearest(key.str(), known);
    Mistake(key.source().begin.line, fmt::format("{}{}", prefix, key.str()),
            nearest.has_value() ? fmt::format("unknown key; did you mean {}{}?", prefix, *nearest)
                                : fmt::format("unknown key; there are {}", fmt::join(known, ", ")));
  }
}

const toml::table* TomlReader::Table(const toml::table& table, std::string_view key) {
  const toml::node* node = table.get(key);
  if (node == nullptr) return nullptr;
  if (!node->is_table()) WrongType(*node, key, fmt::format("a table: [{}]", key));
  return node->as_table();
}

std::optional<bool> TomlReader::Bool(const toml::table& table, std::string_view key) {
  const toml::node* node = table.get(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_boolean()) {
    WrongType(*node, key, "true or false");
    return std::nullopt;
  }
  return **node->as_boolean();
}

std::optional<std::string> TomlReader::String(const toml::table& table, std::string_view key) {
  const toml::node* node = table.get(key);
  return node == nullptr ? std::nullopt : Text(*node, key);
}

std::optional<std::vector<std::string>> TomlReader::Strings(const toml::table& table, std::string_view prefix,
                                                            std::string_view key) {
  const toml::node* node = table.get(key);
  if (node == nullptr) return std::nullopt;
  const std::string full = fmt::format("{}{}", prefix, key);
  const toml::array* array = node->as_array();
  if (array == nullptr) {
    WrongType(*node, full, "an array of strings: [\"one\", \"two\"]");
    return std::nullopt;
  }
  std::vector<std::string> strings;
  for (size_t i = 0; i < array->size(); ++i) {
    std::optional<std::string> text = Text(*array->get(i), fmt::format("{}[{}]", full, i));
    if (text.has_value()) strings.push_back(*std::move(text));
  }
  return strings;
}

std::optional<std::string> TomlReader::Text(const toml::node& node, std::string_view key) {
  if (!node.is_string()) {
    WrongType(node, key, "a string");
    return std::nullopt;
  }
  const std::string& text = **node.as_string();
  if (text.find('\0') != std::string::npos) {
    Mistake(node, key, "holds a NUL character");
    return std::nullopt;
  }
  return text;
}

}  // namespace berth
