#!/usr/bin/env bash
# FAULTS 19: what volumes.d declares is released at an orderly shutdown, after the units that use it have stopped,
# and mounted again at the next boot without a caller; what a caller published is held then, until a caller says.
readonly UNIT_DIR=/etc/systemd/system
readonly AT_THE_END=/var/lib/at-the-end # what the witness found

mounted() { mountpoint -q "$1"; }
published() { [[ $(volume_value "$1" .state) == PUBLISHED ]]; }
create() { berthctl volume create --plugin disk --size 16MiB --parameter "kind=$2" "${@:3}" "$1"; }
# unit NAME ORDER COMMANDS: a unit that runs the commands when it is stopped.
unit() {
  printf '#!/bin/sh\n%s\n' "$3" >"/var/lib/$1"
  chmod +x "/var/lib/$1"
  cat >"$UNIT_DIR/$1.service" <<UNIT
[Unit]
$2
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
ExecStop=-/var/lib/$1
UNIT
}

if ((BOOT == 0)); then
  hostpath_file disk </dev/null
  systemctl enable --quiet --now berthd
  eventually 180 plugin_ready disk
  create dir directory >/var/lib/case-dir
  create img image --fs ext4 >/var/lib/case-img
  create other directory >/var/lib/case-other
  mkdir -p "$CONFIG/volumes.d"
  printf 'plugin = "disk"\nvolume = "%s"\nmode = "0750"\n' "$(cat /var/lib/case-dir)" >"$CONFIG/volumes.d/dir.toml"
  printf 'plugin = "disk"\nvolume = "%s"\nfs_type = "ext4"\n' "$(cat /var/lib/case-img)" >"$CONFIG/volumes.d/img.toml"
  berthctl reload --no-wait
  for name in dir img; do
    eventually 120 published "$(cat "/var/lib/case-$name")"
    volume_value "$(cat "/var/lib/case-$name")" '.publications[0].target_path' >"/var/lib/target-$name"
    mounted "$(cat "/var/lib/target-$name")" || fail "$name is not mounted"
    echo "data of $name" >"$(cat "/var/lib/target-$name")/data"
  done
  berthctl volume publish --plugin disk --volume "$(cat /var/lib/case-other)" --consumer other >/var/lib/target-other
  echo 'data of other' >"$(cat /var/lib/target-other)/data"

  # A restart of berthd touches no mount.
  before=$(grep -F /var/lib/berth/volumes/ /proc/self/mountinfo | sort)
  systemctl restart berthd
  eventually 120 plugin_ready disk
  expect 'the mounts after a restart of berthd' "$(grep -F /var/lib/berth/volumes/ /proc/self/mountinfo | sort)" "$before"

  # A unit that uses a declared volume, and still has it while it stops; and a witness that is stopped after berthd.
  img=$(cat /var/lib/target-img)
  unit case-user After=berthd.service "mountpoint -q $img && echo stopped >>$img/data"
  unit case-witness Before=berthd.service "grep -F /var/lib/berth/volumes/ /proc/self/mountinfo >$AT_THE_END
    losetup --list --noheadings >>$AT_THE_END
    journalctl -u berthd -o cat | tail -n 15 >>$AT_THE_END.log"
  systemctl daemon-reload
  systemctl start case-user case-witness
  boot_again
fi

# What was found when berthd had stopped.
[[ -e $AT_THE_END ]] || fail 'the shutdown was not orderly: the witness was not stopped'
for name in dir img; do
  ! grep -qF "$(cat "/var/lib/target-$name")" "$AT_THE_END" ||
    fail "$name was still mounted when berthd had stopped: $(cat "$AT_THE_END" "$AT_THE_END.log")"
done
! grep -q loop "$AT_THE_END" || fail "the image was still on its loop device: $(cat "$AT_THE_END")"
grep -qF "$(cat /var/lib/target-other)" "$AT_THE_END" || fail 'what a caller published was released, too'

# Without a caller.
for name in dir img; do
  eventually 180 mounted "$(cat "/var/lib/target-$name")"
  eventually 60 published "$(cat "/var/lib/case-$name")"
done
expect 'the data in dir' "$(cat "$(cat /var/lib/target-dir)/data")" 'data of dir'
expect 'the data in img' "$(cat "$(cat /var/lib/target-img)/data")" $'data of img\nstopped'
expect 'the mode of the root of dir' "$(stat -c %a "$(cat /var/lib/target-dir)")" 750
other=$(cat /var/lib/case-other)
! mounted "$(cat /var/lib/target-other)" || fail 'what a caller published was mounted without a caller'
[[ -n $(volume_value "$other" '.publications[0].blocked') ]] || fail "it is not held: $(berthctl volume show --plugin disk --volume "$other")"
expect 'the target of a repeat' \
  "$(berthctl volume publish --plugin disk --volume "$other" --consumer other)" "$(cat /var/lib/target-other)"
expect 'the data in other' "$(cat "$(cat /var/lib/target-other)/data")" 'data of other'
expect 'what is wrong with the node' "$(node_problems)" ''

# A file that goes takes its volume along; a stop of berthd alone takes nothing.
rm -f -- "$CONFIG/volumes.d/dir.toml"
berthctl reload --no-wait
gone() { ! mounted "$(cat /var/lib/target-dir)"; }
eventually 60 gone
systemctl stop berthd
mounted "$(cat /var/lib/target-img)" || fail 'a stop of berthd alone released a declared volume'
