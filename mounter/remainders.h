// Pending expansions of volumes that are not here: a volume's row in the journal goes with its last use, and
// what the node has still to expand is kept beside the rows until the next one.
//
//   row deleted ────────► remainder ──► first row of the next use: takes over what is owed
//   owed while not here ─────┘    └───► more than the limit: the oldest is forgotten, and told
//
// Owned by the MounterContext; loop thread only. No I/O: who changes it writes the rows that it returns, in
// the transaction of what the change is about. If that fails, what is remembered here goes to the disk with
// the volume's next remainder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace berth {

struct Remainder {
  std::string plugin_id;
  std::string volume_id;
  // NodeExpandVolume is owed: to this size; 0: it is not.
  int64_t owed_expansion_bytes = 0;

  [[nodiscard]] bool Nothing() const { return owed_expansion_bytes == 0; }
  bool operator==(const Remainder&) const = default;
};

class Remainders {
 public:
  // By the journal's key of the volume; empty: the row is to be deleted.
  using Rows = std::map<std::string, std::string>;

  explicit Remainders(std::string boot_id, size_t limit = 1024)
      : boot_id_(std::move(boot_id)), limit_(limit) {}

  // Told of each that is forgotten because there are too many.
  std::function<void(const Remainder&)> on_forgotten;

  // What the journal holds, once, at start. Returns the rows that hold no more: of another boot, beyond the
  // limit, or damaged (which is logged).
  [[nodiscard]] Rows Load(const Rows& rows);

  // Of this volume; Nothing() where nothing remains.
  [[nodiscard]] Remainder Of(const std::string& plugin_id, const std::string& volume_id) const;

  [[nodiscard]] std::vector<Remainder> All() const;

  // Puts `remainder` in the place of what remained of the volume. Returns the rows to write.
  [[nodiscard]] Rows Set(const Remainder& remainder);

  [[nodiscard]] size_t size() const { return kept_.size(); }

 private:
  struct Kept {
    Remainder remainder;
    uint64_t number = 0;  // a higher one came later
  };
  [[nodiscard]] std::string Encode(const Kept& kept) const;
  // Deletes the oldest beyond the limit, also from `rows`.
  void ForgetOldest(Rows* rows);

  std::string boot_id_;
  size_t limit_;
  uint64_t next_number_ = 1;
  std::map<std::string, Kept> kept_;
};

}  // namespace berth
