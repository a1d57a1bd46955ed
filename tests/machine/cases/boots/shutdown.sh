#!/usr/bin/env bash
# At a shutdown systemd stops berthd before it unmounts anything of the tree; berthd releases the declared volumes, and
# mounts nothing again. The same with another state directory, for which berthd writes the drop-ins itself. A plugin
# that hangs delays the shutdown by no more than volumes.shutdown_timeout.
#
#   boot 0  the packaged drop-ins; a unit uses a declared volume
#   boot 1  what the journal says of that; then another state directory, with mounts from before the drop-ins
#   boot 2  what the journal says of that; then a plugin that does not answer
#   boot 3  what the journal says of that
readonly UNIT_DIR=/etc/systemd/system

mounted() { mountpoint -q "$1"; }
published() { [[ $(volume_value "$1" .state) == PUBLISHED ]]; }
active() { systemctl is-active "$1"; }
mount_units() { systemctl list-units --all --plain --no-legend -t mount | awk '{ print $1 }' | grep -F -- "$1"; }

# declare_volume NAME: a declared ext4 image, and another one that a caller publishes, which a shutdown leaves to
# systemd. Sets TARGET, the declared one's, and TREE, the tree that it lies in.
declare_volume() {
  local id
  id=$(berthctl volume create --plugin disk --size 16MiB --parameter kind=image --fs ext4 "$1-caller")
  berthctl volume publish --plugin disk --volume "$id" --consumer caller --fs ext4 >/dev/null
  id=$(berthctl volume create --plugin disk --size 16MiB --parameter kind=image --fs ext4 "$1")
  printf 'plugin = "disk"\nvolume = "%s"\nfs_type = "ext4"\n' "$id" >"$CONFIG/volumes.d/$1.toml"
  berthctl reload --no-wait
  eventually 120 published "$id"
  TARGET=$(volume_value "$id" '.publications[0].target_path')
  mounted "$TARGET" || fail "$1 is not mounted"
  TREE=${TARGET%/*/publish/*}
}

# A unit that writes into $TARGET until it is stopped, and once more then.
use_it() {
  cat >"$UNIT_DIR/case-user.service" <<UNIT
[Unit]
After=berthd.service
[Service]
Type=exec
WorkingDirectory=$TARGET
ExecStart=/bin/sh -c 'trap "echo stopped >>data; exit 0" TERM; while :; do date >>data; sleep 1 & wait; done'
UNIT
  systemctl daemon-reload
  systemctl start case-user
  eventually 60 active case-user
}

# Every mount unit of the tree is stopped after berthd.
check_order() {
  local unit names
  names=$(mount_units "$(systemd-escape --path "$TREE")" | sort)
  (($(wc -l <<<"$names") >= 3)) || fail "there are not three mounts in the tree: $names"
  for unit in $names; do
    expect_match "the order of $unit" "$(systemctl show -P Before "$unit")" '\bberthd\.service\b'
  done
}

# line PATTERN: the number of the first line in $END that matches; seconds_of PATTERN: when it was written.
line() { grep -nE -m 1 "$1" <<<"$END" | cut -d: -f1 || true; }
seconds_of() { grep -E -m 1 "$1" <<<"$END" | sed -n 's/^\[ *\([0-9]*\)\..*/\1/p' || true; }

# check_end TREE: berthd had ended before the first mount of the tree was taken away, and mounted nothing.
check_end() {
  local ended unmounting
  # What was said in the last boot, in order, from where berthd began to stop.
  END=$(journalctl -b -1 --no-pager -o short-monotonic |
    awk '/stopping: Terminated/ { said = "" } { said = said $0 "\n" } END { printf "%s", said }')
  [[ $END == *'stopping: Terminated'* ]] || fail "berthd was not stopped in order: ${END: -3000}"
  ended=$(line 'berthd\.service: Deactivated')
  [[ -n $ended ]] || fail "berthd has not ended: $END"
  # "Unmounting" is systemd's own doing. What a caller published stays for it.
  unmounting=$(line "Unmounting .*$1/")
  [[ -n $unmounting ]] || fail "systemd has unmounted nothing: $END"
  ((unmounting > ended)) || fail "systemd unmounted before berthd had ended: $END"
  ! grep -E 'volume\.(published|staged|remounted|lost)|mounting it again' <<<"$END" ||
    fail 'something was mounted, or lost, once the shutdown had begun'
  TOOK=$(($(seconds_of 'berthd\.service: Deactivated') - $(seconds_of 'stopping: Terminated')))
  echo "    berthd took $TOOK s to stop"
}

case $BOOT in
  0)
    mkdir -p /var/log/journal "$CONFIG/volumes.d"
    systemctl restart systemd-journald
    journalctl --flush
    hostpath_file disk </dev/null
    systemctl enable --quiet --now berthd
    eventually 180 plugin_ready disk
    declare_volume one
    use_it
    check_order
    echo "$TREE $TARGET" >/var/lib/case-tree
    boot_again
    ;;
  1)
    read -r tree target </var/lib/case-tree
    check_end "$tree"
    ((TOOK < 60)) || fail "berthd took $TOOK s to stop"
    [[ -n $(line 'the declared volumes have been released') ]] || fail 'the declared volume was not released'
    eventually 180 mounted "$target"
    [[ $(tail -n 1 "$target/data") == stopped ]] || fail "the unit had lost its volume: $(cat "$target/data")"
    berthctl consumer ended caller
    # Another state directory. berthd writes the drop-ins; and once more, with mounts that are older than they are.
    mv "$CONFIG/volumes.d/one.toml" /var/lib/one.toml
    berthctl reload --no-wait
    gone() { ! mounted "$target"; }
    eventually 60 gone
    systemctl stop berthd 'berth-plugin-*.scope'
    printf 'state_dir = "/srv/other-state"\n' >"$CONFIG/berthd.toml"
    systemctl start berthd
    eventually 180 plugin_ready disk
    declare_volume two
    expect 'the tree' "$TREE" /srv/other-state/volumes
    check_order
    systemctl stop berthd
    unlink '/run/systemd/system/srv-other\x2dstate-volumes-.mount.d/10-berth.conf'
    systemctl daemon-reload
    systemctl start berthd
    check_order
    eventually 180 plugin_ready disk
    use_it
    echo "$TREE $TARGET" >/var/lib/case-tree
    boot_again
    ;;
  2)
    read -r tree target </var/lib/case-tree
    check_end "$tree"
    ((TOOK < 60)) || fail "berthd took $TOOK s to stop"
    eventually 180 mounted "$target"
    [[ $(tail -n 1 "$target/data") == stopped ]] || fail "the unit had lost its volume: $(cat "$target/data")"
    berthctl consumer ended caller
    unlink "$CONFIG/volumes.d/two.toml"
    berthctl reload --no-wait
    gone() { ! mounted "$target"; }
    eventually 60 gone
    systemctl stop berthd 'berth-plugin-*.scope'
    printf '[volumes]\nshutdown_timeout = "5s"\n' >"$CONFIG/berthd.toml"
    cat >"$CONFIG/plugins.d/disk.toml" <<TOML
kind = "monolith"
command = "/usr/bin/berth-fault-plugin"
args = ["--script", "/var/lib/case-script.toml", "--history", "/var/lib/case-history", "--endpoint", "\${CSI_ENDPOINT}",
        "--node-id", "\${BERTH_NODE_ID}", "--state-dir", "\${BERTH_PLUGIN_DIR}"]
TOML
    : >/var/lib/case-script.toml
    systemctl start berthd
    eventually 180 plugin_ready disk
    declare_volume three
    printf '[[rule]]\nname = "hangs"\nrpc = "NodeUnpublishVolume"\naction = "hang"\n' >/var/lib/case-script.new
    mv /var/lib/case-script.new /var/lib/case-script.toml
    echo "$TREE $TARGET" >/var/lib/case-tree
    boot_again
    ;;
  3)
    read -r tree target </var/lib/case-tree
    check_end "$tree"
    # Its own end takes some seconds on a slow machine.
    ((TOOK <= 25)) || fail "a plugin that hangs delayed the end of berthd by $TOOK s"
    expect_match 'what berthd said of it' "$END" \
      'volume\.not_released.*three\.toml.*NodeUnpublishVolume'
    : >/var/lib/case-script.toml
    eventually 180 mounted "$target"
    ;;
esac
