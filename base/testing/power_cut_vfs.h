// For tests: a VFS of SQLite that knows, for every file opened through it, what was synced and what was only
// written, so that a power cut can be made at any moment: a copy of the directory with what was not synced
// dropped, or with any part of it kept.
//
// Files are real ones; renames and removals by others are seen by the files' inodes, and count as durable at
// once (the journal syncs directories itself). The test is called for each sync, before and after, on the
// thread that syncs; one lock guards all.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>

namespace berth {

class PowerCutVfs {
 public:
  // Registers it, under a name of its own, until the end.
  PowerCutVfs();
  ~PowerCutVfs();
  PowerCutVfs(const PowerCutVfs&) = delete;
  PowerCutVfs& operator=(const PowerCutVfs&) = delete;

  [[nodiscard]] const std::string& name() const;

  // Called at each point where a cut makes a difference: after each write, before and after each sync.
  void OnPoint(std::function<void(const char* what)> told);
  // From the `n`th sync on (0: the next), `count` of them fail, and what they were to sync is lost with them:
  // as the kernel does it, the pages stay readable and count as clean.
  void FailSyncs(uint64_t n, uint64_t count);
  [[nodiscard]] uint64_t syncs() const;

  // What the disk may hold of `directory` if the power went now, written to `copy`, an empty directory: of
  // what was not synced nothing, or, with `random`, any subset of the writes, the last one perhaps torn.
  void Cut(const std::string& directory, const std::string& copy, std::minstd_rand* random) const;

 private:
  struct State;
  static State& Shared();
};

}  // namespace berth
