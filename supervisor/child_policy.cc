#include "supervisor/child_policy.h"

namespace berth {
namespace {

bool ServersStay(ChildrenPolicy children, TreeOccasion occasion) {
  if (children == ChildrenPolicy::kEnd) return false;
  switch (occasion) {
    case TreeOccasion::kMainEnded:
    case TreeOccasion::kReplaced:
      return true;
    case TreeOccasion::kLimitReached:
    case TreeOccasion::kStopped:
      return false;
  }
  return false;
}

}  // namespace

TreeVerdict DecideChildren(const std::vector<TreeMember>& members, ChildrenPolicy children,
                           TreeOccasion occasion) {
  const bool servers_stay = ServersStay(children, occasion);
  TreeVerdict verdict;
  for (const TreeMember& member : members) {
    if (member.main) continue;
    const bool stays = servers_stay && member.fuse != FuseUse::kNone;
    (stays ? verdict.keep : verdict.end).push_back(member.pid);
  }
  return verdict;
}

std::vector<TreeMember> MembersOf(const std::vector<TreeProcess>& tree, pid_t main) {
  std::vector<TreeMember> members;
  members.reserve(tree.size());
  for (const TreeProcess& process : tree) {
    members.push_back({.pid = process.pid(), .fuse = process.fuse(), .main = process.pid() == main});
  }
  return members;
}

}  // namespace berth
