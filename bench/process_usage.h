// What a process costs: memory and CPU, as the kernel counts them, and processes of the bench's own.
//
// Any thread. Errors are the kernel's: NOT_FOUND where there is no such process.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace berth {

// Memory that no other process has mapped, in bytes. `clean` is mostly the program's own text if no other
// process runs it; the kernel can drop that and read it again.
struct PrivateMemory {
  double dirty = 0;
  double clean = 0;
};
[[nodiscard]] absl::StatusOr<PrivateMemory> ReadPrivateMemory(pid_t pid);

// The most that was resident at once since ResetPeak, or since it was started, in bytes.
[[nodiscard]] absl::StatusOr<double> PeakResident(pid_t pid);
[[nodiscard]] absl::Status ResetPeak(pid_t pid);

// CPU time of all its threads, those that have ended among them, in seconds.
[[nodiscard]] absl::StatusOr<double> CpuTime(pid_t pid);

// Lets `duration` pass; UNAVAILABLE as soon as the process ends within it.
[[nodiscard]] absl::Status LetRun(pid_t pid, Duration duration);

// Lets the process run until it takes next to no CPU for 200 ms. DEADLINE_EXCEEDED after `bound`.
[[nodiscard]] absl::Status LetSettle(pid_t pid, Duration bound);

// A child of the bench's own, killed and reaped with its object. Its standard input is `stdin_fd`, its
// output and errors go to `output_fd`; it has no other descriptor. -1: /dev/null.
class Child {
 public:
  [[nodiscard]] static absl::StatusOr<Child> Start(std::vector<std::string> command, int stdin_fd,
                                                   int output_fd);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  // Waits for its end; its wait status. DEADLINE_EXCEEDED after `bound`.
  [[nodiscard]] absl::StatusOr<int> Wait(Duration bound);
  // SIGKILL, and waits for its end.
  void Kill();

 private:
  explicit Child(pid_t pid) : pid_(pid) {}
  pid_t pid_;  // -1: reaped
};

}  // namespace berth
