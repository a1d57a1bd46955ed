#include "mounter/publication_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/printable.h"

namespace berth {
namespace {

// A scheduler that asks for what a caller has published keeps its books of it from then on.
bool TakesOver(const PublicationRecord& said, const PublicationRecord& known) {
  return said.origin == Origin::kScheduler && known.origin == Origin::kCaller;
}

// Only the file that declares a publication says where it is mounted too.
bool GivesPath(const PublicationRecord& said, const PublicationRecord& known) {
  return said.origin == Origin::kDeclared && known.origin == Origin::kDeclared && said.path != known.path;
}

}  // namespace

bool PublicationRecord::Writes(const VolumeUse& use) const {
  return !readonly && std::ranges::count(MountFlags(use), "ro") == 0;
}

bool PublicationRecord::Update(const PublicationRecord& said) {
  const bool taken_over = TakesOver(said, *this);
  const bool other_path = GivesPath(said, *this);
  const bool news = remount != said.remount || !(life == said.life) ||
                    secrets_reference != said.secrets_reference || consumer_labels != said.consumer_labels ||
                    taken_over || other_path;
  if (taken_over) {
    origin = said.origin;
    confirmed_at = said.confirmed_at;
  }
  remount = said.remount;
  life = said.life;
  secrets_reference = said.secrets_reference;
  consumer_labels = said.consumer_labels;
  if (other_path) {
    path = said.path;
    path_mounted = false;
    path_error.clear();
    // Written together with what else is news: then it is mounted without one more commit.
    if (path_made.path.empty()) path_made = said.path;
  }
  return news;
}

void PublicationRecord::RequestAgain(const PublicationRecord& said) {
  Update(said);
  blocked.clear();
  forward_blocked.clear();
  unconfirmed = false;
  if (said.confirmed_at) confirmed_at = said.confirmed_at;
  before_reboot = false;
  state = PublicationState::kPublishing;
  had_secrets = said.had_secrets;
  secrets_at_hand = said.secrets_at_hand;
}

bool PublicationRecord::RollBackRequest(const PublicationRecord& before) {
  // If it was a caller's before, a scheduler's confirmation means nothing.
  const bool confirmed = before.origin == Origin::kScheduler && confirmations != before.confirmations;
  RollBackUpdate(before);
  had_secrets = before.had_secrets;
  secrets_at_hand = secrets_at_hand && before.secrets_at_hand;
  before_reboot = before.before_reboot;
  // The request ended what blocked it. It is blocked again, unless it was confirmed or permitted since.
  forward_blocked = before.forward_blocked;
  unconfirmed = before.unconfirmed;
  blocked = before.blocked;
  if (!confirmed) confirmed_at = before.confirmed_at;
  confirmations = before.confirmations;
  return confirmed;
}

void PublicationRecord::RollBackUpdate(const PublicationRecord& before) {
  // What blocks it depends on who requested it.
  if (origin != before.origin) {
    forward_blocked = before.forward_blocked;
    unconfirmed = before.unconfirmed;
    confirmed_at = before.confirmed_at;
  }
  origin = before.origin;
  remount = before.remount;
  life = before.life;
  secrets_reference = before.secrets_reference;
  consumer_labels = before.consumer_labels;
  if (path != before.path) {
    path = before.path;
    path_made = before.path_made;
    path_mounted = before.path_mounted;
    path_error = before.path_error;
  }
}

void PublicationRecord::MarkPublished(WallTime now) {
  state = PublicationState::kPublished;
  uncertain = false;
  last_error.clear();
  ForgetHealth();
  secrets_at_hand = false;
  published_at = now;
}

void PublicationRecord::MarkUndone() {
  remount_after_undo = false;
  state = PublicationState::kPublishing;
  sent = false;
  uncertain = false;
  mount_id = 0;
  path_mount_id = 0;
  path_mounted = false;
  ForgetHealth();
}

void PublicationRecord::MarkLost(std::string error) {
  uncertain = true;
  ForgetHealth();  // it is of a mount that is not there any more
  last_error = std::move(error);
}

void PublicationRecord::MarkFound() {
  uncertain = false;
  before_reboot = false;
  blocked.clear();
  last_error.clear();
}

void PublicationRecord::ApplyVerdict(const absl::Status& verdict) {
  const bool is_dead = absl::IsUnavailable(verdict);
  const bool hangs = absl::IsDeadlineExceeded(verdict);
  const bool read_only = absl::IsFailedPrecondition(verdict);
  if (!verdict.ok() && !is_dead && !hangs && !read_only) return;
  // Not empty, whatever it says.
  const std::string why = verdict.message().empty() ? "it does not answer" : std::string(verdict.message());
  dead = is_dead ? why : "";
  hung = hangs ? why : "";
  writes_refused = read_only ? why : "";
}

void PublicationRecord::ForgetHealth() {
  dead.clear();
  hung.clear();
  writes_refused.clear();
}

bool PublicationRecord::NotePath() {
  if (!path_made.path.empty()) return false;
  path_made = path;
  return !path.path.empty();
}

void PublicationRecord::ForgetPath() {
  path_made = {};
  path_mount_id = 0;
  path_mounted = false;
  path_unguarded.clear();
}

void PublicationRecord::SetPathMounted(uint64_t id, std::string unguarded) {
  path_mounted = true;
  path_mount_id = id;
  path_unguarded = std::move(unguarded);
}

void PublicationRecord::DoubtPath(std::string error) {
  path_mounted = false;
  path_error = std::move(error);
}

void PublicationRecord::Undo() {
  state = PublicationState::kUnpublishing;
  blocked.clear();
  remount_after_undo = false;
  secrets_at_hand = false;
  uncertain = false;
}

void PublicationRecord::UndoAndRemount() {
  state = PublicationState::kUnpublishing;
  remount_after_undo = true;
  secrets_at_hand = false;
}

void PublicationRecord::MountAgain(std::string error) {
  uncertain = true;
  last_error = std::move(error);
  if (!ephemeral) return UndoAndRemount();
  state = PublicationState::kPublishing;
  secrets_at_hand = false;
}

std::optional<Blocked> PublicationRecord::BlockedBecause() const {
  using Reason = Blocked::Reason;
  if (!blocked.empty()) return Blocked{Reason::kRestart, blocked};
  if (state == PublicationState::kUnpublishing && !remount_after_undo) return {};
  if (unconfirmed) return Blocked{Reason::kUnconfirmed, forward_blocked};
  const bool well = state == PublicationState::kPublished && !uncertain && dead.empty();
  if (well || forward_blocked.empty()) return {};
  return Blocked{Reason::kNoLease, forward_blocked};
}

std::string Describe(const PublicationKey& key) {
  if (key.name.empty()) return fmt::format("consumer {}", Printable(key.consumer, 128));
  return fmt::format("consumer {}, name {}", Printable(key.consumer, 128), Printable(key.name, 128));
}

}  // namespace berth
