# shellcheck shell=bash
# What both demos print their steps with. A demo that sources it defines `fail`.

now_ms() {
  local now=$EPOCHREALTIME
  printf '%s' "$((${now//[!0-9]/} / 1000))"
}
BEGAN_MS=$(now_ms)
readonly BEGAN_MS

# A line of the story, stamped with the time since the beginning.
say() {
  local ms=$(($(now_ms) - BEGAN_MS))
  printf '%4d.%02d s  %s\n' "$((ms / 1000))" "$((ms % 1000 / 10))" "$*"
}

# wait_for SECONDS WHAT COMMAND…: until the command succeeds.
wait_for() {
  local limit=$1 what=$2 end
  end=$(($(now_ms) + limit * 1000))
  shift 2
  until "$@"; do
    (($(now_ms) < end)) || fail "waited $limit s for $what"
    sleep 0.02
  done
}
