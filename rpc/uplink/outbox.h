// What is still to be sent to the scheduler about the objects on this node: the resume logic of the link.
//
// Level-triggered: the outbox holds no messages, only for each object the number of its newest change. The
// object's state at the moment of sending is sent, so ten thousand changes without a stream cost no more than
// one, and memory is bounded by the objects that there are and kTombstones that were.
//
//   changes   1   2   3   4   5   6   7          an object moves to the end whenever it changes
//   objects   .   A   .   B   †C  .   D
//                     ▲ sent: all up to here has left on this stream
//
// A new stream goes on at the scheduler's position (Welcome.have), if that is of this run of berthd and no
// removal since has been forgotten; else it begins with everything.
//
// Pure: no I/O, no clock. Loop thread only.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace berth {

struct ObjectKey {
  enum class Kind { kNode, kPlugin, kVolume, kEndedConsumer, kForcedRelease };
  Kind kind = Kind::kNode;
  std::string plugin_id;  // kPlugin, kVolume
  std::string volume_id;  // kVolume
  uint64_t number = 0;    // kEndedConsumer, kForcedRelease

  auto operator<=>(const ObjectKey&) const = default;
};

class Outbox {
 public:
  // How many removed objects are remembered.
  static constexpr size_t kTombstones = 4096;

  // There is such an object, and it may look different now.
  void Changed(const ObjectKey& key);
  // It does not exist any more. Does nothing if it did not exist.
  void Removed(const ObjectKey& key);
  // The same if the scheduler knows of the end, since it requested it.
  void Forget(const ObjectKey& key);

  // A stream begins, with a scheduler that has everything up to `have` (a revision of this run; unset:
  // nothing).
  void Begin(std::optional<uint64_t> have);

  // The next thing to send, which counts as sent from now on; nullopt: all has been sent.
  struct Change {
    ObjectKey key;
    bool removed = false;
  };
  [[nodiscard]] std::optional<Change> Next();

  // The stream is one that begins with everything, and nothing of it has been sent yet.
  [[nodiscard]] bool at_full_start() const { return full_ && !begun_; }
  [[nodiscard]] bool caught_up() const;
  // What has been sent covers all changes up to this one: State.revision.
  [[nodiscard]] uint64_t sent() const { return sent_; }

  // Those that are, and those that were.
  [[nodiscard]] size_t remembered() const { return objects_.size(); }

 private:
  void BeginWithEverything();

  std::map<ObjectKey, uint64_t> objects_;  // those that are, and tombstones: their newest change
  std::map<uint64_t, Change> changes_;     // the same by change
  std::set<uint64_t> tombstones_;          // which of them are removals
  uint64_t last_ = 0;                      // change
  uint64_t forgotten_ = 0;                 // the newest change that was a removal and is remembered no more
  uint64_t sent_ = 0;
  bool full_ = true;
  bool begun_ = false;
  uint64_t full_until_ = 0;  // with `full_`: removals up to this one are not worth telling
};

}  // namespace berth
