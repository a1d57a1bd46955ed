#!/usr/bin/env bash
# FAULTS 18 and 19: a journal of a newer berthd is refused, and left as it is. What was to be unpublished when the machine
# went down has no mount after it, and is nevertheless unpublished and unstaged with the plugin.
readonly FAULTS=/run/case-faults.toml # gone with the boot, and its faults with it
readonly HISTORY=/var/lib/case-history.jsonl
readonly JOURNAL=/var/lib/berth/journal.db

# effects RPC: how often the plugin has had its effect.
effects() { jq -rs --arg rpc "$1" '[.[] | select(.event == "effect" and .rpc == $rpc)] | length' "$HISTORY"; }
gone() { [[ $(berthctl volumes -o json | jq '.volumes | length') == 0 ]]; }

if ((BOOT == 0)); then
  : >"$FAULTS"
  plugin_file disk <<TOML
kind = "monolith"
command = "/usr/bin/berth-fault-plugin"
args = ["--script", "$FAULTS", "--history", "$HISTORY", "--endpoint", "\${CSI_ENDPOINT}",
  "--node-id", "\${BERTH_NODE_ID}", "--state-dir", "\${BERTH_PLUGIN_DIR}"]
TOML
  systemctl enable --quiet --now berthd
  eventually 180 plugin_ready disk
  id=$(berthctl volume create --plugin disk --size 16MiB --fs ext4 unwanted)
  echo "$id" >/var/lib/case-id
  berthctl volume publish --plugin disk --volume "$id" --consumer job --fs ext4 >/dev/null

  # The number of the schema is in the file's header; 64 is more than any.
  systemctl stop berthd
  version=$(od -An -tu1 -j63 -N1 "$JOURNAL" | tr -d ' ')
  printf '\x40' | dd of="$JOURNAL" bs=1 seek=63 conv=notrunc status=none
  sum=$(sha256sum "$JOURNAL")
  ! berthd --config "$CONFIG" >/run/berthd-newer.log 2>&1 || fail 'it runs on the journal of a newer one'
  grep -q 'newer berthd' /run/berthd-newer.log || fail "it does not say why: $(cat /run/berthd-newer.log)"
  expect 'the journal of a newer berthd' "$(sha256sum "$JOURNAL")" "$sum"
  # shellcheck disable=SC2059 # an octal number
  printf "\\$(printf %o "$version")" | dd of="$JOURNAL" bs=1 seek=63 conv=notrunc status=none
  systemctl start berthd
  eventually 180 plugin_ready disk
  expect 'the volume with its own journal' "$(volume_value "$id" .state)" PUBLISHED

  cat >"$FAULTS.new" <<'TOML'
[[rule]]
name = "cannot be unpublished in this boot"
rpc = "NodeUnpublishVolume"
action = "fail"
code = "UNAVAILABLE"
TOML
  mv "$FAULTS.new" "$FAULTS"
  ! berthctl --timeout 3s volume unpublish --plugin disk --volume "$id" --consumer job 2>/dev/null ||
    fail 'it was unpublished'
  expect 'what the plugin has undone' "$(effects NodeUnpublishVolume) $(effects NodeUnstageVolume)" '0 0'
  boot_again
fi

: >"$FAULTS"
! grep -F /var/lib/berth/volumes/ /proc/self/mountinfo | grep -F /target || fail 'something is mounted'
berthctl plugin restart disk >/dev/null 2>&1 || true # it may be waiting for its script
eventually 180 plugin_ready disk
eventually 120 gone
expect 'what the plugin has undone' "$(effects NodeUnpublishVolume) $(effects NodeUnstageVolume)" '1 1'
berthctl volume delete --plugin disk "$(cat /var/lib/case-id)" >/dev/null
expect 'loop devices that are left' "$(losetup --list --noheadings)" ''
berthctl doctor || fail 'berthctl doctor finds something'
