#include "csi/names.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>

#include "csi/csi.pb.h"

namespace berth {
namespace {

std::string NameIn(const google::protobuf::EnumDescriptor* type, int number) {
  const google::protobuf::EnumValueDescriptor* value = type->FindValueByNumber(number);
  return value == nullptr ? std::to_string(number) : value->name();
}

}  // namespace

std::string PluginServiceName(int number) {
  return NameIn(::csi::v1::PluginCapability::Service::Type_descriptor(), number);
}

std::string VolumeExpansionName(int number) {
  return NameIn(::csi::v1::PluginCapability::VolumeExpansion::Type_descriptor(), number);
}

std::string ControllerCapabilityName(int number) {
  return NameIn(::csi::v1::ControllerServiceCapability::RPC::Type_descriptor(), number);
}

std::string GroupControllerCapabilityName(int number) {
  return NameIn(::csi::v1::GroupControllerServiceCapability::RPC::Type_descriptor(), number);
}

std::string NodeCapabilityName(int number) {
  return NameIn(::csi::v1::NodeServiceCapability::RPC::Type_descriptor(), number);
}

std::string AccessModeName(int number) {
  return NameIn(::csi::v1::VolumeCapability::AccessMode::Mode_descriptor(), number);
}

std::string VolumeHealthName(int number) {
  return NameIn(::csi::v1::VolumeHealthErrorType_descriptor(), number);
}

std::string StorageHealthName(int number) {
  return NameIn(::csi::v1::StorageHealthErrorType_descriptor(), number);
}

std::vector<std::string> Names(const std::set<int>& numbers, std::string (*name)(int)) {
  std::vector<std::string> names;
  names.reserve(numbers.size());
  for (const int number : numbers) names.push_back(name(number));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace berth
