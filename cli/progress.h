// Shows the progress of long work at a terminal, on standard error: "NodeStageVolume 12s…", after two
// seconds, once a second, and erases it when the work is done. Prints nothing if standard error is not a
// terminal.
//
// Made and destroyed by the thread that waits for the work; prints from a thread of its own, on which `ask`
// is called too. The destructor joins it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "cli/output.h"

namespace berth::cli {

class Progress {
 public:
  // `ask` says what runs now and for how long; while it says nothing, `label` and the whole time are shown.
  Progress(const Output& output, std::string label, std::function<std::string()> ask = nullptr);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void Run();

  const std::string label_;
  const std::function<std::string()> ask_;
  const std::chrono::steady_clock::time_point began_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace berth::cli
