#include "cli/progress.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/values.h"

namespace berth::cli {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr auto kPatience = seconds(2);
constexpr auto kPeriod = seconds(1);
// Back to the line's beginning, and away with what stands there.
constexpr std::string_view kClearLine = "\r\033[K";

void Print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

Progress::Progress(const Output& output, std::string label, std::function<std::string()> ask)
    : label_(std::move(label)), ask_(std::move(ask)), began_(steady_clock::now()) {
  if (output.stderr_is_terminal() && !output.json()) thread_ = std::thread([this] { Run(); });
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  ended_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Progress::Run() {
  bool shown = false;
  auto next = began_ + kPatience;
  std::unique_lock lock(mutex_);
  while (!ended_.wait_until(lock, next, [this] { return done_; })) {
    lock.unlock();
    std::string line = ask_ ? ask_() : std::string();
    if (line.empty()) {
      const auto elapsed = std::chrono::duration_cast<seconds>(steady_clock::now() - began_);
      line = fmt::format("{} {}", label_, FormatDuration(elapsed));
    }
    lock.lock();
    if (done_) break;
    Print(fmt::format("{}{}…", kClearLine, line));
    shown = true;
    next = steady_clock::now() + kPeriod;
  }
  if (shown) Print(kClearLine);
}

}  // namespace berth::cli
