// The methods of berth.v1.Node that stream their answers: events, and logs. A reader that is too slow misses
// some messages and learns how many; it delays no other reader, and one batch is kept for it.
//
// Owned by NodeApi; loop thread only. Each method's meaning and errors are those in node.proto.
#pragma once

#include <memory>
#include <utility>

#include "base/log.h"
#include "base/server_call.h"
#include "berth/v1/node.pb.h"
#include "rpc/call_info.h"
#include "rpc/node_parts.h"

namespace berth {

class StreamApi {
 public:
  // `log`: berthd's own, for followers; null: it cannot be followed.
  StreamApi(const NodeParts& parts, std::shared_ptr<LogFeed> log)
      : control_(parts.control), events_(parts.events), log_(std::move(log)) {}

  Awaitable<absl::Status> WatchEvents(v1::WatchEventsRequest request, CallInfo call,
                                      StreamWriter<v1::WatchEventsResponse>& out);
  Awaitable<absl::Status> ReadPluginLog(v1::ReadPluginLogRequest request, CallInfo call,
                                        StreamWriter<v1::ReadPluginLogResponse>& out);
  Awaitable<absl::Status> WatchLog(v1::WatchLogRequest request, CallInfo call,
                                   StreamWriter<v1::WatchLogResponse>& out);

 private:
  PluginControl& control_;
  EventLog& events_;
  std::shared_ptr<LogFeed> log_;
};

}  // namespace berth
