// The values of berth/v1/values.proto that the mounter uses as they are, with equality: two values are equal
// if all of their fields are.
//
// Pure; any thread.
#pragma once

#include <google/protobuf/util/message_differencer.h>

#include <concepts>
#include <cstdint>
#include <string>

#include "berth/v1/values.pb.h"

namespace berth::v1 {

template <class Value>
concept ComparedValue = std::same_as<Value, ConsumerLife> || std::same_as<Value, RootPermissions> ||
                        std::same_as<Value, RuntimeAbility> || std::same_as<Value, SecretsReference>;

template <ComparedValue Value>
bool operator==(const Value& a, const Value& b) {
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

}  // namespace berth::v1

namespace berth {

using v1::ConsumerLife;
using v1::RootPermissions;
using v1::RuntimeAbility;
using v1::SecretsReference;

// Whether it names anything.
inline bool IsSet(const SecretsReference& reference) {
  return reference.kind_case() != SecretsReference::KIND_NOT_SET;
}

inline bool IsSet(const ConsumerLife& life) { return life.kind_case() != ConsumerLife::KIND_NOT_SET; }

inline ConsumerLife ProcessLife(int64_t pid, uint64_t start_time = 0) {
  ConsumerLife life;
  life.set_pid(pid);
  life.set_start_time(start_time);
  return life;
}
inline ConsumerLife CgroupLife(const std::string& directory) {
  ConsumerLife life;
  life.set_cgroup(directory);
  return life;
}
inline ConsumerLife UnitLife(const std::string& name) {
  ConsumerLife life;
  life.set_unit(name);
  return life;
}

}  // namespace berth
