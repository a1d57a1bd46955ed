#include "base/grpc_stream.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include "base/testing/run_on.h"

namespace berth {
namespace {

using google::protobuf::StringValue;
using Stream = ClientStream<StringValue, StringValue>;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kFloodMessages = 500;

StringValue Say(const std::string& text) {
  StringValue message;
  message.set_value(text);
  return message;
}

grpc::ByteBuffer Bytes(const std::string& text) {
  const grpc::Slice slice(text);
  return {&slice, 1};
}

// What a server does on a stream, by the name of the method.
class Behaviour : public grpc::ServerGenericBidiReactor {
 public:
  void OnDone() override { delete this; }
  void OnCancel() override {}
};

// Says everything again.
class Echo final : public Behaviour {
 public:
  Echo() { StartRead(&bytes_); }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      StartWrite(&bytes_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      StartRead(&bytes_);
    } else {
      Finish(grpc::Status::CANCELLED);  // the server waits for this when it ends
    }
  }
  grpc::ByteBuffer bytes_;
};

// Says all of `messages`, then ends.
class Recite final : public Behaviour {
 public:
  Recite(std::vector<std::string> messages, grpc::Status status)
      : messages_(std::move(messages)), status_(std::move(status)) {
    Next();
  }

 private:
  void Next() {
    if (said_ == messages_.size()) {
      Finish(status_);
      return;
    }
    bytes_ = Bytes(messages_[said_++]);
    StartWrite(&bytes_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      Next();
    } else {
      Finish(status_);
    }
  }
  std::vector<std::string> messages_;
  grpc::Status status_;
  size_t said_ = 0;
  grpc::ByteBuffer bytes_;
};

// Neither reads nor writes until it is cancelled.
class Mute final : public Behaviour {
  void OnCancel() override { Finish(grpc::Status::CANCELLED); }
};

class Service final : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    const std::string& method = context->method();
    if (method == "/t/Echo") return new Echo();
    if (method == "/t/Mute") return new Mute();
    if (method == "/t/Refuse") return new Recite({}, {grpc::StatusCode::PERMISSION_DENIED, "not you"});
    if (method == "/t/Garbage") {
      return new Recite({"\xff\xff\xff", Say("good").SerializeAsString()}, grpc::Status::OK);
    }
    std::vector<std::string> numbers;
    for (int i = 0; i < kFloodMessages; ++i) numbers.push_back(Say(std::to_string(i)).SerializeAsString());
    return new Recite(std::move(numbers), grpc::Status::OK);
  }
};

class ClientStreamTest : public testing::Test {
 protected:
  ClientStreamTest() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials());
  }
  ~ClientStreamTest() override {
    Drain(loop_);
    server_->Shutdown(std::chrono::system_clock::now());
  }

  std::unique_ptr<Stream> Open(const std::string& method) {
    return Stream::Open(loop_.get_executor(), channel_, method);
  }
  static TimePoint Soon() { return Clock::now() + seconds(10); }

  // What the next message says, or why none came.
  std::string ReadText(Stream& stream, TimePoint deadline) {
    const auto message = RunOn(loop_, stream.Read(deadline));
    if (!message.ok()) return std::string(message.status().message());
    return message->has_value() ? (*message)->value() : "the end";
  }

  asio::io_context loop_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(ClientStreamTest, BothSidesSpeakAndEnd) {
  const auto stream = Open("/t/Echo");
  for (const char* text : {"one", "two", "three"}) {
    EXPECT_TRUE(RunOn(loop_, stream->Write(Say(text), Soon())).ok());
    EXPECT_EQ(ReadText(*stream, Soon()), text);
  }
  EXPECT_TRUE(RunOn(loop_, stream->WritesDone(Soon())).ok());
  EXPECT_EQ(ReadText(*stream, Soon()), "the end");
  EXPECT_TRUE(RunOn(loop_, stream->Finish(Soon())).ok());
}

TEST_F(ClientStreamTest, AReadPastItsDeadlineLosesNothing) {
  const auto stream = Open("/t/Echo");
  EXPECT_EQ(RunOn(loop_, stream->Read(Clock::now() + milliseconds(20))).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(RunOn(loop_, stream->Write(Say("late"), Soon())).ok());
  EXPECT_EQ(ReadText(*stream, Soon()), "late");
}

TEST_F(ClientStreamTest, ACancelledReadLosesNothing) {
  const auto stream = Open("/t/Echo");
  TaskScope scope(loop_.get_executor(), "test");
  bool returned = false;
  const auto read = [](Stream& from, bool& came_back) -> Awaitable<void> {
    const auto message = co_await from.Read(TimePoint::max());
    EXPECT_FALSE(message.ok());
    came_back = true;
  };
  scope.Spawn("read", read(*stream, returned));
  loop_.poll();
  RunOn(loop_, scope.Join());
  EXPECT_FALSE(returned);
  EXPECT_TRUE(RunOn(loop_, stream->Write(Say("late"), Soon())).ok());
  EXPECT_EQ(ReadText(*stream, Soon()), "late");
}

TEST_F(ClientStreamTest, NoDeadlineLosesOrReordersAMessage) {
  const auto stream = Open("/t/Flood");
  for (int next = 0; next < kFloodMessages;) {
    const auto message = RunOn(loop_, stream->Read(Clock::now()));
    if (!message.ok()) continue;
    ASSERT_TRUE(message->has_value());
    ASSERT_EQ((*message)->value(), std::to_string(next));
    ++next;
  }
  EXPECT_EQ(ReadText(*stream, Soon()), "the end");
  EXPECT_TRUE(RunOn(loop_, stream->Finish(Soon())).ok());
}

TEST_F(ClientStreamTest, WhatIsNoMessageIsToldAndNotTakenForTheEnd) {
  const auto stream = Open("/t/Garbage");
  const auto garbage = RunOn(loop_, stream->Read(Soon()));
  EXPECT_EQ(garbage.status(), absl::InternalError("what came is not a readable google.protobuf.StringValue"));
  EXPECT_EQ(ReadText(*stream, Soon()), "good");
  EXPECT_EQ(ReadText(*stream, Soon()), "the end");
}

TEST_F(ClientStreamTest, ARefusalIsTheEndAndItsStatusIsTold) {
  const auto stream = Open("/t/Refuse");
  EXPECT_EQ(ReadText(*stream, Soon()), "the end");
  EXPECT_EQ(RunOn(loop_, stream->Write(Say("anyone?"), Soon())).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(RunOn(loop_, stream->Finish(Soon())), absl::PermissionDeniedError("not you"));
}

TEST_F(ClientStreamTest, AServerThatIsNotThereIsTold) {
  channel_ = grpc::CreateChannel("unix:/nonexistent/socket", grpc::InsecureChannelCredentials());
  const auto stream = Open("/t/Echo");
  EXPECT_EQ(ReadText(*stream, Soon()), "the end");
  EXPECT_EQ(RunOn(loop_, stream->Finish(Soon())).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ClientStreamTest, APeerThatDoesNotReadHoldsWritesUpAndTheyStayInOrder) {
  const auto stream = Open("/t/Mute");
  const StringValue big = Say(std::string(1 << 20, 'x'));
  absl::Status written;
  int taken = 0;
  while (written.ok() && taken < 100) {
    written = RunOn(loop_, stream->Write(big, Clock::now() + milliseconds(200)));
    taken += written.ok() ? 1 : 0;
  }
  EXPECT_EQ(written.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(taken, 100);
  // That message is on its way still.
  EXPECT_FALSE(RunOn(loop_, stream->WaitWritable(Clock::now() + milliseconds(20))));
  EXPECT_EQ(RunOn(loop_, stream->Write(big, Clock::now())).message(),
            "an earlier message was not taken in time");
  stream->Cancel();
  EXPECT_EQ(RunOn(loop_, stream->Finish(Soon())).code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientStreamTest, FinishEndsACallThatThePeerDoesNotEnd) {
  const auto stream = Open("/t/Mute");
  EXPECT_EQ(RunOn(loop_, stream->Finish(Clock::now() + milliseconds(20))).code(),
            absl::StatusCode::kCancelled);
}

TEST_F(ClientStreamTest, FinishDropsWhatWasNotRead) {
  const auto stream = Open("/t/Flood");
  EXPECT_EQ(ReadText(*stream, Soon()), "0");
  EXPECT_TRUE(RunOn(loop_, stream->Finish(Soon())).ok());
}

TEST_F(ClientStreamTest, MayBeDestroyedInTheMiddle) {
  for (const char* method : {"/t/Echo", "/t/Mute", "/t/Flood", "/t/Refuse"}) {
    const auto stream = Open(method);
    [[maybe_unused]] const auto first = RunOn(loop_, stream->Read(Clock::now()));
    [[maybe_unused]] const auto written = RunOn(loop_, stream->Write(Say("x"), Clock::now()));
  }
}

TEST_F(ClientStreamTest, KeepsItsChannelForAsLongAsItNeedsIt) {
  auto stream = Open("/t/Echo");
  const std::weak_ptr<grpc::Channel> channel = channel_;
  channel_.reset();
  EXPECT_TRUE(RunOn(loop_, stream->Write(Say("x"), Soon())).ok());
  EXPECT_EQ(ReadText(*stream, Soon()), "x");
  stream.reset();
  EXPECT_FALSE(channel.expired());
  Drain(loop_);
  EXPECT_TRUE(channel.expired());
}

}  // namespace
}  // namespace berth
