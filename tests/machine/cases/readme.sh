#!/usr/bin/env bash
# README.md, "Use it, in five minutes", as it is written there. Left out: the package (./dev test --package does that),
# and the container. The programs of this machine are in /usr/local.
readonly SECTION='/^## Use it/,/^## Read on/p'

# The section's commands, without the remarks behind them.
commands() { sed -n "$SECTION" /payload/README.md | sed -nE 's/^# //p' | sed -E 's/ {2,}#.*//'; }
# The section's files, number N of them.
file() { sed -n "$SECTION" /payload/README.md | awk -v n="$1" '/^```toml/ { i++; next } /^```/ { in_it = 0 } i == n' | sed '/^```/,$d'; }
here() { sed -e "s#/usr/share/doc/#/usr/local/share/doc/#g" -e "s#/etc/berth#$CONFIG#g" -e "s#\bID\b#$id#g"; }

id=
run() {
  local command
  command=$(here <<<"$1")
  echo "    # $command"
  said=$(bash -c "$command" 2>&1) || fail "it failed: $said"
  printf '%s\n' "$said" | sed 's/^/    /'
}

systemctl start berthd
at_the_end=()
while IFS= read -r line; do
  case $line in
    ./dev*) continue ;;
    *podman*) line="berthctl volume mounts me --at /data --format podman" ;;
    *'volume unpublish'* | *'volume delete'*)
      at_the_end+=("$line")
      continue
      ;;
  esac
  run "$line"
  case $line in
    'berthctl plugins') expect_match 'the plugins' "$said" 'hostpath +monolith +READY' ;;
    *'volume create'*) id=$said ;;
    *'volume publish'*)
      mountpoint -q "$said" || fail "nothing is mounted at $said"
      expect_match 'the target' "$said" '^/var/lib/berth/volumes/'
      ;;
    'berthctl volumes' | *'volume list'* | *'volume explain'*) expect_match 'the volume' "$said" "$id" ;;
    *podman*) expect_match 'the mount' "$said" '^--mount type=bind,source=/var/lib/berth/volumes/.*,target=/data' ;;
  esac
done < <(commands)
[[ -n $id ]] || fail 'README.md has no volume create'
expect 'the commands that release it' "${#at_the_end[@]}" 2
run "${at_the_end[0]}"

# Declared.
file 1 | here >"$CONFIG/volumes.d/first.toml" || fail 'no directory for the volume file'
berthctl reload
published() { [[ $(volume_value "$id" .state hostpath) == PUBLISHED ]]; }
gone() { [[ -z $(berthctl volumes -o json | jq -r '.volumes[]?.volume_id') ]]; }
eventually 60 published
unlink "$CONFIG/volumes.d/first.toml"
berthctl reload
eventually 60 gone
run "${at_the_end[1]}"

# The file of another driver, but for the driver.
file 2 | sed "s#^command = .*#command = \"$(command -v berth-hostpath)\"#" >"$CONFIG/plugins.d/nfs.toml"
berthd --check --config "$CONFIG"
