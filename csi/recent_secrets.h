// Values of secrets that a plugin was given of late, in its mount flags too, so that they can be kept out of
// its log and its errors: some drivers print their requests, or the environment they were started with, and
// quote the options of a mount that failed.
//
// Owned by main. Any thread: fed on the loop (by the CSI client before a request leaves, by the launch before
// the plugin runs), asked by the thread that reads the logs. Values are never printed.
//
//   a call is sent ──▶ in flight: known until its end, ──▶ at rest: known until it ages, or until others
//                      however many they are               take its place (RecentSecretsLimits)
//
// A value is recognised in four forms: as it is, as JSON writes it, percent-encoded, and as base64 of all of
// it; of one with several lines each line, but for base64. Values below 4 bytes are ignored: they would
// blacken everything. No form holds a line feed, so none spans two lines.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace berth {

// What to look for, unchanging: one plugin's secrets at one moment. Any thread.
class SecretSet {
 public:
  // No pattern is longer.
  static constexpr size_t kMaxPattern = 8192;

  SecretSet() = default;
  // Takes values as they are; makes their other forms.
  explicit SecretSet(const std::vector<std::string_view>& values);

  [[nodiscard]] bool empty() const { return patterns_.empty(); }

  // Where secrets lie in `text`, in order, as [begin, end), none touching another.
  using Ranges = std::vector<std::pair<size_t, size_t>>;
  [[nodiscard]] Ranges Find(std::string_view text) const;

  // Overwrites each of them with asterisks of the same length.
  void Redact(char* text, size_t size) const;
  [[nodiscard]] std::string Redacted(std::string text) const;

 private:
  static constexpr size_t kBuckets = 65536;
  void Add(std::string_view pattern);
  void AddValue(std::string_view value);
  void Finish();

  std::vector<std::string> patterns_;                   // by bucket, then longest first
  std::vector<uint64_t> used_;                          // a bit for each bucket in use
  std::vector<std::pair<uint32_t, uint32_t>> buckets_;  // bucket and its first pattern, sorted
};

struct RecentSecretsLimits {
  // At rest, for each plugin; beyond, what was used longest ago is forgotten.
  size_t values = 128;
  size_t bytes = size_t{64} * 1024;
  Duration age = std::chrono::hours(1);  // after the last use
};

class RecentSecrets {
 public:
  explicit RecentSecrets(RecentSecretsLimits limits = {});
  ~RecentSecrets();
  RecentSecrets(const RecentSecrets&) = delete;
  RecentSecrets& operator=(const RecentSecrets&) = delete;

  // What one call carries in confidence. Never forgotten while this lives, whatever else comes, ages, or is
  // forgotten meanwhile: the plugin has it in its hands, and may say it at any moment. From its end on it is
  // at rest. May outlive the RecentSecrets.
  class InFlight {
   public:
    InFlight();
    ~InFlight();
    InFlight(InFlight&& other) noexcept;
    InFlight& operator=(InFlight&& other) = delete;

   private:
    friend class RecentSecrets;
    struct Call;
    std::unique_ptr<Call> call_;  // null: the call carries nothing of the kind
  };
  // To be called before the request leaves, and kept until its call has ended. It carries every value in its
  // csi_secret fields, at any depth, what may be one in its mount flags (csi/mount_flags.h), and those that
  // the caller knows to be `confidential`, wherever in the request they stand.
  [[nodiscard]] InFlight Carry(const std::string& plugin_id, const google::protobuf::Message& request,
                               const std::vector<std::string>& confidential = {});
  // What the plugin was launched with (files and credentials in its environment): it knows them for as long
  // as it runs, so they do not age. Replaces what was held for it before.
  void Hold(const std::string& plugin_id, const std::vector<std::string>& values);
  // The plugin is no more: what its last calls carry is forgotten with their ends.
  void Forget(const std::string& plugin_id);

  // What is in flight, at rest and held. Never null.
  [[nodiscard]] std::shared_ptr<const SecretSet> Of(const std::string& plugin_id,
                                                    TimePoint now = Clock::now()) const;

 private:
  struct Plugin;
  struct State;

  std::shared_ptr<State> state_;  // shared with the calls in flight
};

}  // namespace berth
