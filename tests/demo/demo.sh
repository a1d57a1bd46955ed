#!/usr/bin/env bash
# Berth's story, played for real: ./dev demo [--keep] [--rootless], and ./dev demo --end DIRECTORY for one that
# was kept. demo.sh --check [--keep] [--rootless] only finds out whether it may mount: ./dev asks before it builds.
#
# A berthd of its own, on directories of its own, with one real plugin: a volume is made, published to two
# consumers and used; the plugin and berthd are killed, a mount is taken away, found missing, explained and
# repaired; a file declares a use of its own; the plugin is swapped while it is asked things; nothing is lost; the
# plugin is drained, everything is taken down again and nothing is left. Each line is printed after what it says
# was verified. A step that did not truly happen ends the demo with exit status 1, the step's name and the logs;
# what it made is removed then, too.
#
# Deletes by known names and rmdir alone: a file that it does not know of is something left behind, and a
# failure. (After a failure it removes its own directory as a whole, once nothing is mounted there.)
set -euo pipefail

SELF=$(realpath "${BASH_SOURCE[0]}")
readonly SELF
readonly BIN=${BERTH_BIN:-${SELF%/tests/demo/demo.sh}/build/dev/bin}
readonly VOLUME_NAME=demo-volume
readonly TEXT='made fast at berth one'

DEMO=     # our directory; everything that we make lies beneath it, so that it can be found again
KEEP=no   # --keep
KIND=ext4 # or directory, where there are no loop devices
STEP='looking around'
EXPLAINED=no # whether fail has said why
BERTHD_PID=
PLUGIN_PID=
LAUNCHED=no # whether berthd is our child

# --- telling -----------------------------------------------------------------------------------------------

# shellcheck source=tests/demo/story.sh
. "${SELF%/*}/story.sh"

# --- failing -----------------------------------------------------------------------------------------------

fail() {
  EXPLAINED=yes
  printf '\nThe demo failed at: %s\n  %s\n' "$STEP" "$*" >&2
  exit 1
}

show_log() {
  [[ -s $1 ]] || return 0
  printf -- '--- the end of %s\n' "${1#"$DEMO"/}" >&2
  tail -n "$2" -- "$1" >&2
}

on_exit() {
  local status=$?
  trap - EXIT
  if ((status != 0 && status != 130)) && [[ $EXPLAINED == no ]]; then
    printf '\nThe demo failed at: %s\n' "$STEP" >&2
  fi
  if ((status != 0)) && [[ -n $DEMO ]]; then
    show_log "$DEMO/berthctl.err" 5
    show_log "$DEMO/berthd.log" 30
    show_log "$DEMO/state/logs/hostpath.log" 15
    [[ $KEEP == ending ]] || take_down_by_force
  fi
  exit "$status"
}

# --- looking -----------------------------------------------------------------------------------------------

# Where something is mounted beneath our directory, outermost first.
our_mounts() { awk -v dir="$DEMO/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo; }

# Processes that were started for this demo: their command line names a directory in ours. (The patterns come
# as a file, so that grep does not find itself.)
our_processes() {
  grep -lsF -f <(printf '%s\n' "$DEMO/etc" "$DEMO/run" "$DEMO/state") /proc/[0-9]*/cmdline |
    sed 's|^/proc/\([0-9]*\)/.*|\1|' || true
}

our_loop_devices() {
  local file backing
  for file in /sys/block/loop*/loop/backing_file; do
    if { IFS= read -r backing <"$file"; } 2>/dev/null && [[ $backing == "$DEMO"/* ]]; then
      file=${file#/sys/block/}
      printf '/dev/%s\n' "${file%%/*}"
    fi
  done
}

is_mounted() { our_mounts | grep -qxF -- "$1"; }
is_gone() { [[ ! -d /proc/$1 ]] || [[ $(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) == Z ]]; }

berthctl() { "$BIN/berthctl" --socket "$DEMO/run/berthd.sock" "$@" 2>"$DEMO/berthctl.err"; }

plugin_field() { berthctl plugin show hostpath -o json | jq -r ".$1 // empty"; }

# Ready with a process other than $1.
plugin_ready_unlike() {
  local answer pid
  ! is_gone "$BERTHD_PID" || fail 'berthd ended'
  answer=$(berthctl plugin show hostpath -o json) || return 1
  pid=$(jq -r 'select(.state == "READY" and .registered) | .pid // empty' <<<"$answer")
  [[ -n $pid && $pid != "$1" ]] && PLUGIN_PID=$pid
}

# --- the way there -----------------------------------------------------------------------------------------

can_use_user_namespaces() { unshare --user --map-root-user --mount --propagation private true 2>/dev/null; }

# With root's rights the demo mounts in the mount namespace that it finds: so this does, too.
may_mount() {
  local directory result=0
  directory=$(mktemp -d /tmp/berth-demo-check.XXXXXX)
  mount -t tmpfs berth-demo "$directory" 2>/dev/null && umount -- "$directory" || result=1
  rmdir -- "$directory"
  return "$result"
}

# Gets the rights to mount, by the best means there is; starts over with them where need be. With "check" as $2 it only
# finds out whether there is a means.
gain_rights() {
  if [[ ${BERTH_DEMO_ROOTLESS:-} == entered ]]; then
    KIND=directory
    return
  fi
  if [[ $1 == no ]]; then
    if ((EUID == 0)); then
      ! may_mount || return 0
      echo 'Root may not mount here, so this demo tries a user namespace.'
    elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [[ -t 0 ]] && sudo -v; }; }; then
      exec sudo -- env BERTH_BIN="$BIN" "$SELF" "${ARGS[@]}"
    else
      echo 'Neither root nor sudo, so this demo tries a user namespace.'
    fi
  fi
  can_use_user_namespaces ||
    fail 'no right to mount: neither as root, nor by sudo, nor in a user namespace' \
      '(is user.max_user_namespaces 0, or is this a chroot?)'
  [[ $2 != check ]] || return 0
  echo 'It plays in a user namespace with directory volumes: no loop devices, so no ext4 and no capacity limit.'
  BERTH_DEMO_ROOTLESS=entered exec unshare --user --map-root-user --mount --propagation private \
    "$SELF" "${ARGS[@]}"
}

look_around() {
  local program
  for program in berthd berthctl berth-hostpath; do
    [[ -x $BIN/$program ]] || fail "$BIN/$program is not there: ./dev build"
  done
  if [[ $KIND == ext4 ]] && ! losetup --find >/dev/null 2>&1; then
    echo 'There are no loop devices here, so this demo uses directory volumes: no ext4 and no capacity limit.'
    KIND=directory
  fi
}

make_directories() {
  DEMO=$(mktemp -d /tmp/berth-demo.XXXXXX)
  mkdir "$DEMO/etc" "$DEMO/etc/plugins.d"
  cat >"$DEMO/etc/plugins.d/hostpath.toml" <<TOML
id = "hostpath"
kind = "monolith"
command = "$BIN/berth-hostpath"
args = ["--endpoint", "\${CSI_ENDPOINT}", "--node-id", "\${BERTH_NODE_ID}", "--state-dir", "\${BERTH_PLUGIN_DIR}"]
TOML
}

launch_berthd() {
  setsid "$BIN/berthd" --config "$DEMO/etc" --state-dir "$DEMO/state" --runtime-dir "$DEMO/run" \
    --node-id demo-node --allow-private-mounts </dev/null >>"$DEMO/berthd.log" 2>&1 &
  BERTHD_PID=$!
  LAUNCHED=yes
}

berthd_answers() {
  ! is_gone "$BERTHD_PID" || fail 'berthd ended'
  berthctl plugins >/dev/null
}

# --- the story ---------------------------------------------------------------------------------------------

start() {
  STEP='start berthd'
  local began
  began=$(now_ms)
  launch_berthd
  wait_for 20 'berthd to answer on its socket' berthd_answers
  say "berthd runs (pid $BERTHD_PID), answering after $(($(now_ms) - began)) ms"
  wait_for 20 'the plugin to be ready' plugin_ready_unlike none
  say "plugin hostpath is READY (pid $PLUGIN_PID): $(plugin_field fingerprint.driver_name), a CSI plugin like any other"
}

# What both create and publish ask for.
want_capability() {
  USE=()
  [[ $KIND != ext4 ]] || USE+=(--fs ext4)
}

create() {
  STEP='create a volume'
  local -a parameters=()
  local answer
  [[ $KIND == ext4 ]] || parameters=(--parameter kind=directory)
  answer=$(berthctl volume create --plugin hostpath --name "$VOLUME_NAME" --size 64MiB "${USE[@]}" "${parameters[@]}" \
    -o json)
  VOLUME=$(jq -r '.volume_id // empty' <<<"$answer")
  [[ -n $VOLUME ]] || fail 'the answer names no volume'
  mapfile -t CONTEXT < <(jq -r '.volume_context // {} | to_entries[] | "--context", "\(.key)=\(.value)"' <<<"$answer")
  say "volume created through the plugin's controller: 64 MiB, $KIND, $VOLUME"
  berthctl volume list --plugin hostpath -o json |
    jq -e --arg id "$VOLUME" '.volumes[] | select(.volume_id == $id) | .used_here | not' >/dev/null ||
    fail 'the storage does not list the volume, or says that it is used here'
}

# publish CONSUMER [OPTIONS…]: sets TARGET.
publish() {
  STEP="publish to $1"
  TARGET=$(berthctl volume publish --plugin hostpath --volume "$VOLUME" --consumer "$1" "${USE[@]}" "${CONTEXT[@]}" \
    "${@:2}")
  is_mounted "$TARGET" || fail "berthctl said '$TARGET', where the kernel shows no mount"
  [[ $KIND != ext4 || $(findmnt --noheadings --output FSTYPE --mountpoint "$TARGET") == ext4 ]] ||
    fail "$TARGET is mounted, but not as ext4"
}

holds_text() { [[ $(cat -- "$1/hello" 2>/dev/null) == "$TEXT" ]]; }

publish_and_use() {
  publish writer
  WRITER=$TARGET
  publish reader --readonly
  READER=$TARGET
  [[ $WRITER != "$READER" ]] || fail 'both consumers got the same target'
  say 'published to two consumers, "writer" and, read-only, "reader": one staged file system, two mounts'
  STEP='write through one consumer, read through the other'
  printf '%s\n' "$TEXT" >"$WRITER/hello"
  sync -- "$WRITER/hello"
  holds_text "$READER" || fail 'what the writer wrote, the reader does not see'
  ! { : >"$READER/scribble"; } 2>/dev/null || fail 'the reader can write'
  say "writer wrote a file; reader reads it, and may not write: \"$(cat -- "$READER/hello")\""
}

kill_plugin() {
  STEP='kill the plugin and wait for it to come back'
  local old=$PLUGIN_PID began
  began=$(now_ms)
  kill -KILL "$old"
  wait_for 20 'the plugin to be ready again, with a new pid' plugin_ready_unlike "$old"
  is_gone "$old" || fail "the old plugin, pid $old, still runs"
  holds_text "$READER" || fail 'the file is not readable any more'
  say "kill -9 $old (the plugin): READY again as pid $PLUGIN_PID after $(($(now_ms) - began)) ms; the file never left"
}

volume_is_known() {
  berthctl volumes -o json | jq -e --arg id "$VOLUME" --arg writer "$WRITER" --arg reader "$READER" '
    [.volumes[] | select(.volume_id == $id and .state == "PUBLISHED") | .publications[]
      | select(.state == "PUBLISHED") | .consumer + "=" + .target_path] | sort
    == ["reader=" + $reader, "writer=" + $writer]' >/dev/null
}

kill_berthd() {
  STEP='kill berthd'
  local old=$BERTHD_PID plugin=$PLUGIN_PID began
  kill -KILL "$old"
  wait "$old" 2>/dev/null || true
  if ! is_mounted "$WRITER" || ! is_mounted "$READER"; then fail 'the mounts went with berthd'; fi
  holds_text "$READER" || fail 'the file is not readable any more'
  ! is_gone "$plugin" || fail 'the plugin went with berthd'
  say "kill -9 $old (berthd): both mounts stay, the file is readable, the plugin runs on"

  STEP='start berthd again'
  began=$(now_ms)
  launch_berthd
  wait_for 20 'berthd to answer on its socket' berthd_answers
  wait_for 20 'the volume to be known' volume_is_known
  wait_for 20 'the plugin to be ready' plugin_ready_unlike none
  say "berthd is back (pid $BERTHD_PID) after $(($(now_ms) - began)) ms and knows the volume and both consumers"
  [[ $PLUGIN_PID == "$plugin" ]] || fail "the plugin was restarted: pid $plugin became $PLUGIN_PID"
  say "the plugin was taken back as it was, pid $PLUGIN_PID"
}

read_log() {
  STEP='read what the plugin wrote'
  local lines
  lines=$(berthctl plugin logs hostpath -n all -o json | jq -s '[.[].lines // [] | .[]] | length')
  berthctl plugin logs hostpath -n all | grep -q "NodeStageVolume $VOLUME" ||
    fail 'the line of the first process about staging the volume is not there'
  say "berthctl plugin logs: $lines lines of both its processes, also from while berthd was away; the last one:"
  berthctl plugin logs hostpath -n 1 | cut -c 1-110 | sed 's/^/            | /'
}

finds_reader_missing() {
  berthctl doctor -o json >"$DEMO/findings" && return 1
  jq -e '.findings[] | select(.consumer == "reader" and .code == "mount.missing")' "$DEMO/findings" >/dev/null
}

# An operator unmounts the reader's mount. It was not published with --remount, so berthd
# reports it, and a person decides.
lose_and_repair() {
  STEP='take a mount away'
  umount -- "$READER"
  wait_for 20 'doctor to find the mount missing' finds_reader_missing
  say "reader's mount was taken away by hand; berthctl doctor, exit status 4, without having changed anything:"
  jq -r '.findings[] | select(.repair != "")
    | "            | \(.severity) \(.code): \(.text)", "            | a repair would \(.repair)"' "$DEMO/findings"
  STEP='explain the volume'
  berthctl volume explain "$VOLUME" >"$DEMO/explained"
  grep -q '^remark .*reader' "$DEMO/explained" || fail 'nothing is said of the reader'
  say 'berthctl volume explain has it all in one view, beginning with:'
  sed -n '/^$/q; s/^/            | /p' "$DEMO/explained" | cut -c 1-120
  STEP='repair'
  berthctl doctor --repair --yes -o json >"$DEMO/findings" || true
  jq -e 'any(.findings[]?; .severity != "INFO" and (.repaired | not)) | not' \
    "$DEMO/findings" >/dev/null || fail "doctor --repair left something open: $(cat -- "$DEMO/findings")"
  is_mounted "$READER" || fail 'reader has no mount'
  holds_text "$READER" || fail 'the file is not readable'
  berthctl volume explain "$VOLUME" | grep -q '^verdict *nothing is wrong' || fail 'something is wrong still'
  say "berthctl doctor --repair: mounted again, nothing is wrong, and reader reads: \"$(cat -- "$READER/hello")\""
}

declared_is() {
  berthctl volumes -o json | jq -e --arg id "$VOLUME" --argjson wanted "$1" '
    ([.volumes[] | select(.volume_id == $id) | .publications[]
      | select(.consumer == "declared/demo" and .state == "PUBLISHED" and .origin == "DECLARED")] != []) == $wanted' \
    >/dev/null
}

declare_in_a_file() {
  STEP='declare the volume in a file'
  local file=$DEMO/etc/volumes.d/demo.toml target
  mkdir -p -- "$DEMO/etc/volumes.d"
  {
    printf 'plugin = "hostpath"\nvolume = "%s"\nreadonly = true\n' "$VOLUME"
    [[ $KIND != ext4 ]] || printf 'fs_type = "ext4"\n'
    printf '[context]\n'
    printf '%s\n' "${CONTEXT[@]}" | sed -n 's/^\([^=]*\)=\(.*\)/"\1" = "\2"/p'
  } >"$file"
  berthctl reload >/dev/null
  wait_for 20 'the declared volume to be published' declared_is true
  target=$(berthctl volume mounts declared/demo -o json | jq -r '.mounts[0].source_path')
  holds_text "$target" || fail 'the declared use has not the file'
  rm -f -- "$file"
  berthctl reload >/dev/null
  wait_for 20 'the declared volume to leave' declared_is false
  ! is_mounted "$target" || fail 'still mounted'
  say 'a file in volumes.d had it mounted once more, with no caller at all; the file went, and so did the mount'
}

unpublish() {
  STEP="unpublish from $1"
  berthctl volume unpublish --plugin hostpath --volume "$VOLUME" --consumer "$1" >/dev/null
}

# Asks the plugin for the volume's use until our file "asking" has gone; prints how often, and fails with the
# first call that does.
keep_asking() {
  local asked=0
  while [[ -e $DEMO/asking ]]; do
    "$BIN/berthctl" --socket "$DEMO/run/berthd.sock" volume stats --plugin hostpath --volume "$VOLUME" >/dev/null
    asked=$((asked + 1))
  done
  printf '%s' "$asked" >"$DEMO/asked"
}

swap_plugin() {
  STEP='swap the plugin'
  local old=$PLUGIN_PID began took asking asked
  : >"$DEMO/asking"
  keep_asking &
  asking=$!
  began=$(now_ms)
  # shellcheck disable=SC2016 # berthd fills them in
  berthctl plugin swap hostpath --command "$BIN/berth-hostpath" -- --endpoint '${CSI_ENDPOINT}' \
    --node-id '${BERTH_NODE_ID}' --state-dir '${BERTH_PLUGIN_DIR}' --log-level debug >/dev/null
  took=$(($(now_ms) - began))
  wait_for 20 'the new one to be ready' plugin_ready_unlike "$old"
  rm -f -- "$DEMO/asking"
  wait "$asking" || fail 'a call failed while the plugin was swapped'
  is_gone "$old" || fail "the old plugin, pid $old, still runs"
  holds_text "$READER" || fail 'the file is not readable any more'
  asked=$(<"$DEMO/asked")
  ((asked > 0)) || fail 'nothing was asked meanwhile'
  say "plugin swapped for one with other arguments in $took ms, pid $PLUGIN_PID; $asked calls meanwhile, none failed"
}

waits_for_reader_alone() {
  berthctl plugin show hostpath -o json | jq -e '.state == "DRAINING" and (.reason | contains("1 volume"))' >/dev/null
}

drain_plugin() {
  unpublish writer
  STEP='drain the plugin'
  local drain
  berthctl plugin drain hostpath >/dev/null &
  drain=$!
  wait_for 20 'the plugin to drain' waits_for_reader_alone
  ! berthctl volume publish --plugin hostpath --volume "$VOLUME" --consumer late "${USE[@]}" "${CONTEXT[@]}" \
    >/dev/null || fail 'a plugin that drains took a new consumer'
  say "plugin drains: nothing new, and it waits for \"reader\", who still reads: \"$(cat -- "$READER/hello")\""
  unpublish reader
  if is_mounted "$WRITER" || is_mounted "$READER"; then fail 'still mounted'; fi
  STEP='drain the plugin'
  wait "$drain" || fail 'the drain did not come to its end'
  is_gone "$PLUGIN_PID" || fail "the plugin, pid $PLUGIN_PID, still runs"
  [[ $(berthctl volumes -o json | jq '.volumes // [] | length') == 0 ]] || fail 'berthd still holds the volume'
  say 'reader left, the volume was unstaged, and the plugin has stopped'
}

delete() {
  STEP='start the plugin once more'
  berthctl plugin start hostpath >/dev/null
  wait_for 20 'the plugin to be ready' plugin_ready_unlike none
  STEP='delete the volume'
  berthctl volume delete --plugin hostpath --volume "$VOLUME" >/dev/null
  [[ -z $(our_loop_devices) ]] || fail "loop devices are left: $(our_loop_devices)"
  say 'volume deleted'
}

stop() {
  STEP='stop the plugin'
  berthctl plugin stop hostpath >/dev/null
  is_gone "$PLUGIN_PID" || fail "the plugin, pid $PLUGIN_PID, still runs"
  STEP='stop berthd'
  kill -TERM "$BERTHD_PID"
  wait_for 60 'berthd to end' is_gone "$BERTHD_PID"
  # One that was kept is not this shell's child, and its status not to be had.
  [[ $LAUNCHED == no ]] || wait "$BERTHD_PID" || fail "berthd ended with status $?"
  say 'plugin and berthd stopped'
}

# --- the way back ------------------------------------------------------------------------------------------

# Files and directories of a berthd and a berth-hostpath that hold nothing any more, by name.
remove_directories() {
  local name
  local plugin=state/plugins/hostpath
  for name in etc/plugins.d/hostpath.toml state/journal.db state/journal.db-wal state/journal.db-shm \
    state/journal.db.lock state/paths.lock state/events state/events.old run/berthd.lock run/event-number \
    state/logs/hostpath.log state/logs/hostpath.log.index state/swaps/hostpath.toml state/plugin-files.toml \
    $plugin/lock $plugin/hostpath.db $plugin/hostpath.db-wal $plugin/hostpath.db-shm \
    berthd.log berthctl.err volume asking asked findings explained; do
    rm -f -- "$DEMO/$name"
  done
  rm -f -- "$DEMO"/state/identities/*.json
  # An empty tree of volumes is immutable while nothing is mounted there.
  [[ ! -d $DEMO/state/volumes ]] || chattr -i -- "$DEMO/state/volumes" 2>/dev/null || true
  for name in etc/plugins.d etc/volumes.d etc state/declared state/identities $plugin/volumes $plugin/snapshots $plugin/trash $plugin state/plugins state/logs state/swaps \
    state/volumes state run/plugins/hostpath run/plugins run; do
    [[ ! -d $DEMO/$name ]] || rmdir --ignore-fail-on-non-empty -- "$DEMO/$name"
  done
  rmdir --ignore-fail-on-non-empty -- "$DEMO"
}

prove_nothing_is_left() {
  STEP='leave nothing behind'
  [[ -z $(our_mounts) ]] || fail "mounts are left: $(our_mounts | xargs)"
  [[ -z $(our_loop_devices) ]] || fail "loop devices are left: $(our_loop_devices | xargs)"
  [[ -z $(our_processes) ]] || fail "processes are left: $(our_processes | xargs)"
  remove_directories
  [[ ! -e $DEMO ]] || fail "files are left: $(find "$DEMO" -xdev \( ! -type d -o -empty \) -printf "%P ")"
  say 'nothing is left: no mount, no loop device, no process, no file'
}

# After a failure or an interruption.
take_down_by_force() {
  local each mounts
  # berthd first, so that it starts nothing again; awaited, so that the shell does not report its end.
  if [[ -n $BERTHD_PID ]]; then
    kill -KILL "$BERTHD_PID" 2>/dev/null || true
    wait "$BERTHD_PID" 2>/dev/null || true
  fi
  for each in $(our_processes); do
    kill -KILL "$each" 2>/dev/null || true
  done
  mapfile -t mounts < <(our_mounts | tac)
  for each in "${mounts[@]}"; do
    umount -- "$each" 2>/dev/null || umount --lazy -- "$each" || true
  done
  for each in $(our_loop_devices); do
    losetup --detach "$each" || true
  done
  if [[ -z $(our_mounts) ]]; then
    find "$DEMO" -xdev -delete # nothing is mounted in it
  else
    printf 'Something is still mounted; look after it: %s\n' "$(our_mounts | xargs)" >&2
  fi
}

say_what_to_try() {
  local enter=
  [[ ${BERTH_DEMO_ROOTLESS:-} != entered ]] ||
    enter="nsenter --target $BERTHD_PID --user --mount --preserve-credentials "
  cat <<TEXT

It keeps running. Try:
  alias b='$enter$BIN/berthctl --socket $DEMO/run/berthd.sock'
  b status; b plugins; b volumes; b events
  b volume stats --plugin hostpath --volume $VOLUME
  ${enter}ls -l $WRITER
End it, with everything in it:
  ./dev demo --end $DEMO
TEXT
}

# Releases and deletes every volume of a demo that was kept, and ends it.
end_kept() {
  STEP="end the demo in $1"
  [[ $1 == /tmp/berth-demo.* && -S $1/run/berthd.sock ]] || fail 'no demo runs there'
  if ((EUID != 0)) && [[ $(stat --format=%u -- "$1") == 0 ]]; then
    exec sudo -- env BERTH_BIN="$BIN" "$SELF" --end "$1"
  fi
  KEEP=ending # a failure leaves it as it is
  DEMO=$1
  # Its exit status says whether something is wrong.
  BERTHD_PID=$({ berthctl status -o json || true; } | jq -r '.pid')
  PLUGIN_PID=$(plugin_field pid)
  if [[ $(readlink "/proc/$BERTHD_PID/ns/mnt") != "$(readlink /proc/self/ns/mnt)" ]]; then
    exec nsenter --target "$BERTHD_PID" --user --mount --preserve-credentials env BERTH_BIN="$BIN" "$SELF" --end "$1"
  fi
  local volume consumer name
  while IFS=$'\t' read -r volume consumer name; do
    berthctl volume unpublish --plugin hostpath --volume "$volume" --consumer "$consumer" ${name:+--name "$name"} \
      >/dev/null
  done < <(berthctl volumes -o json | jq -r '
    (.volumes // [])[] | .volume_id as $id | .publications[] | [$id, .consumer, .name // ""] | @tsv')
  say 'every volume unpublished'
  for volume in $(<"$DEMO/volume"); do
    berthctl volume delete --plugin hostpath --volume "$volume" >/dev/null
  done
  say 'volume deleted'
  stop
  prove_nothing_is_left
  DEMO=
}

main() {
  local rootless=no mode=play argument
  ARGS=("$@")
  if [[ ${1:-} == --end && $# -eq 2 ]]; then
    end_kept "$2"
    return
  fi
  for argument in "$@"; do
    case $argument in
      --keep) KEEP=yes ;;
      --rootless) rootless=yes ;;
      --check) mode=check ;;
      *)
        echo "demo: no option '$argument'; there are --keep, --rootless and --end DIRECTORY" >&2
        exit 2
        ;;
    esac
  done
  trap on_exit EXIT
  trap 'exit 130' INT TERM HUP PIPE
  gain_rights "$rootless" "$mode"
  [[ $mode == play ]] || return 0
  look_around
  make_directories
  say "a separate node beneath $DEMO"
  want_capability
  start
  create
  publish_and_use
  kill_plugin
  kill_berthd
  lose_and_repair
  declare_in_a_file
  read_log
  swap_plugin
  if [[ $KEEP == yes ]]; then
    printf '%s\n' "$VOLUME" >"$DEMO/volume"
    say_what_to_try
    return
  fi
  drain_plugin
  delete
  stop
  prove_nothing_is_left
  DEMO=
}

main "$@"
