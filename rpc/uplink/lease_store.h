// What a node must know of leases when berthd starts again:
//
//   <state_dir>/scheduler/
//     lease_epoch         "epoch 17 2 <checksum>": the highest epoch ever heard of, its number of digits and
//                         their checksum. On the disk before it is obeyed. An operator writes "17".
//     lease_epoch.spare   Where the next one is written before the two change places: a file that has its
//                         blocks already, so that a new scheduler is obeyed, and may have volumes released,
//                         on a disk that is full.
//   <runtime_dir>/lease   "<boot id> 17 <nanoseconds> <nanoseconds>": the last lease, when it ends, and since
//                         when there has been one without a break, by BootClock. In memory (tmpfs): it
//                         outlives berthd and not the boot, as that clock does.
//
// A lease that is damaged or impossible counts as no lease, which is reported: what a scheduler has requested
// then waits for its confirmation. A damaged epoch is different: it is not known which scheduler the node
// obeys. The file stays as it is until an operator writes the epoch (0: none) into it, as a line. A file that
// was shortened is damaged: neither form is the beginning of the other or of itself.
//
// Blocks for the local disk only. Any thread.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "rpc/uplink/lease.h"

namespace berth {

class LeaseStore {
 public:
  // `boot_id`: of this boot (BootId()).
  LeaseStore(std::string state_dir, std::string runtime_dir, std::string boot_id)
      : state_dir_(std::move(state_dir)),
        runtime_dir_(std::move(runtime_dir)),
        boot_id_(std::move(boot_id)),
        writer_(std::make_shared<Writer>()) {}

  struct Kept {
    uint64_t highest_epoch = 0;
    // There is no file with an epoch: none was ever obeyed, or the file was lost.
    bool epoch_missing = false;
    // Why the epoch cannot be known: "/…/lease_epoch is empty". Empty: it is known, or missing.
    std::string epoch_problem;
    // Of this boot, and of no higher epoch. It may be over. Where the
    // epoch is not known: of any.
    std::optional<Lease::Term> lease;
    std::vector<std::string> problems;  // what else was found damaged, a sentence each
  };
  // `now`: none that ends later than a lease given now could is believed. Changes nothing.
  [[nodiscard]] Kept Load(BootTime now) const;
  // For people.
  [[nodiscard]] std::string EpochPath() const { return state_dir_ + "/scheduler/lease_epoch"; }

  // Makes the directory and the spare file. An error harms nothing, unless the disk is full by then.
  [[nodiscard]] absl::Status Reserve() const;
  // Once it returns OK this epoch, or a higher one, outlives a power cut. One at a time, of all copies of
  // this store: a thread that was left behind in it changes nothing that a later one has written.
  [[nodiscard]] absl::Status WriteEpoch(uint64_t epoch) const;
  // Whole after a crash of berthd.
  [[nodiscard]] absl::Status WriteLease(const Lease::Term& lease) const;

 private:
  struct Writer {
    std::mutex mutex;
    uint64_t newest = 0;  // of this run
  };

  [[nodiscard]] absl::StatusOr<UniqueFd> OpenSpare() const;
  [[nodiscard]] std::string SparePath() const { return EpochPath() + ".spare"; }
  [[nodiscard]] std::string LeasePath() const { return runtime_dir_ + "/lease"; }

  std::string state_dir_;
  std::string runtime_dir_;
  std::string boot_id_;
  std::shared_ptr<Writer> writer_;
};

}  // namespace berth
