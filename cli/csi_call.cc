#include "cli/csi_call.h"

#include <fmt/format.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include "base/status.h"

namespace berth::cli {
namespace {

using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

// Waits for the one operation that is under way. The call's deadline bounds it.
bool Await(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue.Next(&tag, &ok) && ok;
}

bool Parse(const grpc::ByteBuffer& buffer, Message* message) {
  grpc::Slice slice;
  if (!buffer.DumpToSingleSlice(&slice).ok()) return false;
  return message->ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
}

}  // namespace

std::unique_ptr<Message> NewMessage(const google::protobuf::Descriptor* type) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

absl::Status CallRpc(const Connection& connection, const MethodDescriptor* method, const Message& request,
                     std::chrono::milliseconds timeout,
                     const std::function<void(const Message&)>& on_response) {
  const grpc::Slice bytes(request.SerializeAsString());
  const grpc::ByteBuffer sent(&bytes, 1);
  const std::unique_ptr<Message> response = NewMessage(method->output_type());

  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  grpc::GenericStub stub(connection.channel());
  const auto call = stub.PrepareCall(
      &context, fmt::format("/{}/{}", method->service()->full_name(), method->name()), &queue);
  call->StartCall(nullptr);
  bool going = Await(queue);
  if (going) {
    call->WriteLast(sent, grpc::WriteOptions(), nullptr);
    going = Await(queue);
  }
  int answers = 0;
  absl::Status unreadable;
  while (going) {
    grpc::ByteBuffer buffer;
    call->Read(&buffer, nullptr);
    going = Await(queue);
    if (!going) break;
    if (!Parse(buffer, response.get())) {
      unreadable = absl::InternalError(fmt::format("the answer is not a {}", method->output_type()->name()));
      context.TryCancel();
      break;
    }
    ++answers;
    on_response(*response);
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  Await(queue);
  queue.Shutdown();
  while (Await(queue)) {
  }
  BERTH_RETURN_IF_ERROR(unreadable);
  BERTH_RETURN_IF_ERROR(FromGrpc(status));
  if (answers == 0 && !method->server_streaming())
    return absl::InternalError("it ended well, without an answer");
  return absl::OkStatus();
}

}  // namespace berth::cli
