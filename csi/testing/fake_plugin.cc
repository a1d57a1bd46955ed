#include "csi/testing/fake_plugin.h"

#include <grpc/grpc.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>
#include <vector>

namespace berth {
namespace {

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// "NodeGetInfo" of "/csi.v1.Node/NodeGetInfo".
std::string BareName(const std::string& method) { return method.substr(method.rfind('/') + 1); }

}  // namespace

// One call, on gRPC's threads. Holds itself until gRPC is done with it.
class FakePlugin::Call : public grpc::ServerGenericBidiReactor {
 public:
  static Call* Begin(FakePlugin* plugin, std::string rpc) {
    const auto call = std::make_shared<Call>(plugin, std::move(rpc));
    call->self_ = call;
    call->StartRead(&call->request_);
    return call.get();
  }
  Call(FakePlugin* plugin, std::string rpc) : plugin_(plugin), rpc_(std::move(rpc)) {}

  void OnReadDone(bool ok) override {
    if (!ok) {
      FinishOnce(grpc::Status(grpc::StatusCode::CANCELLED, "no request came"));
      return;
    }
    const Script script = plugin_->Arrived(rpc_, ToString(request_), self_);
    if (script.hang) return;  // OnCancel or AnswerHung ends it.
    if (script.nothing || !script.status.ok()) {
      FinishOnce(script.status);
      return;
    }
    Respond(script.bytes);
  }

  void Respond(const std::string& bytes) {
    if (!End()) return;
    response_ = ToBuffer(bytes);
    StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void FinishOnce(const grpc::Status& status) {
    if (End()) Finish(status);
  }

  // Once it has arrived.
  [[nodiscard]] std::string Request() const { return ToString(request_); }

  void OnCancel() override {
    plugin_->GivenUp(rpc_);
    FinishOnce(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    const auto last = std::move(self_);  // this ends with it
  }

 private:
  // Whether this is the first to end the call: a cancellation may come at the same time as the answer.
  bool End() {
    const std::lock_guard lock(mutex_);
    return !std::exchange(finished_, true);
  }

  FakePlugin* plugin_;
  std::string rpc_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  std::shared_ptr<Call> self_;
  std::mutex mutex_;
  bool finished_ = false;
};

class FakePlugin::Service : public grpc::CallbackGenericService {
 public:
  explicit Service(FakePlugin* plugin) : plugin_(plugin) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    return Call::Begin(plugin_, BareName(context->method()));
  }

 private:
  FakePlugin* plugin_;
};

FakePlugin::FakePlugin(std::string socket_path) : socket_path_(std::move(socket_path)) {
  // Without this, the last server or channel of a test would take gRPC down as a whole and the next test
  // would start it again; that waits up to 10 s for connections which ended in the middle of a transfer.
  [[maybe_unused]] static const bool kept = [] {
    grpc_init();
    return true;
  }();
}

FakePlugin::~FakePlugin() { Stop(); }

void FakePlugin::Start() {
  service_ = std::make_unique<Service>(this);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + socket_path_, grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(service_.get());
  server_ = builder.BuildAndStart();
  if (!server_) {
    SPDLOG_CRITICAL("fake plugin: cannot serve at {}", socket_path_);
    std::abort();
  }
}

void FakePlugin::Stop() {
  if (!server_) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
  service_.reset();
  ::unlink(socket_path_.c_str());
}

void FakePlugin::Answer(const std::string& rpc, const google::protobuf::Message& response) {
  Set(rpc, {.bytes = response.SerializeAsString()});
}

void FakePlugin::Fail(const std::string& rpc, const grpc::Status& status) { Set(rpc, {.status = status}); }

void FakePlugin::Hang(const std::string& rpc) { Set(rpc, {.hang = true}); }

std::vector<std::weak_ptr<FakePlugin::Call>> FakePlugin::TakeHung(const std::string& rpc) {
  const std::lock_guard lock(mutex_);
  return std::exchange(hung_[rpc], {});
}

void FakePlugin::AnswerHung(const std::string& rpc, const google::protobuf::Message& response) {
  for (const std::weak_ptr<Call>& call : TakeHung(rpc)) {
    if (const auto alive = call.lock()) alive->Respond(response.SerializeAsString());
  }
}

void FakePlugin::FailHung(const std::string& rpc,
                          const std::function<grpc::Status(const std::string& request)>& status) {
  for (const std::weak_ptr<Call>& call : TakeHung(rpc)) {
    if (const auto alive = call.lock()) alive->FinishOnce(status(alive->Request()));
  }
}

void FakePlugin::AnswerNothing(const std::string& rpc) { Set(rpc, {.nothing = true}); }

void FakePlugin::AnswerBytes(const std::string& rpc, const std::string& bytes) { Set(rpc, {.bytes = bytes}); }

void FakePlugin::AnswerNext(const std::string& rpc, const google::protobuf::Message& response) {
  const std::lock_guard lock(mutex_);
  next_[rpc].push_back({.bytes = response.SerializeAsString()});
}

void FakePlugin::FailNext(const std::string& rpc, const grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  next_[rpc].push_back({.status = status});
}

void FakePlugin::Set(const std::string& rpc, Script script) {
  const std::lock_guard lock(mutex_);
  scripts_[rpc] = std::move(script);
}

FakePlugin::Script FakePlugin::Arrived(const std::string& rpc, std::string request,
                                       const std::shared_ptr<Call>& call) {
  const std::lock_guard lock(mutex_);
  Count& count = counts_[rpc];
  ++count.calls;
  count.requests.push_back(std::move(request));
  changed_.notify_all();
  if (const auto next = next_.find(rpc); next != next_.end() && !next->second.empty()) {
    Script script = std::move(next->second.front());
    next->second.pop_front();
    return script;
  }
  const auto it = scripts_.find(rpc);
  if (it != scripts_.end()) {
    if (it->second.hang) hung_[rpc].push_back(call);
    return it->second;
  }
  return {.status = grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "unknown method " + rpc)};
}

void FakePlugin::GivenUp(const std::string& rpc) {
  const std::lock_guard lock(mutex_);
  ++counts_[rpc].cancelled;
  changed_.notify_all();
}

int FakePlugin::Calls(const std::string& rpc) const {
  const std::lock_guard lock(mutex_);
  const auto it = counts_.find(rpc);
  return it == counts_.end() ? 0 : it->second.calls;
}

int FakePlugin::Cancelled(const std::string& rpc) const {
  const std::lock_guard lock(mutex_);
  const auto it = counts_.find(rpc);
  return it == counts_.end() ? 0 : it->second.cancelled;
}

bool FakePlugin::WaitForCalls(const std::string& rpc, int count, Duration bound) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, bound, [&] {
    const auto it = counts_.find(rpc);
    return it != counts_.end() && it->second.calls >= count;
  });
}

bool FakePlugin::WaitForCancelled(const std::string& rpc, int count, Duration bound) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, bound, [&] {
    const auto it = counts_.find(rpc);
    return it != counts_.end() && it->second.cancelled >= count;
  });
}

bool FakePlugin::LastRequest(const std::string& rpc, google::protobuf::Message* request) const {
  const std::lock_guard lock(mutex_);
  const auto it = counts_.find(rpc);
  return it != counts_.end() && !it->second.requests.empty() &&
         request->ParseFromString(it->second.requests.back());
}

bool FakePlugin::RequestAt(const std::string& rpc, size_t index, google::protobuf::Message* request) const {
  const std::lock_guard lock(mutex_);
  const auto it = counts_.find(rpc);
  return it != counts_.end() && it->second.requests.size() > index &&
         request->ParseFromString(it->second.requests[index]);
}

}  // namespace berth
