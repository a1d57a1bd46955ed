// Reports what changes of one volume: in events, to who shows it, and to who counts its users.
//
// Owned by the volume's actor; loop thread only. `context` and `machine` outlive it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "mounter/mounter_context.h"
#include "mounter/volume_machine.h"

namespace berth {

class VolumeReporter {
 public:
  // The consumer of `key`, which consisted of `life`, has ended, as `why` says.
  using OnConsumerEnded =
      std::function<void(const PublicationKey& key, const ConsumerLife& life, const std::string& why)>;

  // `key`: the volume's, in the journal.
  VolumeReporter(MounterContext& context, const VolumeMachine& machine, std::string key);

  // Emits an event of this volume, and reports its view.
  void Emit(std::string type, const std::string& consumer, std::string message) const;
  // The volume's view may be another one than before.
  void ReportView() const;
  // The view, and who uses the volume if that has changed: what it adds to Mounter::HeldThrough (it grows and
  // shrinks by one publication at a time, and a volume without any is an entry of its own), its consumers,
  // and what they consist of, which is watched.
  void ReportUsers(const OnConsumerEnded& on_ended);
  // Publications that need their secrets again, once.
  void ReportAwaitingSecrets();

 private:
  [[nodiscard]] size_t Uses() const {
    return machine_.present() ? machine_.record().publications.size() + 1 : 0;
  }
  [[nodiscard]] std::string WatchId(const PublicationRecord& publication) const;
  void ReportConsumers(const OnConsumerEnded& on_ended);

  MounterContext& context_;
  const VolumeMachine& machine_;
  std::string key_;
  // As they were reported last.
  size_t reported_uses_;
  bool reported_awaiting_secrets_ = false;
  std::set<std::string> reported_consumers_;
  std::map<std::string, ConsumerLife> watched_;
};

}  // namespace berth
