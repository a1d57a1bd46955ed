#include "base/mountinfo_line.h"

#include <algorithm>
#include <array>

#include "base/number_text.h"

namespace berth {
namespace {

// Takes the first field off `line`.
std::string_view TakeField(std::string_view* line) {
  const size_t end = line->find(' ');
  const std::string_view field = line->substr(0, end);
  line->remove_prefix(end == std::string_view::npos ? line->size() : end + 1);
  return field;
}

// False: `tag` begins so, and is not in the known form.
bool TakeTag(std::string_view tag, std::string_view lead, uint64_t* number) {
  return !tag.starts_with(lead) || ParseNumber(tag.substr(lead.size()), number);
}

}  // namespace

// "ID PARENT MAJOR:MINOR ROOT TARGET OPTIONS [TAG…] - TYPE SOURCE OPTIONS"
std::optional<MountinfoLine> ParseMountinfoLine(std::string_view line) {
  MountinfoLine mount;
  const std::string_view id = TakeField(&line);
  const std::string_view parent = TakeField(&line);
  const std::string_view device = TakeField(&line);
  mount.root = TakeField(&line);
  mount.target = TakeField(&line);
  mount.mount_options = TakeField(&line);
  for (std::string_view tag; !line.empty() && (tag = TakeField(&line)) != "-";) {
    if (!TakeTag(tag, "shared:", &mount.peer_group) || !TakeTag(tag, "master:", &mount.follows))
      return std::nullopt;
  }
  mount.fs_type = TakeField(&line);
  mount.source = TakeField(&line);
  mount.options = TakeField(&line);
  const size_t colon = device.find(':');
  if (colon == std::string_view::npos || !mount.target.starts_with('/') || mount.fs_type.empty() ||
      !ParseNumber(id, &mount.id) || !ParseNumber(parent, &mount.parent) ||
      !ParseNumber(device.substr(0, colon), &mount.device_major) ||
      !ParseNumber(device.substr(colon + 1), &mount.device_minor)) {
    return std::nullopt;
  }
  return mount;
}

std::string DecodeMountinfo(std::string_view field) {
  std::string out;
  out.reserve(field.size());
  for (size_t i = 0; i < field.size(); ++i) {
    const auto digit = [&field, i](size_t n) {
      const char c = i + n < field.size() ? field[i + n] : '9';
      return c >= '0' && c <= '7' ? c - '0' : -1;
    };
    if (field[i] == '\\' && digit(1) >= 0 && digit(2) >= 0 && digit(3) >= 0) {
      out += static_cast<char>(static_cast<unsigned char>(digit(1) * 64 + digit(2) * 8 + digit(3)));
      i += 3;
    } else {
      out += field[i];
    }
  }
  return out;
}

uint64_t MountFingerprint(uint64_t id, dev_t device, std::string_view root, std::string_view target) {
  // FNV-1a. Each text ends with a zero, which no path has.
  constexpr uint64_t kOffset = 0xCBF29CE484222325;
  constexpr uint64_t kPrime = 0x100000001B3;
  uint64_t hash = kOffset;
  for (const std::string& text :
       {std::to_string(id), std::to_string(device), std::string(root), std::string(target)}) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
    hash *= kPrime;
  }
  return hash;
}

uint64_t SourceFingerprint(std::string_view source) {
  return std::max<uint64_t>(1, MountFingerprint(0, 0, source, {}));
}

bool IsAtOrBeneath(std::string_view path, std::string_view directory) {
  if (!path.starts_with(directory)) return false;
  return path.size() == directory.size() || directory.ends_with('/') || path[directory.size()] == '/';
}

bool SourceNamesDirectory(std::string_view fs_type) {
  return fs_type.starts_with("nfs") || fs_type == "cifs" || fs_type == "smb3" || fs_type == "ceph";
}

bool CanDie(std::string_view fs_type) {
  constexpr std::array<std::string_view, 18> kTypes = {
      "9p",   "afs",       "beegfs", "ceph",  "cifs", "davfs", "fuse",  "fuseblk",  "gfs2",
      "gpfs", "glusterfs", "lustre", "ncpfs", "nfs",  "nfs4",  "ocfs2", "orangefs", "virtiofs"};
  const std::string_view base = fs_type.substr(0, fs_type.find('.'));
  return base.starts_with("smb") || std::ranges::find(kTypes, base) != kTypes.end();
}

}  // namespace berth
