#include "csi/recent_secrets.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/reflection.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <map>
#include <mutex>

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
// Longer values are looked for in pieces. A multiple of 3, so that base64 keeps its alignment.
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

// Strings made on the way to a pattern are wiped too.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { explicit_bzero(text_.data(), text_.size()); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // The room is taken at once: growing would leave copies behind.
  void Reserve(size_t size) { text_.reserve(size); }
  void Add(char c) { text_.push_back(c); }
  void Add(std::string_view text) { text_.append(text); }
  [[nodiscard]] std::string_view view() const { return text_; }

 private:
  std::string text_;
};

bool Unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
         c == '.' || c == '~';
}

void Percent(std::string_view value, std::string_view digits, bool space_as_plus, Scratch* out) {
  out->Reserve(value.size() * 3);
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (Unreserved(c)) {
      out->Add(c);
    } else if (c == ' ' && space_as_plus) {
      out->Add('+');
    } else {
      out->Add('%');
      out->Add(digits[byte >> 4U]);
      out->Add(digits[byte & 15U]);
    }
  }
}

// As most write it; `html` as Go's encoder does, which escapes < > & too.
void Json(std::string_view value, bool html, Scratch* out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  out->Reserve(value.size() * 6);
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out->Add('\\');
      out->Add(c);
    } else if (c == '\n') {
      out->Add("\\n");
    } else if (c == '\r') {
      out->Add("\\r");
    } else if (c == '\t') {
      out->Add("\\t");
    } else if (byte < 0x20 || (html && (c == '<' || c == '>' || c == '&'))) {
      out->Add("\\u00");
      out->Add(kDigits[byte >> 4U]);
      out->Add(kDigits[byte & 15U]);
    } else {
      out->Add(c);
    }
  }
}

void Base64(std::string_view value, std::string_view alphabet, size_t skip, Scratch* out) {
  // `skip` bytes stand before the value in what was encoded. Only digits that the value alone decides are
  // given.
  out->Reserve((value.size() + skip) * 4 / 3 + 4);
  const size_t bits = value.size() * 8;
  const size_t first = skip == 0 ? 0 : (skip * 8 + 5) / 6 * 6 - skip * 8;
  for (size_t bit = first; bit + 6 <= bits; bit += 6) {
    const auto high = static_cast<unsigned char>(value[bit / 8]);
    const auto low = bit / 8 + 1 < value.size() ? static_cast<unsigned char>(value[bit / 8 + 1]) : 0U;
    const unsigned pair = (static_cast<unsigned>(high) << 8U) | low;
    out->Add(alphabet[(pair >> (10U - bit % 8)) & 63U]);
  }
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

WipedBytes::WipedBytes(std::string_view bytes)
    : bytes_(std::make_unique<char[]>(bytes.size())), size_(bytes.size()) {
  std::copy(bytes.begin(), bytes.end(), bytes_.get());
}

WipedBytes::WipedBytes(WipedBytes&& other) noexcept
    : bytes_(std::move(other.bytes_)), size_(std::exchange(other.size_, 0)) {}

WipedBytes& WipedBytes::operator=(WipedBytes&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  return *this;
}

WipedBytes::~WipedBytes() {
  if (bytes_ != nullptr) explicit_bzero(bytes_.get(), size_);
}

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
  AddBase64(value);
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
      for (const bool plus : {false, true}) {
        for (const std::string_view digits : {"0123456789ABCDEF", "0123456789abcdef"}) {
          Scratch form;
          Percent(piece, digits, plus, &form);
          if (form.view() != piece) Add(form.view());
        }
      }
      for (const bool html : {false, true}) {
        Scratch form;
        Json(piece, html, &form);
        if (form.view() != piece) Add(form.view());
      }
    }
  }
}

void SecretSet::AddBase64(std::string_view value) {
  constexpr std::string_view kStandard = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  constexpr std::string_view kUrl = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  // Fewer digits would be found by chance.
  constexpr size_t kMinDigits = 6;
  for (size_t at = 0; at < value.size(); at += kPiece) {
    const std::string_view piece = value.substr(at, kPiece);
    for (size_t skip = 0; skip < 3; ++skip) {
      Scratch standard;
      Scratch url;
      Base64(piece, kStandard, skip, &standard);
      Base64(piece, kUrl, skip, &url);
      if (standard.view().size() < kMinDigits) continue;
      Add(standard.view());
      if (url.view() != standard.view()) Add(url.view());
    }
  }
}

void SecretSet::Finish() {
  std::sort(patterns_.begin(), patterns_.end(), [](const WipedBytes& a, const WipedBytes& b) {
    const uint32_t bucket_a = Bucket(a.view().data());
    const uint32_t bucket_b = Bucket(b.view().data());
    if (bucket_a != bucket_b) return bucket_a < bucket_b;
    if (a.view().size() != b.view().size()) return a.view().size() > b.view().size();
    return a.view() < b.view();
  });
  const auto same =
      std::unique(patterns_.begin(), patterns_.end(),
                  [](const WipedBytes& a, const WipedBytes& b) { return a.view() == b.view(); });
  patterns_.erase(same, patterns_.end());
  if (patterns_.empty()) return;
  used_.assign(kBuckets / 64, 0);
  for (uint32_t i = 0; i < patterns_.size(); ++i) {
    const uint32_t bucket = Bucket(patterns_[i].view().data());
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
      const std::string_view pattern = patterns_[p].view();
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

struct RecentSecrets::Value {
  WipedBytes bytes;
  TimePoint used;
  int calls = 0;  // in flight with it
};

struct RecentSecrets::Plugin {
  std::list<Value> in_flight;
  std::list<Value> at_rest;  // used longest ago first
  size_t bytes = 0;          // of `at_rest`
  std::vector<WipedBytes> held;
  bool forgotten = false;                // nothing comes to rest any more
  std::shared_ptr<const SecretSet> set;  // of all of them; null: to be made

  static std::list<Value>::iterator Find(std::list<Value>& values, std::string_view value) {
    return std::ranges::find_if(values, [value](const Value& each) { return each.bytes.view() == value; });
  }
  void Expire(TimePoint now, Duration age) {
    while (!at_rest.empty() && at_rest.front().used + age < now) DropOldest();
  }
  void DropOldest() {
    bytes -= at_rest.front().bytes.view().size();
    at_rest.pop_front();
    set = nullptr;
  }
  // Has `size` bytes of one value more come to rest.
  void MakeRoom(size_t size, const RecentSecretsLimits& limits) {
    while (!at_rest.empty() && (at_rest.size() >= limits.values || bytes + size > limits.bytes)) DropOldest();
    bytes += size;
  }
  // One call more carries `value`. What was known already changes no set.
  std::list<Value>::iterator Take(std::string_view value) {
    auto found = Find(in_flight, value);
    if (found != in_flight.end()) {
      ++found->calls;
      return found;
    }
    found = Find(at_rest, value);
    if (found != at_rest.end()) {
      bytes -= value.size();
      in_flight.splice(in_flight.end(), at_rest, found);
    } else {
      found = in_flight.insert(in_flight.end(), Value{.bytes = WipedBytes(value), .used = {}});
      set = nullptr;
    }
    found->calls = 1;
    return found;
  }
  // A call that carried it has ended.
  void Rest(std::list<Value>::iterator value, TimePoint now, const RecentSecretsLimits& limits) {
    if (--value->calls > 0) return;
    if (forgotten) {
      in_flight.erase(value);
      set = nullptr;
      return;
    }
    // What would fill the whole room alone keeps its beginning.
    const std::string_view whole = value->bytes.view();
    if (whole.size() > limits.bytes) {
      value->bytes = WipedBytes(whole.substr(0, limits.bytes));
      set = nullptr;
    }
    value->used = now;
    MakeRoom(value->bytes.view().size(), limits);
    at_rest.splice(at_rest.end(), in_flight, value);
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

  const RecentSecretsLimits limits;
  std::mutex mutex;
  std::map<std::string, Plugin> plugins;
};

struct RecentSecrets::InFlight::Call {
  std::shared_ptr<State> state;
  std::string plugin_id;
  std::vector<std::list<Value>::iterator> values;
};

RecentSecrets::InFlight::InFlight() = default;
RecentSecrets::InFlight::InFlight(InFlight&& other) noexcept = default;

RecentSecrets::InFlight::~InFlight() {
  if (call_ == nullptr) return;
  State& state = *call_->state;
  const std::lock_guard lock(state.mutex);
  const auto found = state.plugins.find(call_->plugin_id);
  Plugin& plugin = found->second;  // it stays for as long as anything of it is in flight
  for (const auto value : call_->values) plugin.Rest(value, Clock::now(), state.limits);
  if (plugin.forgotten && plugin.in_flight.empty()) state.plugins.erase(found);
}

RecentSecrets::RecentSecrets(RecentSecretsLimits limits) : state_(std::make_shared<State>(limits)) {}
RecentSecrets::~RecentSecrets() = default;

void RecentSecrets::Remember(const std::string& plugin_id, std::string_view value, TimePoint now) {
  const RecentSecretsLimits& limits = state_->limits;
  value = Trim(value);
  if (value.size() < kMinValue) return;
  value = value.substr(0, limits.bytes);
  const std::lock_guard lock(state_->mutex);
  Plugin& plugin = state_->At(plugin_id);
  plugin.Expire(now, limits.age);
  if (Plugin::Find(plugin.in_flight, value) != plugin.in_flight.end()) return;
  const auto known = Plugin::Find(plugin.at_rest, value);
  if (known != plugin.at_rest.end()) {
    known->used = now;
    plugin.at_rest.splice(plugin.at_rest.end(), plugin.at_rest, known);
    return;
  }
  plugin.MakeRoom(value.size(), limits);
  plugin.at_rest.push_back(Value{.bytes = WipedBytes(value), .used = now});
  plugin.set = nullptr;
}

RecentSecrets::InFlight RecentSecrets::Carry(const std::string& plugin_id, const Message& request,
                                             const std::vector<std::string>& confidential) {
  std::vector<WipedBytes> flags;
  std::vector<WipedBytes> secrets;
  const auto add = [](std::string_view value, std::vector<WipedBytes>* to) {
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
  const std::lock_guard lock(state_->mutex);
  Plugin& plugin = state_->At(plugin_id);
  // They come to rest in this order, and what came first is forgotten first: flags are many.
  for (const auto* values : {&flags, &secrets}) {
    for (const WipedBytes& value : *values) carried.call_->values.push_back(plugin.Take(value.view()));
  }
  return carried;
}

void RecentSecrets::Hold(const std::string& plugin_id, const std::vector<std::string>& values) {
  const RecentSecretsLimits& limits = state_->limits;
  const std::lock_guard lock(state_->mutex);
  Plugin& plugin = state_->At(plugin_id);
  plugin.held.clear();
  size_t bytes = 0;
  for (const std::string& value : values) {
    if (plugin.held.size() >= limits.values || bytes >= limits.bytes) break;
    plugin.held.emplace_back(std::string_view(value).substr(0, limits.bytes - bytes));
    bytes += plugin.held.back().view().size();
  }
  plugin.set = nullptr;
}

void RecentSecrets::Forget(const std::string& plugin_id) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->plugins.find(plugin_id);
  if (found == state_->plugins.end()) return;
  if (found->second.in_flight.empty()) {
    state_->plugins.erase(found);
    return;
  }
  Plugin& plugin = found->second;
  plugin.at_rest.clear();
  plugin.bytes = 0;
  plugin.held.clear();
  plugin.forgotten = true;
  plugin.set = nullptr;
}

std::shared_ptr<const SecretSet> RecentSecrets::Of(const std::string& plugin_id, TimePoint now) const {
  static const auto kNone = std::make_shared<const SecretSet>();
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->plugins.find(plugin_id);
  if (found == state_->plugins.end()) return kNone;
  Plugin& plugin = found->second;
  plugin.Expire(now, state_->limits.age);
  if (plugin.set == nullptr) {
    std::vector<std::string_view> values;
    for (const Value& each : plugin.in_flight) values.push_back(each.bytes.view());
    for (const Value& each : plugin.at_rest) values.push_back(each.bytes.view());
    for (const WipedBytes& each : plugin.held) values.push_back(each.view());
    plugin.set = std::make_shared<const SecretSet>(values);
  }
  return plugin.set;
}

}  // namespace berth
