#include "cli/follow.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/inotify.h>

#include <array>
#include <chrono>
#include <utility>

#include "base/unique_fd.h"

namespace berth::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// berthd creates its socket again when it starts: inotify on the directory reports that at once. If the
// directory is gone, poll.
class SocketWatch {
 public:
  explicit SocketWatch(const std::string& socket) : inotify_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    const size_t slash = socket.rfind('/');
    const std::string directory = slash == std::string::npos ? "." : socket.substr(0, slash + 1);
    if (inotify_.valid()) {
      inotify_add_watch(inotify_.get(), directory.c_str(), IN_CREATE | IN_MOVED_TO | IN_ATTRIB | IN_ONLYDIR);
    }
  }

  void WaitForChange(milliseconds bound) {
    pollfd waited{.fd = inotify_.get(), .events = POLLIN, .revents = 0};
    poll(&waited, 1, static_cast<int>(bound.count()));
    std::array<char, 4096> events{};
    while (inotify_.valid() && read(inotify_.get(), events.data(), events.size()) > 0) {
    }
  }

 private:
  UniqueFd inotify_;
};

constexpr milliseconds kLookAgain(200);
// A stream that held so long shows that berthd was back, also where it said nothing.
constexpr auto kWasThere = std::chrono::seconds(2);

}  // namespace

absl::Status Follow(Session& session, const FollowedStream& stream) {
  absl::StatusOr<NodeClient> node = session.Connect();
  if (!node.ok() && !stream.until) return node.status();
  bool was_there = node.ok();
  steady_clock::time_point away_since;
  bool away = false;
  bool told_back = false;
  while (true) {
    absl::Status ended = node.status();
    bool heard = false;
    if (node.ok()) {
      const auto began = steady_clock::now();
      ended = stream.read(*node, [&] { heard = true; });
      if (heard || steady_clock::now() - began > kWasThere) away = false;
    }
    // One that is still on its way out, or in, may make gRPC end a stream with another code than UNAVAILABLE.
    const bool by_grpc = absl::IsUnknown(ended) || absl::IsCancelled(ended) || absl::IsInternal(ended);
    const bool still_away = away && !heard && by_grpc;
    if (!absl::IsUnavailable(ended) && !still_away) return ended;
    if (!away) {
      away = true;
      told_back = false;
      away_since = steady_clock::now();
      session.output.Note(was_there ? stream.gone
                                    : fmt::format("{}; waiting for it", std::string(ended.message())));
    } else {
      // Listening, and yet not serving: it is asked again, but not in a spin.
      poll(nullptr, 0, static_cast<int>(kLookAgain.count()));
    }
    SocketWatch watch(session.socket.empty() ? session.directory + "/" : session.socket);
    node = session.Connect();
    const auto give_up = stream.until.value_or(away_since + session.timeout);
    const auto time_is_over = [&] { return steady_clock::now() >= give_up; };
    // berthd makes its socket for root alone, and gives it to its group then.
    const auto not_yet = [&] {
      return absl::IsUnavailable(node.status()) || (was_there && absl::IsPermissionDenied(node.status()));
    };
    while (not_yet() && !time_is_over()) {
      watch.WaitForChange(kLookAgain);
      node = session.Connect();
    }
    if (!node.ok()) return node.status();
    if (time_is_over()) return ended;
    was_there = true;
    if (!std::exchange(told_back, true)) session.output.Note(stream.back());
  }
}

}  // namespace berth::cli
