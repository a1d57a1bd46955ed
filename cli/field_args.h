// A protobuf message filled from arguments of the form PATH=VALUE, by its descriptor:
//
//   volume_id=x
//   volume_capability.mount.fs_type=ext4          a field of a field
//   volume_capability.access_mode.mode=SINGLE_NODE_WRITER
//   'volume_capabilities[0].block={}'             an element of a list; JSON for a message
//   source_volume_ids=a source_volume_ids=b       a list without an index: appended
//   parameters.kind=image                         an entry of a map: the key is all up to the first '='
//   'parameters[a=b]=c'                           a key that holds an equals sign
//   'parameters={"kind": "image"}'                a whole map, as JSON
//   capacity_range.required_bytes=64MiB           a unit, where the field counts bytes
//
// Pure; any thread. Failures are UsageErrors that name the path, and what would be right.
#pragma once

#include <absl/status/status.h>
#include <google/protobuf/message.h>

#include <string>
#include <string_view>
#include <vector>

namespace berth::cli {

// Sets one field of `message`. Fields marked csi_secret are refused: a command line is no place for them.
// Of a oneof only one member may be set. Setting a plain field again overwrites it.
[[nodiscard]] absl::Status SetField(google::protobuf::Message* message, std::string_view argument);

// One value that can be set with SetField: "volume_capability.access_mode.mode", and what it takes.
struct FieldPath {
  std::string path;
  std::string type;
  bool secret = false;
  bool alpha = false;
};

// Every path that leads to a plain value of `type`, or to a message without fields, in the order of the
// proto.
[[nodiscard]] std::vector<FieldPath> FieldPaths(const google::protobuf::Descriptor* type);

// "string", "list of Topology", "map of string", "one of MOUNT, BLOCK": what a field takes, in words.
[[nodiscard]] std::string DescribeType(const google::protobuf::FieldDescriptor* field);

[[nodiscard]] bool IsSecret(const google::protobuf::FieldDescriptor* field);
[[nodiscard]] bool IsAlpha(const google::protobuf::FieldDescriptor* field);

}  // namespace berth::cli
