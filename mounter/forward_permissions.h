// Whether what an origin has requested may go forward: what was said last of its lease. Not written: after a
// start of berthd all that is a scheduler's is blocked (recovered_record.h).
//
// Pure: a value. Its VolumeMachine owns it.
#pragma once

#include <map>
#include <string>

#include "base/clock.h"
#include "mounter/publication_record.h"

namespace berth {

class ForwardPermissions {
 public:
  // No lease of `origin` is valid.
  void Block(Origin origin, const std::string& why);
  // A lease is valid, and has been without a break since `since`, on the boot's clock.
  void Unblock(Origin origin, BootTime since);
  // What was said of its origin is said of `publication`; nothing, if nothing was. Where a lease is valid,
  // one that its scheduler has not requested or confirmed in that time is unconfirmed. True if it was
  // blocked, and is not any more.
  bool ApplyTo(PublicationRecord& publication) const;
  // Something was said of `origin` after `before`, which is an earlier copy.
  [[nodiscard]] bool ChangedSince(const ForwardPermissions& before, Origin origin) const;

 private:
  struct Permission {
    std::string blocked;  // empty: a lease is valid
    BootTime since;
    int changes = 0;
  };

  std::map<Origin, Permission> permissions_;
};

}  // namespace berth
