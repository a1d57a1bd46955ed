// The RPCs of CSI, as our copy of the proto has them, and how people may name them.
//
// Pure; any thread.
#pragma once

#include <absl/status/statusor.h>
#include <google/protobuf/descriptor.h>

#include <string>
#include <string_view>
#include <vector>

namespace berth::cli {

// Every service of CSI, in the order of the proto.
[[nodiscard]] std::vector<const google::protobuf::ServiceDescriptor*> CsiServices();

// "group-controller": how a service is named on the command line.
[[nodiscard]] std::string ShortName(const google::protobuf::ServiceDescriptor* service);
// "publish-volume" for NodePublishVolume: what is said once, by the service, is not said again.
[[nodiscard]] std::string ShortName(const google::protobuf::MethodDescriptor* method);

// By the name above or the proto's own ("GroupController", "csi.v1.Node"), in any case. UsageError with what
// there is.
[[nodiscard]] absl::StatusOr<const google::protobuf::ServiceDescriptor*> FindService(std::string_view name);

// "NodePublishVolume", "node-publish-volume", "publish-volume", in any case; "volume-stats" for
// NodeGetVolumeStats where nothing else is meant by it. UsageError with the nearest, or with all.
[[nodiscard]] absl::StatusOr<const google::protobuf::MethodDescriptor*> FindMethod(
    const google::protobuf::ServiceDescriptor* service, std::string_view name);

// Whether CSI may still change it.
[[nodiscard]] bool IsAlpha(const google::protobuf::MethodDescriptor* method);

}  // namespace berth::cli
