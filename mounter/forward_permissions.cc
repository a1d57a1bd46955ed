#include "mounter/forward_permissions.h"

namespace berth {
namespace {

constexpr const char* kUnconfirmed =
    "its scheduler has not confirmed it since the lease ended: another node may have the volume";

}  // namespace

void ForwardPermissions::Block(Origin origin, const std::string& why) {
  Permission& permission = permissions_[origin];
  permission.blocked = why;
  ++permission.changes;
}

void ForwardPermissions::Unblock(Origin origin, BootTime since) {
  Permission& permission = permissions_[origin];
  permission.blocked.clear();
  permission.since = since;
  ++permission.changes;
}

bool ForwardPermissions::ApplyTo(PublicationRecord& publication) const {
  const auto it = permissions_.find(publication.origin);
  if (it == permissions_.end()) return false;
  const Permission& permission = it->second;
  const bool was_blocked = !publication.forward_blocked.empty();
  publication.unconfirmed = false;
  publication.forward_blocked = permission.blocked;
  if (!permission.blocked.empty()) return false;
  if (publication.origin != Origin::kScheduler) return was_blocked;
  if (publication.confirmed_at && *publication.confirmed_at >= permission.since) return was_blocked;
  publication.unconfirmed = true;
  publication.forward_blocked = kUnconfirmed;
  return false;
}

bool ForwardPermissions::ChangedSince(const ForwardPermissions& before, Origin origin) const {
  const auto now = permissions_.find(origin);
  if (now == permissions_.end()) return false;
  const auto then = before.permissions_.find(origin);
  return then == before.permissions_.end() || then->second.changes != now->second.changes;
}

}  // namespace berth
