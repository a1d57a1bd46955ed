#!/usr/bin/env bash
# A cluster, played for real: ./dev demo --cluster.
#
# One berth-scheduler and three nodes, each a berthd of its own with real plugins. They find each other and are
# listed. A volume that all three reach is claimed on one after another, and never on two. One of each kind is
# killed: the scheduler, a node's berthd, a plugin. Each line is printed after what it says was verified. A step that
# did not truly happen ends the demo with exit status 1 and the logs.
#
# All of it lives in namespaces of mounts and processes of its own, and on a tmpfs there: with the demo's end
# whatever is left of it is gone. Without root it plays in a user namespace.
set -euo pipefail

SELF=$(realpath "${BASH_SOURCE[0]}")
readonly SELF
readonly BIN=${BERTH_BIN:-${SELF%/tests/demo/cluster.sh}/build/dev/bin}
readonly SHARED_PLUGIN=${BIN%/bin}/tests/shared_plugin
readonly NODES=(node-1 node-2 node-3)

if [[ -z ${BERTH_DEMO_CLUSTER:-} ]]; then
  rights=()
  ((EUID == 0)) || rights=(--user --map-root-user)
  place=$(mktemp -d -p /tmp)
  status=0
  BERTH_DEMO_CLUSTER=$place unshare "${rights[@]}" --mount --propagation private --pid --fork --kill-child \
    --mount-proc "$SELF" "$@" || status=$?
  # What was mounted there has gone with the namespace.
  rmdir -- "$place"
  exit "$status"
fi

readonly DEMO=$BERTH_DEMO_CLUSTER
STEP='make a place'
declare -A PID # of the scheduler and of each node's berthd

# shellcheck source=tests/demo/story.sh
. "${SELF%/*}/story.sh"

show() { sed 's/^/            | /' | cut -c 1-120; }

fail() {
  printf '\nThe demo failed at: %s\n  %s\n' "$STEP" "$*" >&2
  exit 1
}

on_exit() {
  local status=$? log
  trap - EXIT
  if ((status != 0)); then
    for log in "$DEMO"/*.log; do
      printf -- '--- the end of %s\n' "${log##*/}" >&2
      tail -n 15 -- "$log" >&2
    done
  fi
  exit "$status"
}

cluster() { "$BIN/berthctl" --cluster "unix:$DEMO/scheduler.sock" --timeout 5s "$@" 2>/dev/null; }
node() { "$BIN/berthctl" --socket "$DEMO/$1/run/berthd.sock" --timeout 5s "${@:2}" 2>/dev/null; }

# answers FILTER WORDS…: whether the cluster's JSON answer satisfies jq's FILTER.
answers() { cluster "${@:2}" -o json | jq -e "$1" >/dev/null; }

are_connected() {
  answers "[.nodes[] | select(.connection == \"CONNECTED\" and .synced and .lease != null)] | length == $1" node list
}
are_ready() {
  answers "(.plugins | length == 2) and ([.plugins[] | .nodes_ready == $1 and .nodes == $2] | all)" plugin list
}
epoch() { node node-1 status -o json | jq -r '.scheduler.lease_epoch'; }
plugin_pid() { node "$1" plugin show hostpath -o json | jq -r 'select(.state == "READY" and .registered).pid'; }

# --- the parts ---------------------------------------------------------------------------------------------

launch_scheduler() {
  "$BIN/berth-scheduler" --config "$DEMO/scheduler.toml" </dev/null >>"$DEMO/scheduler.log" 2>&1 &
  PID[scheduler]=$!
  wait_for 20 'the scheduler to answer' cluster node list >/dev/null
}

make_node() {
  local home=$DEMO/$1
  mkdir -p "$home/etc/plugins.d"
  printf '[scheduler]\naddresses = ["unix:%s/scheduler.sock"]\n' "$DEMO" >"$home/etc/berthd.toml"
  cat >"$home/etc/plugins.d/hostpath.toml" <<TOML
id = "hostpath"
kind = "monolith"
command = "$BIN/berth-hostpath"
args = ["--endpoint", "\${CSI_ENDPOINT}", "--node-id", "\${BERTH_NODE_ID}", "--state-dir", "\${BERTH_PLUGIN_DIR}"]
TOML
  cat >"$home/etc/plugins.d/shared.toml" <<TOML
id = "shared"
kind = "monolith"
command = "$SHARED_PLUGIN"
args = ["$DEMO/store", "\${BERTH_NODE_ID}", "without-attach"]
TOML
}

launch_node() {
  local home=$DEMO/$1
  "$BIN/berthd" --config "$home/etc" --state-dir "$home/state" --runtime-dir "$home/run" --node-id "$1" \
    --allow-private-mounts </dev/null >>"$DEMO/$1.log" 2>&1 &
  PID[$1]=$!
}

# kill_hard NAME: kill -9, and it is gone.
kill_hard() {
  kill -KILL "${PID[$1]}"
  wait "${PID[$1]}" 2>/dev/null || true
}

# --- the story ---------------------------------------------------------------------------------------------

start() {
  local name
  STEP='start the scheduler'
  cat >"$DEMO/scheduler.toml" <<TOML
cluster_id = "demo"
state_dir = "$DEMO/scheduler"
listen = ["unix:$DEMO/scheduler.sock"]
[lease]
heartbeat_interval = "500ms"
duration = "5s"
TOML
  launch_scheduler
  say "berth-scheduler runs (pid ${PID[scheduler]}) and knows no node yet"
  STEP='start three nodes'
  for name in "${NODES[@]}"; do
    make_node "$name"
    launch_node "$name"
  done
  wait_for 30 'three nodes to be connected' are_connected 3
  wait_for 30 'the plugin to be ready on three nodes' are_ready 3 3
  say 'three nodes are connected, have leases, and have reported what they run:'
  cluster node list | show
  cluster plugin list | show
}

kill_scheduler() {
  STEP='kill the scheduler'
  local old=${PID[scheduler]} before began name
  claim web node-1 >/dev/null || fail 'node-1 does not get the volume'
  before=$(epoch)
  kill_hard scheduler
  for name in "${NODES[@]}"; do
    [[ -n $(plugin_pid "$name") ]] || fail "the plugin of $name is not ready any more"
  done
  say "kill -9 $old (the scheduler): the nodes and their plugins run on"
  began=$(now_ms)
  launch_scheduler
  wait_for 70 'three nodes to be connected again' are_connected 3
  (($(epoch) > before)) || fail "the new scheduler's epoch $(epoch) is not above $before"
  say "it is back (pid ${PID[scheduler]}); all three are connected again after $(($(now_ms) - began)) ms, under a new epoch"
  answers '.claims | length == 1 and .[0].consumer == "web" and .[0].mount != null' claim list ||
    fail 'the claim of web is not what it was'
  say 'web has claimed shop/orders on node-1, as before; no one else gets it:'
  is_refused batch node-2 web
  cluster volume release shop/orders --consumer web >/dev/null || fail 'the volume is not released'
}

# claim CONSUMER NODE: prints where the volume is, on that node.
claim() { cluster volume claim shop/orders --consumer "$1" --node "$2" --access single-node-writer; }

# The only consumer that may have the volume has it: all others get an error.
is_refused() {
  local answer
  answer=$("$BIN/berthctl" --cluster "unix:$DEMO/scheduler.sock" volume claim shop/orders --consumer "$1" --node "$2" 2>&1) &&
    fail "$1 got the volume on $2, too: $answer"
  [[ $answer == *"claimed by $3"* ]] || fail "the refusal does not name $3: $answer"
  printf '%s\n' "${answer%%$'\n'*}" | fold -s -w 100 | show
}

claim_volume() {
  STEP='claim a volume'
  local path there number name
  mkdir "$DEMO/store/volumes/orders"
  cluster volume register shop/orders --driver shared.berth.test --access single-node-writer >/dev/null ||
    fail 'the volume cannot be registered'
  path=$(claim web node-1) || fail 'node-1 does not get the volume'
  echo 'order 1' >"$path/orders"
  say 'web has claimed shop/orders on node-1, and writes there; batch asks for it on node-2:'
  is_refused batch node-2 web
  cluster volume release shop/orders --consumer web >/dev/null || fail 'the volume is not released'
  number=1
  for name in node-2 node-3; do
    there=$(claim "batch-$name" "$name") || fail "$name does not get the volume"
    number=$((number + 1))
    echo "order $number" >>"$there/orders"
    [[ $(wc -l <"$there/orders") == "$number" ]] || fail "an order is missing on $name: $(<"$there/orders")"
    cluster volume release shop/orders --consumer "batch-$name" >/dev/null || fail 'the volume is not released'
  done
  say "released, claimed on node-2, then on node-3: $number orders are there, and the storage has seen, in order:"
  show <"$DEMO/store/history"
  [[ $(<"$DEMO/store/history") == "publish orders node-1
unpublish orders node-1
publish orders node-2
unpublish orders node-2
publish orders node-3
unpublish orders node-3" ]] || fail 'that is another order'
}

kill_node() {
  STEP="kill a node's berthd"
  local old=${PID[node-2]} plugin
  claim web node-2 >/dev/null || fail 'node-2 does not get the volume'
  plugin=$(plugin_pid node-2)
  kill_hard node-2
  wait_for 30 'node-2 to be away' answers '.nodes[] | select(.name == "node-2").connection == "AWAY"' node list
  wait_for 30 'two of two nodes' are_ready 2 2
  say "kill -9 $old (berthd of node-2): the cluster sees it at once, and says nothing about its volumes:"
  cluster node show node-2 | show
  say 'web has claimed shop/orders there; no one else gets it:'
  is_refused batch node-3 web
  launch_node node-2
  wait_for 30 'three nodes to be connected' are_connected 3
  wait_for 30 'the plugin to be ready on three nodes' are_ready 3 3
  [[ $(plugin_pid node-2) == "$plugin" ]] || fail "the plugin was restarted: $plugin became $(plugin_pid node-2)"
  say "it is back (pid ${PID[node-2]}), and its plugin is the same process as before, pid $plugin; web still has:"
  cluster claim list | show
  cluster volume release shop/orders --consumer web >/dev/null || fail 'the volume is not released'
  cluster volume deregister shop/orders >/dev/null || fail 'the volume stays registered'
  say 'web has released it, and the volume is registered no more'
}

plugin_is_another() { [[ $(plugin_pid node-3) != "$1" ]] && [[ -n $(plugin_pid node-3) ]]; }

kill_plugin() {
  STEP='kill a plugin'
  local old
  old=$(plugin_pid node-3)
  kill -KILL "$old"
  wait_for 30 'the plugin of node-3 to be ready with a new pid' plugin_is_another "$old"
  wait_for 30 'the plugin to be ready on three nodes' are_ready 3 3
  say "kill -9 $old (the plugin of node-3): it is READY again as pid $(plugin_pid node-3), and the cluster has counted:"
  cluster plugin show hostpath.berth.dev | show
}

stop() {
  local name plugin status
  STEP='stop everything'
  for name in "${NODES[@]}"; do
    for plugin in hostpath shared; do
      node "$name" plugin stop "$plugin" >/dev/null || fail "the plugin $plugin of $name does not stop"
    done
    kill -TERM "${PID[$name]}"
  done
  kill -TERM "${PID[scheduler]}"
  for name in "${NODES[@]}" scheduler; do
    status=0
    wait "${PID[$name]}" || status=$?
    ((status == 0)) || fail "$name ended with exit status $status"
  done
  say 'all were asked to end, and have ended with exit status 0'
}

for program in "$BIN"/{berth-scheduler,berthd,berthctl,berth-hostpath} "$SHARED_PLUGIN"; do
  [[ -x $program ]] || fail "$program is not there: ./dev build"
done
trap on_exit EXIT
cd /
mount -t tmpfs -o mode=0755 berth-demo "$DEMO"
mkdir -p "$DEMO"/store/{volumes,attached}
start
claim_volume
kill_scheduler
kill_node
kill_plugin
stop
