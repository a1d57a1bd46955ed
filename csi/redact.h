// Keeping secrets out of what is shown, logged or stored, driven by the csi_secret option of the proto: a
// field that a later version of CSI marks secret is covered without a change here.
//
// Pure; any thread.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>

namespace berth {

class SecretSet;

// Deeper than any message of CSI's or ours lies.
inline constexpr int kMaxMessageDepth = 32;

// Whether `field` holds mount options, which are as sensitive as secrets and not marked so: drivers are given
// password=… in them. Berth's own messages use CSI's name for them.
[[nodiscard]] bool HoldsMountFlags(const google::protobuf::FieldDescriptor* field);

// Empties every csi_secret field in `message`, at any depth (map keys too: they may be secret), and every
// field that our proto does not know (it may be a secret of a later one). What lies deeper than any message
// of CSI's or ours is cleared whole.
void StripSecrets(google::protobuf::Message* message);

// One line for logs: `message`, cut to `limit` bytes, made printable. "***stripped***" stands in place of
// secrets, and of what is as sensitive: mount flags, contexts of volumes and publishes, parameters. Where
// `secrets` is not null, what it knows is redacted in every other value too.
[[nodiscard]] std::string DebugLine(const google::protobuf::Message& message, size_t limit = 2048,
                                    const SecretSet* secrets = nullptr);

}  // namespace berth
