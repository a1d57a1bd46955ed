#include "csi/recent_secrets.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/reflection.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "csi/csi.pb.h"
#include "csi/mount_flags.h"
#include "csi/redact.h"

namespace berth {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kMinValue = 4;
// A line of a value of several lines; shorter ones ("{", "}") are no secret.
constexpr size_t kMinLine = 8;
// Longer values are looked for in pieces. A multiple of 3, so that the base64 of the pieces, put together, is
// the base64 of the whole.
constexpr size_t kPiece = 1020;

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

uint32_t Bucket(const char* bytes) {
  uint32_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return (word * 2654435761U) >> 16;
}

// Of what is UTF-8; else JSON cannot hold it.
std::string Json(std::string_view value) {
  if (!IsUtf8(value)) return {};
  const std::string quoted = nlohmann::json(value).dump();
  return quoted.substr(1, quoted.size() - 2);
}

std::string Percent(std::string_view value) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || std::string_view("-_.~").find(c) != std::string_view::npos) {
      encoded += c;
    } else {
      encoded += {'%', kDigits[byte >> 4U], kDigits[byte & 15U]};
    }
  }
  return encoded;
}

std::string Base64(std::string_view value) {
  std::string encoded = absl::Base64Escape({value.data(), value.size()});
  return encoded.substr(0, encoded.find('='));  // some leave the padding out
}

enum class Sensitive { kFlag, kSecret };

// Every csi_secret value of `message`, and every mount flag.
template <class F>
void ForEachSensitive(const Message& message, bool secret, int depth, F&& each) {
  if (depth > kMaxMessageDepth) return;
  const Reflection* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    // In a map it is the value that is secret; its key is a name, and would blacken ordinary words.
    if (message.GetDescriptor()->options().map_entry() && field->number() == 1) continue;
    const bool marked = secret || field->options().GetExtension(::csi::v1::csi_secret);
    const bool flags = HoldsMountFlags(field);
    const int size = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < size; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        ForEachSensitive(field->is_repeated() ? reflection->GetRepeatedMessage(message, field, i)
                                              : reflection->GetMessage(message, field),
                         marked, depth + 1, each);
      } else if ((marked || flags) && field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        std::string scratch;
        each(marked ? Sensitive::kSecret : Sensitive::kFlag,
             field->is_repeated() ? reflection->GetRepeatedStringReference(message, field, i, &scratch)
                                  : reflection->GetStringReference(message, field, &scratch));
      }
    }
  }
}

}  // namespace

SecretSet::SecretSet(const std::vector<std::string_view>& values) {
  for (const std::string_view value : values) AddValue(value);
  Finish();
}

void SecretSet::Add(std::string_view pattern) {
  if (pattern.size() < kMinValue || pattern.find('\n') != std::string_view::npos) return;
  patterns_.emplace_back(pattern.substr(0, kMaxPattern));
}

void SecretSet::AddValue(std::string_view value) {
  value = Trim(value);
  if (value.size() < kMinValue) return;
  for (size_t at = 0; at < value.size(); at += kPiece) Add(Base64(value.substr(at, kPiece)));
  const bool several = value.find('\n') != std::string_view::npos;
  while (!value.empty()) {
    const size_t end = value.find('\n');
    std::string_view line = Trim(value.substr(0, end));
    value.remove_prefix(end == std::string_view::npos ? value.size() : end + 1);
    // The frame of a PEM file is the same in all of them.
    if (several && (line.size() < kMinLine || line.starts_with("-----"))) continue;
    while (!line.empty()) {
      // No piece is too short to be looked for.
      const std::string_view piece = line.size() < kPiece + kMinValue ? line : line.substr(0, kPiece);
      line.remove_prefix(piece.size());
      Add(piece);
      Add(Json(piece));
      Add(Percent(piece));
    }
  }
}

void SecretSet::Finish() {
  std::ranges::sort(patterns_, [](const std::string& a, const std::string& b) {
    const uint32_t bucket_a = Bucket(a.data());
    const uint32_t bucket_b = Bucket(b.data());
    if (bucket_a != bucket_b) return bucket_a < bucket_b;
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  patterns_.erase(std::unique(patterns_.begin(), patterns_.end()), patterns_.end());
  if (patterns_.empty()) return;
  used_.assign(kBuckets / 64, 0);
  for (uint32_t i = 0; i < patterns_.size(); ++i) {
    const uint32_t bucket = Bucket(patterns_[i].data());
    if (!buckets_.empty() && buckets_.back().first == bucket) continue;
    buckets_.emplace_back(bucket, i);
    used_[bucket / 64] |= uint64_t{1} << (bucket % 64);
  }
}

SecretSet::Ranges SecretSet::Find(std::string_view text) const {
  Ranges ranges;
  if (patterns_.empty() || text.size() < kMinValue) return ranges;
  const char* const data = text.data();
  const uint64_t* const used = used_.data();
  const size_t end = text.size() - kMinValue + 1;
  for (size_t i = 0; i < end; ++i) {
    const uint32_t bucket = Bucket(data + i);
    if ((used[bucket / 64] >> (bucket % 64) & 1U) == 0) continue;
    const auto entry =
        std::lower_bound(buckets_.begin(), buckets_.end(), std::pair<uint32_t, uint32_t>(bucket, 0));
    const size_t last = std::next(entry) == buckets_.end() ? patterns_.size() : std::next(entry)->second;
    for (size_t p = entry->second; p < last; ++p) {
      const std::string_view pattern = patterns_[p];
      if (!text.substr(i).starts_with(pattern)) continue;
      // Secrets may overlap, so the search goes on at the next byte, not after this one.
      if (!ranges.empty() && ranges.back().second >= i) {
        ranges.back().second = std::max(ranges.back().second, i + pattern.size());
      } else {
        ranges.emplace_back(i, i + pattern.size());
      }
      break;
    }
  }
  return ranges;
}

void SecretSet::Redact(char* text, size_t size) const {
  for (const auto& [begin, end] : Find({text, size})) std::fill(text + begin, text + end, '*');
}

std::string SecretSet::Redacted(std::string text) const {
  Redact(text.data(), text.size());
  return text;
}

struct RecentSecrets::Plugin {
  struct Known {
    int calls = 0;        // in flight with it
    bool held = false;    // from the launch
    uint64_t rested = 0;  // when it last came to rest, as a number that grows; 0: never
    TimePoint used;       // then

    [[nodiscard]] bool AtRest() const { return calls == 0 && !held && rested != 0; }
  };
  std::map<std::string, Known, std::less<>> values;
  bool forgotten = false;                // nothing comes to rest any more
  std::shared_ptr<const SecretSet> set;  // of all of them; null: to be made

  Known& Know(std::string_view value) {
    const auto found = values.find(value);
    if (found != values.end()) return found->second;
    set = nullptr;
    return values.emplace(value, Known()).first->second;
  }
  template <class Pred>
  void Drop(Pred pred) {
    if (std::erase_if(values, [&](const auto& each) { return pred(each.first, each.second); }) > 0) {
      set = nullptr;
    }
  }
  // Forgets values that are too old, or too many, and those that no call and no launch keeps.
  void Settle(TimePoint now, const RecentSecretsLimits& limits) {
    size_t count = 0;
    size_t bytes = 0;
    Drop([&](const std::string& value, const Known& known) {
      if (known.calls > 0 || known.held) return false;
      if (known.rested == 0 || known.used + limits.age < now || value.size() > limits.bytes) return true;
      ++count;
      bytes += value.size();
      return false;
    });
    while (count > limits.values || bytes > limits.bytes) {
      auto oldest = values.end();
      for (auto it = values.begin(); it != values.end(); ++it) {
        if (!it->second.AtRest()) continue;
        if (oldest == values.end() || it->second.rested < oldest->second.rested) oldest = it;
      }
      --count;
      bytes -= oldest->first.size();
      values.erase(oldest);
      set = nullptr;
    }
  }
};

struct RecentSecrets::State {
  explicit State(RecentSecretsLimits set_limits) : limits(set_limits) {}

  // The plugin, which is here from now on.
  Plugin& At(const std::string& plugin_id) {
    Plugin& plugin = plugins[plugin_id];
    plugin.forgotten = false;
    return plugin;
  }
  // Forgets it once nothing of it is in flight any more.
  void EraseForgotten(std::map<std::string, Plugin>::iterator plugin) {
    if (plugin->second.forgotten && plugin->second.values.empty()) plugins.erase(plugin);
  }

  const RecentSecretsLimits limits;
  std::mutex mutex;
  uint64_t rested = 0;  // so many have come to rest
  std::map<std::string, Plugin> plugins;
};

struct RecentSecrets::InFlight::Call {
  std::shared_ptr<State> state;
  std::string plugin_id;
  std::vector<std::string> values;
};

RecentSecrets::InFlight::InFlight() = default;
RecentSecrets::InFlight::InFlight(InFlight&& other) noexcept = default;

RecentSecrets::InFlight::~InFlight() {
  if (call_ == nullptr) return;
  State& state = *call_->state;
  const std::lock_guard lock(state.mutex);
  const auto found = state.plugins.find(call_->plugin_id);
  Plugin& plugin = found->second;  // it stays for as long as anything of it is in flight
  const TimePoint now = Clock::now();
  for (const std::string& value : call_->values) {
    Plugin::Known& known = plugin.values.find(value)->second;
    if (--known.calls > 0 || plugin.forgotten) continue;
    known.rested = ++state.rested;
    known.used = now;
  }
  plugin.Settle(now, state.limits);
  state.EraseForgotten(found);
}

RecentSecrets::RecentSecrets(RecentSecretsLimits limits) : state_(std::make_shared<State>(limits)) {}
RecentSecrets::~RecentSecrets() = default;

RecentSecrets::InFlight RecentSecrets::Carry(const std::string& plugin_id, const Message& request,
                                             const std::vector<std::string>& confidential) {
  // They come to rest in this order, and what came first is forgotten first: flags are many.
  std::vector<std::string> flags;
  std::vector<std::string> secrets;
  const auto add = [](std::string_view value, std::vector<std::string>* to) {
    value = Trim(value);
    if (value.size() >= kMinValue) to->emplace_back(value);
  };
  ForEachSensitive(request, false, 0, [&](Sensitive kind, const std::string& text) {
    if (kind == Sensitive::kSecret) return add(text, &secrets);
    for (const std::string_view value : SecretsInFlag(text)) add(value, &flags);
  });
  for (const std::string& value : confidential) add(value, &secrets);
  InFlight carried;
  if (flags.empty() && secrets.empty()) return carried;

  carried.call_ = std::make_unique<InFlight::Call>();
  carried.call_->state = state_;
  carried.call_->plugin_id = plugin_id;
  std::ranges::move(flags, std::back_inserter(carried.call_->values));
  std::ranges::move(secrets, std::back_inserter(carried.call_->values));
  const std::lock_guard lock(state_->mutex);
  Plugin& plugin = state_->At(plugin_id);
  for (const std::string& value : carried.call_->values) ++plugin.Know(value).calls;
  return carried;
}

void RecentSecrets::Hold(const std::string& plugin_id, const std::vector<std::string>& values) {
  const RecentSecretsLimits& limits = state_->limits;
  const std::lock_guard lock(state_->mutex);
  Plugin& plugin = state_->At(plugin_id);
  for (auto& [value, known] : plugin.values) known.held = false;
  size_t bytes = 0;
  size_t count = 0;
  for (const std::string& value : values) {
    if (count++ >= limits.values || bytes >= limits.bytes) break;
    const std::string_view kept = std::string_view(value).substr(0, limits.bytes - bytes);
    plugin.Know(kept).held = true;
    bytes += kept.size();
  }
  plugin.Settle(Clock::now(), limits);
}

void RecentSecrets::Forget(const std::string& plugin_id) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->plugins.find(plugin_id);
  if (found == state_->plugins.end()) return;
  Plugin& plugin = found->second;
  plugin.forgotten = true;
  plugin.Drop([](const std::string& /*value*/, const Plugin::Known& known) { return known.calls == 0; });
  for (auto& [value, known] : plugin.values) known = {.calls = known.calls};
  state_->EraseForgotten(found);
}

std::shared_ptr<const SecretSet> RecentSecrets::Of(const std::string& plugin_id, TimePoint now) const {
  static const auto kNone = std::make_shared<const SecretSet>();
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->plugins.find(plugin_id);
  if (found == state_->plugins.end()) return kNone;
  Plugin& plugin = found->second;
  plugin.Settle(now, state_->limits);
  if (plugin.set == nullptr) {
    std::vector<std::string_view> values;
    for (const auto& [value, known] : plugin.values) values.push_back(value);
    plugin.set = std::make_shared<const SecretSet>(values);
  }
  return plugin.set;
}

}  // namespace berth
