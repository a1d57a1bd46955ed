// One call of any RPC by its descriptor, unary or with a stream of answers. Blocks its thread.
#pragma once

#include <absl/status/status.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <chrono>
#include <functional>
#include <memory>

#include "cli/connection.h"

namespace berth::cli {

// An empty message of a type that is linked into the program.
[[nodiscard]] std::unique_ptr<google::protobuf::Message> NewMessage(const google::protobuf::Descriptor* type);

// Sends `request` and hands each answer to `on_response` as it comes: one, where the RPC is unary. Returns
// how the server ended the call; INTERNAL where an answer cannot be read, or a unary call has none.
[[nodiscard]] absl::Status CallRpc(const Connection& connection,
                                   const google::protobuf::MethodDescriptor* method,
                                   const google::protobuf::Message& request,
                                   std::chrono::milliseconds timeout,
                                   const std::function<void(const google::protobuf::Message&)>& on_response);

}  // namespace berth::cli
