// Values of a plugin file beyond TOML's own types: durations, sizes, counts, choices among words.
//
// Plain values; any thread. From .cc files only, as toml_reader.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/toml_reader.h"

namespace berth {

// Each Read… leaves `value` as it is where the key is not there, or is a mistake, which is noted then.
// `prefix` leads the key in messages: "health.".
class ValueReader : public TomlReader {
 public:
  using TomlReader::TomlReader;

  enum class Zero { kForbidden, kAllowed };
  void ReadDuration(const toml::table& table, std::string_view prefix, std::string_view key, Duration* value,
                    Zero zero = Zero::kForbidden);
  // A whole number from `least` to `most`.
  void ReadWhole(const toml::table& table, std::string_view prefix, std::string_view key, uint64_t* value,
                 uint64_t least, uint64_t most);
  // From 1 to a million.
  void ReadCount(const toml::table& table, std::string_view prefix, std::string_view key, int* value);
  // A string like "512MiB", or whole bytes.
  void ReadSize(const toml::table& table, std::string_view prefix, std::string_view key, uint64_t* value,
                uint64_t least, uint64_t most = INT64_MAX);
  void ReadBool(const toml::table& table, std::string_view prefix, std::string_view key, bool* value);

  template <class T>
  void ReadChoice(const toml::table& table, std::string_view prefix, std::string_view key,
                  std::initializer_list<std::pair<std::string_view, T>> choices, T* value) {
    const toml::node* node = table.get(key);
    if (node == nullptr) return;
    const std::string full = std::string(prefix).append(key);
    const std::optional<std::string> word = Text(*node, full);
    if (!word.has_value()) return;
    std::vector<std::string_view> words;
    for (const auto& [name, meaning] : choices) {
      words.push_back(name);
      if (name != *word) continue;
      *value = meaning;
      return;
    }
    NoChoice(*node, full, *word, words);
  }

  // What a size may look like, for messages.
  static constexpr std::string_view kSizeForm =
      "a size: a string like \"16KiB\", \"512MiB\" or \"2GB\", or whole bytes";
  // The bytes that `node` gives; none where it is no size.
  [[nodiscard]] static std::optional<uint64_t> SizeOf(const toml::node& node);

 private:
  void NoChoice(const toml::node& node, std::string_view key, std::string_view word,
                const std::vector<std::string_view>& words);
};

}  // namespace berth
