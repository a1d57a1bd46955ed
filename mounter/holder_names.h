// Who keeps a mount busy, in people's words and as this node's consumers.
//
// Any thread; reads /proc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mounter/volume_record.h"
#include "mounter/volume_types.h"

namespace berth {

// How MountHolder::how begins for a mount on a directory of the volume's mount.
inline constexpr std::string_view kMountedInside = "what is mounted inside it:";

// The same for a mount in a namespace that is not berthd's.
inline constexpr std::string_view kInAnotherNamespace = "in another mount namespace, mounted at";

// Sets the consumer of each holder that is a process of one of the record's publications: the process itself,
// or one in the cgroup or unit that the consumer consists of.
void NameConsumers(const VolumeRecord& record, std::vector<MountHolder>* holders);

// "pid 12 (postgres) of consumer db: open file /x; pid 14 (bash): working directory; and 3 more". Empty if
// there are no holders.
[[nodiscard]] std::string DescribeHolders(const std::vector<MountHolder>& holders);

}  // namespace berth
