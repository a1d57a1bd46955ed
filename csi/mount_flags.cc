#include "csi/mount_flags.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace berth {
namespace {

using namespace std::string_view_literals;

// Options of mount(8), nfs(5), mount.cifs(8), ext4(5), xfs(5), btrfs(5), tmpfs(5) and FUSE. One that is not
// here is taken for what may be secret. Sorted.
constexpr std::array kHarmless = {
    "acdirmax"sv,     "acdirmin"sv,   "acregmax"sv,      "acregmin"sv,    "actimeo"sv,        "addr"sv,
    "allocsize"sv,    "barrier"sv,    "blksize"sv,       "bsize"sv,       "cache"sv,          "clientaddr"sv,
    "closetimeo"sv,   "codepage"sv,   "commit"sv,        "compress"sv,    "compress-force"sv, "context"sv,
    "data"sv,         "data_err"sv,   "defcontext"sv,    "dir_mode"sv,    "discard"sv,        "dmask"sv,
    "dmode"sv,        "domain"sv,     "echo_interval"sv, "errors"sv,      "file_mode"sv,      "fmask"sv,
    "fmode"sv,        "fscontext"sv,  "fsname"sv,        "gid"sv,         "group_id"sv,       "huge"sv,
    "iocharset"sv,    "local_lock"sv, "logbsize"sv,      "lookupcache"sv, "lowerdir"sv,       "max_read"sv,
    "minorversion"sv, "mode"sv,       "mon_addr"sv,      "mountaddr"sv,   "mounthost"sv,      "mountport"sv,
    "mountproto"sv,   "mountvers"sv,  "mpol"sv,          "msize"sv,       "namlen"sv,         "nconnect"sv,
    "nfsvers"sv,      "nr_blocks"sv,  "nr_inodes"sv,     "port"sv,        "proto"sv,          "resgid"sv,
    "resuid"sv,       "retrans"sv,    "retry"sv,         "rootcontext"sv, "rootmode"sv,       "rsize"sv,
    "sec"sv,          "size"sv,       "space_cache"sv,   "stripe"sv,      "subtype"sv,        "subvol"sv,
    "subvolid"sv,     "sunit"sv,      "swidth"sv,        "timeo"sv,       "trans"sv,          "uid"sv,
    "umask"sv,        "upperdir"sv,   "user_id"sv,       "vers"sv,        "workdir"sv,        "workgroup"sv,
    "wsize"sv,
};
static_assert(std::ranges::is_sorted(kHarmless));

// Where the option that `text` begins with ends. A doubled comma stands for one within a value, as cifs has
// it.
size_t OptionEnd(std::string_view text) {
  size_t at = text.find(',');
  while (at != std::string_view::npos && text.substr(at).starts_with(",,")) at = text.find(',', at + 2);
  return std::min(at, text.size());
}

std::string_view WithoutQuotes(std::string_view value) {
  const bool quoted =
      value.size() >= 2 && value.front() == value.back() && (value.front() == '"' || value.front() == '\'');
  return quoted ? value.substr(1, value.size() - 2) : value;
}

}  // namespace

std::vector<std::string_view> SecretsInFlag(std::string_view flag) {
  std::vector<std::string_view> found;
  while (!flag.empty()) {
    const std::string_view option = flag.substr(0, OptionEnd(flag));
    flag.remove_prefix(std::min(option.size() + 1, flag.size()));
    const size_t equals = option.find('=');
    if (equals == std::string_view::npos) continue;
    if (std::ranges::binary_search(kHarmless, option.substr(0, equals))) continue;
    const std::string_view value = WithoutQuotes(option.substr(equals + 1));
    if (value.size() >= kMinSecretFlag) found.push_back(value);
  }
  return found;
}

}  // namespace berth
