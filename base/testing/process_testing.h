// For the tests of processes: a loop, and a check that a test has reaped whatever it launched.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "base/testing/run_process.h"
#include "base/testing/test_bound.h"

namespace berth {

inline Awaitable<absl::Status> Ready(absl::Status status) { co_return status; }

class ProcessTest : public ::testing::Test {
 protected:
  ~ProcessTest() override {
    Run(reaper_.Join());
    // Whatever a test has launched, it has reaped.
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }

  template <class T>
  T Run(Awaitable<T> task) {
    std::future<T> result = asio::co_spawn(loop_, std::move(task), asio::use_future);
    loop_.restart();
    while (result.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      if (loop_.run_one_for(kTestBound) == 0) {
        ADD_FAILURE() << "nothing happened in time";
        abort();
      }
    }
    return result.get();
  }

  absl::StatusOr<std::unique_ptr<Process>> TryLaunch(ProcessSpec spec, Duration timeout = kTestBound) {
    return Run(Process::Launch(loop_.get_executor(), std::move(spec), Clock::now() + timeout));
  }

  std::unique_ptr<Process> Launch(ProcessSpec spec) {
    absl::StatusOr<std::unique_ptr<Process>> process = TryLaunch(std::move(spec));
    if (!process.ok()) {
      ADD_FAILURE() << process.status();
      abort();
    }
    return *std::move(process);
  }

  static ProcessSpec Shell(const std::string& script) {
    ProcessSpec spec;
    spec.executable = "/bin/sh";
    spec.arguments = {"-c", script};
    return spec;
  }

  // It is what it is from the start, where a shell would first have to become it.
  static ProcessSpec Sleep() {
    ProcessSpec spec;
    spec.executable = "/bin/sleep";
    spec.arguments = {"1000"};
    return spec;
  }

  absl::StatusOr<RunResult> RunShell(const std::string& script, std::string input = "", size_t limit = 4096,
                                     Duration timeout = kTestBound) {
    return Run(RunProcess(reaper_, Shell(script), std::move(input), limit, Clock::now() + timeout));
  }

  asio::io_context loop_;
  TaskScope reaper_{loop_.get_executor(), "reaper"};
};

}  // namespace berth
