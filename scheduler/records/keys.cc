#include "scheduler/records/keys.h"

#include <fmt/format.h>

#include "base/safe_path.h"

namespace berth::scheduler {

std::string KeyPart(std::string_view text) {
  constexpr size_t kLongest = 128;
  std::string part;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '/' || c == '%' || byte < 0x20 || byte > 0x7e) {
      part += fmt::format("%{:02X}", byte);
    } else {
      part += c;
    }
  }
  // "%" and no number, which no text is written as.
  return part.size() <= kLongest ? part : "%h" + HashComponent({std::string(text)});
}

std::string NodePrefix(std::string_view name) { return fmt::format("{}{}/", kNodesPrefix, KeyPart(name)); }

std::string NodeKey(std::string_view name, std::string_view instance_id) {
  return NodePrefix(name) + KeyPart(instance_id);
}

std::string VolumeKey(std::string_view name_space, std::string_view id) {
  return fmt::format("{}{}/{}", kVolumesPrefix, KeyPart(name_space), KeyPart(id));
}

std::string ExternalKey(std::string_view driver, std::string_view external_id) {
  return fmt::format("x/{}/{}", KeyPart(driver), KeyPart(external_id));
}

std::string HeadKey(std::string_view name_space, std::string_view id) {
  return fmt::format("{}{}/{}", kHeadsPrefix, KeyPart(name_space), KeyPart(id));
}

std::string ClaimPrefix(std::string_view name_space, std::string_view id) {
  return fmt::format("{}{}/{}/", kClaimsPrefix, KeyPart(name_space), KeyPart(id));
}

std::string ClaimKey(std::string_view name_space, std::string_view id, std::string_view consumer,
                     std::string_view name) {
  return fmt::format("{}{}/{}", ClaimPrefix(name_space, id), KeyPart(consumer), KeyPart(name));
}

}  // namespace berth::scheduler
