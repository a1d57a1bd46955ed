// An answer that knows whether it was understood.
//
// gRPC's callback API does not show it: a peer's OK with bytes that are no message, or with none at all,
// would reach us as OK with half a message, and on a stream they look like its end. To be used instead of the
// message in a grpc::TemplatedGenericStub; the message's .grpc.pb.h says how it is read.
#pragma once

#include <grpcpp/impl/serialization_traits.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

namespace berth {

template <class Message>
struct Parsed {
  Message message;
  bool ok = false;
};

}  // namespace berth

namespace grpc {

template <class Message>
class SerializationTraits<berth::Parsed<Message>> {
 public:
  // Always OK, so that a stream goes on, and its reader can see it.
  static Status Deserialize(ByteBuffer* bytes, berth::Parsed<Message>* parsed) {
    parsed->ok = SerializationTraits<Message>::Deserialize(bytes, &parsed->message).ok();
    return Status::OK;
  }
};

}  // namespace grpc
