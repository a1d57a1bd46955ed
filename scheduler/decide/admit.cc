#include "scheduler/decide/admit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/status.h"

namespace berth::scheduler {
namespace {

constexpr size_t kAny = std::numeric_limits<size_t>::max();
constexpr size_t kHoldersNamed = 16;

struct Limits {
  bool one_node = false;
  size_t writers = kAny;
  size_t claims = kAny;
};

// Unset for a mode that this program does not know.
std::optional<Limits> LimitsOf(v1::AccessMode mode) {
  if (mode == v1::SINGLE_NODE_WRITER) return Limits{.one_node = true, .writers = 1};
  if (mode == v1::SINGLE_NODE_READER_ONLY) return Limits{.one_node = true, .writers = 0};
  if (mode == v1::MULTI_NODE_READER_ONLY) return Limits{.writers = 0};
  if (mode == v1::MULTI_NODE_SINGLE_WRITER) return Limits{.writers = 1};
  if (mode == v1::MULTI_NODE_MULTI_WRITER) return Limits{};
  if (mode == v1::SINGLE_NODE_SINGLE_WRITER) return Limits{.one_node = true, .writers = 1, .claims = 1};
  if (mode == v1::SINGLE_NODE_MULTI_WRITER) return Limits{.one_node = true};
  return std::nullopt;
}

v1::AccessMode ModeOf(const v1::Capability& capability) {
  const v1::AccessMode mode = capability.access_mode();
  return mode == v1::ACCESS_MODE_UNKNOWN ? v1::SINGLE_NODE_MULTI_WRITER : mode;
}

std::string NameOf(v1::AccessMode mode) {
  return v1::AccessMode_IsValid(mode) ? v1::AccessMode_Name(mode) : fmt::format("access mode {}", +mode);
}

// In what two capabilities differ, for people: flags may hold secrets. Empty: in nothing.
std::string Difference(const v1::Capability& is, const v1::Capability& wanted) {
  if (ModeOf(is) != ModeOf(wanted))
    return fmt::format("as {}, not {}", NameOf(ModeOf(is)), NameOf(ModeOf(wanted)));
  if (is.access_type() != wanted.access_type())
    return is.access_type() == v1::BLOCK ? "as a block device, not mounted"
                                         : "mounted, not as a block device";
  if (is.fs_type() != wanted.fs_type()) {
    const auto shown = [](const std::string& type) {
      return type.empty() ? std::string("the plugin's choice of file system") : Printable(type, 64);
    };
    return fmt::format("with {}, not {}", shown(is.fs_type()), shown(wanted.fs_type()));
  }
  if (!std::ranges::equal(is.mount_flags(), wanted.mount_flags())) return "with other mount flags";
  return is.volume_mount_group() == wanted.volume_mount_group() ? "" : "with another mount group";
}

std::string Describe(const ClaimFacts& claim) {
  std::string text = Printable(claim.consumer, 128);
  if (!claim.name.empty()) text += fmt::format(" ({})", Printable(claim.name, 128));
  text += fmt::format(" on {}, which {}", Printable(claim.node, 192), claim.writes ? "writes" : "reads");
  if (claim.phase == ClaimFacts::Phase::kLeaving) text += ", and is being released";
  if (!claim.error.empty()) text += fmt::format(": {}", Printable(claim.error, 256));
  return text;
}

absl::Status InUse(const AdmitRequest& request, std::string_view rule,
                   const std::vector<const ClaimFacts*>& holders) {
  std::vector<std::string> texts;
  for (const ClaimFacts* const holder : holders) {
    if (texts.size() < kHoldersNamed) texts.push_back(Describe(*holder));
  }
  if (holders.size() > texts.size()) texts.push_back(fmt::format("{} more", holders.size() - texts.size()));
  return absl::FailedPreconditionError(fmt::format(
      "volume {} {}: it is claimed by {}", Printable(request.volume, 256), rule, fmt::join(texts, "; ")));
}

}  // namespace

absl::Status Admit(const AdmitRequest& request, const v1::Capability* fixed,
                   const std::vector<ClaimFacts>& claims) {
  const v1::AccessMode mode = ModeOf(request.capability);
  const std::optional<Limits> limits = LimitsOf(mode);
  if (!limits.has_value())
    return absl::InvalidArgumentError(
        fmt::format("capability.access_mode: {} is not known here", NameOf(mode)));
  if (limits->writers == 0 && !request.readonly) {
    return absl::InvalidArgumentError(fmt::format("readonly must be set: {} allows no writer", NameOf(mode)));
  }
  std::vector<const ClaimFacts*> counted;
  for (const ClaimFacts& claim : claims) {
    if (claim.phase != ClaimFacts::Phase::kLeft) counted.push_back(&claim);
  }
  if (const std::string difference = fixed == nullptr ? "" : Difference(*fixed, request.capability);
      !difference.empty()) {
    if (!counted.empty()) return InUse(request, fmt::format("is used {}", difference), counted);
    return absl::AbortedError(fmt::format("volume {} was used {}, and is being detached: try again",
                                          Printable(request.volume, 256), difference));
  }
  // Those that break `rule` together with the new one.
  const auto holders = [&counted](const auto& breaks) {
    std::vector<const ClaimFacts*> found;
    std::ranges::copy_if(counted, std::back_inserter(found),
                         [&](const ClaimFacts* claim) { return breaks(*claim); });
    return found;
  };
  if (limits->claims != kAny && counted.size() >= limits->claims)
    return InUse(request, fmt::format("takes one claim ({})", NameOf(mode)), counted);
  if (limits->one_node) {
    const auto elsewhere = holders([&](const ClaimFacts& claim) { return claim.node != request.node; });
    if (!elsewhere.empty())
      return InUse(request, fmt::format("is for one node at a time ({})", NameOf(mode)), elsewhere);
  }
  if (!request.readonly && limits->writers != kAny) {
    const auto writers = holders([](const ClaimFacts& claim) { return claim.writes; });
    if (writers.size() >= limits->writers)
      return InUse(request, fmt::format("takes one claim that writes ({})", NameOf(mode)), writers);
  }
  return absl::OkStatus();
}

}  // namespace berth::scheduler
