// What the checks of several requests share: the list of what is wrong with a request, and capabilities.
//
// Pure; any thread.
#pragma once

#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <google/protobuf/map.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "berth/v1/node.pb.h"
#include "mounter/volume_types.h"

namespace berth {

// Collects what is wrong with one request.
class Mistakes {
 public:
  using StringMap = google::protobuf::Map<std::string, std::string>;

  // Fields that are added while this lives are led by `prefix`, such as "publish.request.".
  class Within {
   public:
    Within(Mistakes& mistakes, std::string_view prefix) : mistakes_(mistakes), before_(mistakes.prefix_) {
      mistakes.prefix_ += prefix;
    }
    ~Within() { mistakes_.prefix_ = before_; }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    Mistakes& mistakes_;
    const std::string before_;
  };

  void Add(std::string_view field, std::string_view what);

  void Length(std::string_view field, const std::string& value, size_t limit);
  void Required(std::string_view field, const std::string& value, size_t limit);
  // Names that people and terminals see.
  void PlainText(std::string_view field, const std::string& value);
  // A path that berthd is to open.
  void AbsolutePath(std::string_view field, const std::string& path);
  void Map(std::string_view field, const StringMap& map);
  void Volume(const std::string& plugin_id, const std::string& volume_id);
  void Capacity(int64_t required, int64_t limit);
  void FsType(std::string_view field, const std::string& fs_type);
  // What is wrong with a flag is said without the flag.
  template <class Flags>
  void MountFlags(std::string_view field, const Flags& flags) {
    size_t bytes = 0;
    bool empty = false;
    for (const std::string& flag : flags) {
      bytes += flag.size();
      empty = empty || flag.empty();
    }
    CheckFlags(field, bytes, empty);
  }

  [[nodiscard]] size_t size() const { return found_.size(); }
  // OK, or INVALID_ARGUMENT with all of it.
  [[nodiscard]] absl::Status ToStatus() const;

 private:
  void CheckFlags(std::string_view field, size_t bytes, bool empty);

  std::string prefix_;
  std::vector<std::string> found_;
};

// What `check` makes of the request, or every mistake in it.
template <class Request, class Check>
auto CheckWhole(const Request& request, const Check& check)
    -> absl::StatusOr<decltype(check(request, std::declval<Mistakes&>()))> {
  Mistakes mistakes;
  auto checked = check(request, mistakes);
  if (absl::Status status = mistakes.ToStatus(); !status.ok()) return status;
  return checked;
}

// `field` leads the paths in messages.
[[nodiscard]] VolumeUse CheckCapability(const std::string& field, const v1::Capability& capability,
                                        Mistakes& mistakes);

}  // namespace berth
