// For tests only: a CSI plugin in this process, with a real gRPC server on a real Unix socket, and scripted
// answers.
//
//   FakePlugin plugin(path);                       // knows nothing: UNIMPLEMENTED to everything
//   plugin.Answer("Probe", csi::v1::ProbeResponse());
//   plugin.Fail("NodeGetInfo", grpc::Status(grpc::StatusCode::INTERNAL, "broken"));
//   plugin.Start();
//
// RPCs go by their bare names, which no two services of CSI share. An RPC's answer may be changed at any
// time; the newest counts for the next call. Any thread.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/testing/test_bound.h"

namespace berth {

class FakePlugin {
 public:
  explicit FakePlugin(std::string socket_path);
  // Stops, and removes the socket.
  ~FakePlugin();
  FakePlugin(const FakePlugin&) = delete;
  FakePlugin& operator=(const FakePlugin&) = delete;

  // Serves from here on. Aborts where the socket cannot be bound: the test is at fault then.
  void Start();
  // Cancels what runs, closes the socket and waits. What the RPCs do, and the counts, are kept.
  void Stop();

  void Answer(const std::string& rpc, const google::protobuf::Message& response);
  void Fail(const std::string& rpc, const grpc::Status& status);
  // Never answers: calls end by the caller's deadline or cancellation, by Stop, or by AnswerHung and
  // FailHung, which answer all that hang at that moment.
  void Hang(const std::string& rpc);
  void AnswerHung(const std::string& rpc, const google::protobuf::Message& response);
  // Each with what `status` makes of its request's bytes.
  void FailHung(const std::string& rpc,
                const std::function<grpc::Status(const std::string& request)>& status);
  // Says OK, and sends no message with it.
  void AnswerNothing(const std::string& rpc);
  // Answers with bytes that need not be a message.
  void AnswerBytes(const std::string& rpc, const std::string& bytes);

  // The next call alone: such words are used up in order, before the ones above count again.
  void AnswerNext(const std::string& rpc, const google::protobuf::Message& response);
  void FailNext(const std::string& rpc, const grpc::Status& status);

  // How many calls of `rpc` have arrived since the plugin was made, and how many of them the caller gave up.
  [[nodiscard]] int Calls(const std::string& rpc) const;
  [[nodiscard]] int Cancelled(const std::string& rpc) const;
  // Waits until there are so many; false at the bound.
  [[nodiscard]] bool WaitForCalls(const std::string& rpc, int count, Duration bound = kTestBound) const;
  [[nodiscard]] bool WaitForCancelled(const std::string& rpc, int count, Duration bound = kTestBound) const;

  // The request of the newest call of `rpc`, parsed; false if there was no call or it is not a `request`.
  [[nodiscard]] bool LastRequest(const std::string& rpc, google::protobuf::Message* request) const;
  // The same of the call number `index`, from 0.
  [[nodiscard]] bool RequestAt(const std::string& rpc, size_t index,
                               google::protobuf::Message* request) const;

  [[nodiscard]] const std::string& socket_path() const { return socket_path_; }

 private:
  class Service;
  class Call;

  struct Script {
    bool hang = false;
    bool nothing = false;
    grpc::Status status;
    std::string bytes;
  };
  struct Count {
    int calls = 0;
    int cancelled = 0;
    std::vector<std::string> requests;
  };

  void Set(const std::string& rpc, Script script);
  [[nodiscard]] Script Arrived(const std::string& rpc, std::string request,
                               const std::shared_ptr<Call>& call);
  void GivenUp(const std::string& rpc);
  [[nodiscard]] std::vector<std::weak_ptr<Call>> TakeHung(const std::string& rpc);

  const std::string socket_path_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::string, Script> scripts_;
  std::map<std::string, std::deque<Script>> next_;
  std::map<std::string, Count> counts_;
  std::map<std::string, std::vector<std::weak_ptr<Call>>> hung_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace berth
