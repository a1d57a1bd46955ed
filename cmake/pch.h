// Headers that nearly every file needs and that cost seconds each. A file still includes what it uses:
// nothing may compile only because of this one.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <boost/asio.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace berth::precompiled {

// Instantiated here once, in place of half a second in each file that has a loop or starts a coroutine.
inline boost::asio::any_io_executor ExecutorOf(boost::asio::io_context& io) { return io.get_executor(); }
inline void Start(boost::asio::io_context& io, boost::asio::awaitable<absl::Status> task) {
  boost::asio::co_spawn(io, std::move(task), [](const std::exception_ptr&, const absl::Status&) {});
}

}  // namespace berth::precompiled
