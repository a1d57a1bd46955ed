#include "scheduler/records/keys.h"

#include <fmt/format.h>

#include "base/safe_path.h"

namespace berth::scheduler {

std::string KeyPart(std::string_view text) {
  constexpr size_t kLongest = 128;
  // "%" and no number, which no text is written as.
  if (text.size() > kLongest) return "%h" + HashComponent({std::string(text)});
  std::string part;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '/' || c == '%' || byte < 0x20 || byte > 0x7e) {
      part += fmt::format("%{:02X}", byte);
    } else {
      part += c;
    }
  }
  return part;
}

std::string NodePrefix(std::string_view name) { return fmt::format("{}{}/", kNodesPrefix, KeyPart(name)); }

std::string NodeKey(std::string_view name, std::string_view instance_id) {
  return NodePrefix(name) + KeyPart(instance_id);
}

}  // namespace berth::scheduler
