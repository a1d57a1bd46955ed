#!/usr/bin/env bash
# FAULTS 20: the power goes at random moments, and with it what the disk had not flushed. At each boot every volume
# with an acknowledged publish is there: listed, and mounted with its data, by itself or after a repeat; what was
# acknowledged to have gone is gone; the journal is sound. Then volumes come and go until the power goes again.
#
# What was acknowledged is what the case has said, a line each, ended by "." for a line that was cut:
#   + NAME KIND HOW ID TARGET.   published, its data written and synced
#   - NAME.                      to be unpublished
#   = NAME.                      unpublished
#
# Without systemd: it is the disk that matters, and twenty boots take their time.
readonly CUTS=20
RANDOM=$SEED

if ((BOOT == 0)); then
  hostpath_file disk </dev/null
  sync
fi
berthd_start
# The power may go while all this is looked at, or while what comes after is done.
((BOOT % 4 != 3)) || power_may_go_within 16
eventually 180 plugin_ready disk

# publish NAME KIND HOW: at once or as a repeat, the same words. Prints the volume's id and the target.
publish() {
  local id target
  local -a more=()
  [[ $2 == directory ]] || more=(--fs ext4)
  id=$(berthctl volume create --plugin disk --size 16MiB --parameter "kind=$2" "${more[@]}" "$1")
  [[ $3 != remount ]] || more+=(--remount)
  target=$(berthctl volume publish --plugin disk --volume "$id" --consumer "job-$1" "${more[@]}")
  echo "$id $target"
}

declare -A kind_of=() how_of=() id_of=() target_of=() # of those that are there
declare -A leaving=()                                 # where that is not known
highest=0
while read -r what name kind how id target; do
  ((${name#v} <= highest)) || highest=${name#v}
  case $what in
    +) kind_of[$name]=$kind how_of[$name]=$how id_of[$name]=$id target_of[$name]=$target ;;
    -) leaving[$name]=1 ;;
    =) unset "kind_of[$name]" "leaving[$name]" ;;
  esac
done < <(said | sed -n 's/^\([-+=] v[0-9].*\)\.$/\1/p')

# What has to be there, is.
! node_problems | grep -i journal || fail 'the journal is not sound'
corrupt=$(find /var/lib/berth -maxdepth 1 -name 'journal.db.corrupt-*')
[[ -z $corrupt ]] || fail "the journal was damaged: $corrupt"
listed=$(berthctl volumes -o json)
mounted() { mountpoint -q "$1"; }
for name in "${!kind_of[@]}"; do
  [[ -z ${leaving[$name]:-} ]] || continue
  id=${id_of[$name]} target=${target_of[$name]}
  jq -e --arg id "$id" --arg consumer "job-$name" --arg target "$target" \
    '.volumes[] | select(.volume_id == $id) | .publications[]
     | select(.consumer == $consumer and .target_path == $target)' <<<"$listed" >/dev/null ||
    fail "$name (${kind_of[$name]}, ${how_of[$name]}) was published and is not listed: $listed"
  if [[ ${how_of[$name]} == repeat ]]; then
    ! mounted "$target" || fail "$name was mounted without a request"
    expect "what a repeat of the publish of $name gives" "$(publish "$name" "${kind_of[$name]}" repeat)" "$id $target"
  fi
  eventually 60 mounted "$target"
  expect "the data in $name (${kind_of[$name]})" "$(cat "$target/data")" "data of $name"
done
# What has gone is gone, and what was leaving has left or is there: either way it can leave now.
for name in "${!leaving[@]}"; do
  berthctl volume unpublish --plugin disk --volume "${id_of[$name]}" --consumer "job-$name" >/dev/null
  berthctl volume delete --plugin disk "${id_of[$name]}" >/dev/null
  unset "kind_of[$name]"
  echo "= $name."
done
expected=$(for name in "${!kind_of[@]}"; do echo "job-$name"; done | sort)
# There may be one more, with a publish that was not acknowledged: its number is the next.
unknown=job-v$((highest + 1))
got=$(berthctl volumes -o json | jq -r '.volumes[]?.publications[]?.consumer' | grep -vxF "$unknown" | sort || true)
expect 'the volumes that are there' "$got" "$expected"
echo "    boot $BOOT: ${#kind_of[@]} volumes are as they were acknowledged"

if ((BOOT == CUTS)); then
  ((highest > CUTS / 2)) || fail "only $highest volumes were published in $CUTS boots"
  name=v$((highest + 1)) kinds=(directory image) hows=(repeat remount)
  read -r id_of["$name"] _ < <(publish "$name" "${kinds[(highest + 1) % 2]}" "${hows[(highest + 1) / 2 % 2]}")
  for name in "${!id_of[@]}"; do
    berthctl volume unpublish --plugin disk --volume "${id_of[$name]}" --consumer "job-$name" >/dev/null
    berthctl volume delete --plugin disk "${id_of[$name]}" >/dev/null
  done
  berthctl doctor || fail 'berthctl doctor finds something'
  ! grep -F /var/lib/berth/volumes/ /proc/self/mountinfo || fail 'something is still mounted'
  expect 'loop devices that are left' "$(losetup --list --noheadings)" ''
  exit 0
fi

# The power may go before the first of these is done, or after some.
((BOOT % 4 == 3)) || power_may_go_within 16
while true; do
  count=${#kind_of[@]}
  if ((count >= 6 || (count > 2 && RANDOM % 3 == 0))); then
    names=("${!kind_of[@]}")
    name=${names[RANDOM % count]}
    echo "- $name."
    berthctl volume unpublish --plugin disk --volume "${id_of[$name]}" --consumer "job-$name" >/dev/null
    echo "= $name."
    berthctl volume delete --plugin disk "${id_of[$name]}" >/dev/null
    unset "kind_of[$name]"
  else
    highest=$((highest + 1))
    name=v$highest
    # By its number alone: what was half done when the power went is repeated with the same words.
    kinds=(directory image) hows=(repeat remount)
    kind_of[$name]=${kinds[highest % 2]} how_of[$name]=${hows[highest / 2 % 2]}
    read -r id_of["$name"] target_of["$name"] < <(publish "$name" "${kind_of[$name]}" "${how_of[$name]}")
    echo "data of $name" >"${target_of[$name]}/data"
    sync "${target_of[$name]}/data" "${target_of[$name]}"
    echo "+ $name ${kind_of[$name]} ${how_of[$name]} ${id_of[$name]} ${target_of[$name]}."
  fi
done
