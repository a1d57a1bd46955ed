// Publishes on their way to a volume's queue.
//
// Owned by the Mounter; loop thread only.
#pragma once

#include <list>
#include <string>
#include <utility>

#include "mounter/volume_record.h"

namespace berth {

// A publish waits for the identity of its consumer: it is in no queue yet.
struct Arriving {
  std::string volume_key;
  PublicationKey publication;
  bool superseded = false;  // an unpublish of it, or its consumer's end, came meanwhile

  // In the list as long as it lives.
  class Place {
   public:
    Place(std::list<Arriving>& list, Arriving arriving)
        : list_(list), at_(list.insert(list.end(), std::move(arriving))) {}
    ~Place() { list_.erase(at_); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    [[nodiscard]] const Arriving* operator->() const { return &*at_; }

   private:
    std::list<Arriving>& list_;
    std::list<Arriving>::iterator at_;
  };
};

}  // namespace berth
