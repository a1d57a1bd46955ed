// A scheduler of a few lines, and a node that it welcomes: that what is installed is enough to make either.
// Exits with 0 if the node was welcomed and got a lease.

#include <grpcpp/grpcpp.h>

#include <iostream>
#include <memory>

#include "berth/v1/scheduler.grpc.pb.h"

namespace {

using berth::v1::NodeMessage;
using berth::v1::SchedulerLink;
using berth::v1::SchedulerMessage;

class Scheduler final : public SchedulerLink::Service {
  grpc::Status Connect(grpc::ServerContext* /*context*/,
                       grpc::ServerReaderWriter<SchedulerMessage, NodeMessage>* node) override {
    NodeMessage heard;
    while (node->Read(&heard)) {
      SchedulerMessage said;
      if (heard.has_hello()) {
        said.mutable_welcome()->mutable_protocol()->set_major(1);
      } else if (heard.has_heartbeat()) {
        said.mutable_heartbeat_answer()->set_number(heard.heartbeat().number());
        said.mutable_heartbeat_answer()->mutable_lease()->set_epoch(1);
        said.mutable_heartbeat_answer()->mutable_lease()->mutable_duration()->set_seconds(20);
      } else {
        continue;
      }
      node->Write(said);
    }
    return grpc::Status::OK;
  }
};

bool WelcomesANode(SchedulerLink::Stub& scheduler) {
  grpc::ClientContext context;
  const auto stream = scheduler.Connect(&context);
  NodeMessage said;
  SchedulerMessage heard;
  said.mutable_hello()->set_node_id("node-1");
  if (!stream->Write(said) || !stream->Read(&heard) || !heard.has_welcome()) return false;
  said.mutable_heartbeat()->set_number(1);
  if (!stream->Write(said) || !stream->Read(&heard)) return false;
  if (heard.heartbeat_answer().lease().duration().seconds() < 1)
    return false;  // A node takes none that is shorter.
  stream->WritesDone();
  return stream->Finish().ok();
}

}  // namespace

int main() {
  Scheduler scheduler;
  grpc::ServerBuilder builder;
  builder.RegisterService(&scheduler);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = SchedulerLink::NewStub(server->InProcessChannel(grpc::ChannelArguments()));
  if (WelcomesANode(*stub)) return 0;
  std::cerr << "the node was not welcomed, or got no lease\n";
  return 1;
}
