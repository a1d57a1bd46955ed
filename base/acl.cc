#include "base/acl.h"

#include <acl/libacl.h>
#include <fmt/format.h>
#include <sys/acl.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>

#include "base/status.h"

namespace berth {
namespace {

struct FreeAcl {
  void operator()(acl_t acl) const { acl_free(acl); }
};

// libacl may move the ACL where an entry is added.
bool Add(acl_t* acl, acl_tag_t tag, const uint32_t* id, AclRights rights) {
  acl_entry_t entry = nullptr;
  acl_permset_t permissions = nullptr;
  if (acl_create_entry(acl, &entry) != 0 || acl_set_tag_type(entry, tag) != 0 ||
      (id != nullptr && acl_set_qualifier(entry, id) != 0) || acl_get_permset(entry, &permissions) != 0 ||
      acl_clear_perms(permissions) != 0) {
    return false;
  }
  const acl_perm_t granted =
      rights == AclRights::kAll ? ACL_READ | ACL_WRITE | ACL_EXECUTE : acl_perm_t{ACL_EXECUTE};
  return acl_add_perm(permissions, granted) == 0 && acl_set_permset(entry, permissions) == 0;
}

}  // namespace

absl::Status SetAccess(int fd, const std::set<AclEntry>& entries, AclRights rights,
                       const std::string& shown) {
  const auto failed = [&shown] { return ErrnoStatus(errno, fmt::format("set the ACL of {}", shown)); };
  // The owner's entry alone; the kernel keeps that as plain mode bits.
  acl_t acl = acl_from_mode(0700);
  bool made = acl != nullptr;
  for (const AclEntry& entry : entries) {
    const acl_tag_t tag = entry.kind == AclEntry::Kind::kUser ? ACL_USER : ACL_GROUP;
    made = made && Add(&acl, tag, &entry.id, rights);
  }
  if (made && !entries.empty()) made = acl_calc_mask(&acl) == 0;
  const std::unique_ptr<std::remove_pointer_t<acl_t>, FreeAcl> freed(acl);
  if (!made) return failed();
  if (acl_set_fd(fd, acl) == 0) return absl::OkStatus();
  const absl::Status status = failed();
  if (ErrnoOf(status) != EOPNOTSUPP) return status;
  struct stat info{};
  if (fstat(fd, &info) != 0 || fchmod(fd, (info.st_mode & 07000) | 0700) != 0) {
    return ErrnoStatus(errno, fmt::format("chmod {}", shown));
  }
  return entries.empty() ? absl::OkStatus() : status;
}

}  // namespace berth
