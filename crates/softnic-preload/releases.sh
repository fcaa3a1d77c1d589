#!/usr/bin/env bash
# The soft NIC under other releases of libibverbs: builds each from a checkout of
# rdma-core, then runs that release's own tools by both methods, and this
# crate's neighbour's tests of the data path, on it. One line per release.
#   releases.sh CHECKOUT [RELEASE ..]        called by `make releases`
set -euo pipefail
checkout=${1:?say where rdma-core is: make releases RDMA_CORE=path}
shift
[ $# -gt 0 ] || set -- v44.0 v50.0 v56.0 v57.0 v59.0 v62.0 v64.0
# softnic/src/abi.rs: NEWEST_RELEASE
newest=65
cargo=${CARGO:-cargo}
top=$(cd "$(dirname "$0")/../.." && pwd)
softnic=$top/target/debug/softnic
tests='--test verbs_objects --test verbs_traffic --test verbs_sending --test verbs_steering --test verbs_lifetimes'
missed=0

build() { # RELEASE FOLDER
  mkdir -p "$2/source" "$2/build"
  git -C "$checkout" archive "$1" | tar x -C "$2/source"
  cmake -S "$2/source" -B "$2/build" -DNO_PYVERBS=1 -DNO_MAN_PAGES=1 -DENABLE_STATIC=0
  make -C "$2/build" ibverbs ibv_devices ibv_devinfo
}

# Both tools by one method: what was seen, or what went wrong.
through() { # FOLDER METHOD
  local devices info
  devices=$("$softnic" exec --method "$2" -- "$1/build/bin/ibv_devices" 2>&1) || { tail -n 1 <<<"$devices"; return 1; }
  grep -q softnic0 <<<"$devices" || { echo "no device"; return 1; }
  info=$("$softnic" exec --method "$2" -- "$1/build/bin/ibv_devinfo" -v 2>&1) || { tail -n 1 <<<"$info"; return 1; }
  grep -q PORT_ACTIVE <<<"$info" && echo works || { echo "no active port"; return 1; }
}

printf '%-10s %-34s %-12s %-12s %s\n' release library plugin preload 'data path'
for release in "$@"; do
  folder=$top/target/releases/$release
  if [ ! -x "$folder/build/bin/ibv_devinfo" ] && ! { mkdir -p "$folder"; build "$release" "$folder" >"$folder/log" 2>&1; }; then
    echo "$release cannot be built: see $folder/log"; missed=1; continue
  fi
  export LD_LIBRARY_PATH=$folder/build/lib
  library=$(basename "$(readlink -f "$folder/build/lib/libibverbs.so.1")")
  number=$(cut -d . -f 5 <<<"$library")
  if [ "$number" -gt "$newest" ]; then
    # Too new to know: it must be refused, and by name.
    for kind in plugin preload; do
      said=$("$softnic" exec --method $kind -- "$folder/build/bin/ibv_devices" 2>&1 || true)
      refusal=$(grep -m 1 "private layout of libibverbs .*$library is not known" <<<"$said") || { refusal="NOT REFUSED: $said"; missed=1; }
    done
    printf '%-10s %-34s %s\n' "$release" "$library" "$refusal"
    continue
  fi
  plugin=$(through "$folder" plugin) || missed=1
  preload=$(through "$folder" preload) || missed=1
  # shellcheck disable=SC2086 # a list of options
  if ran=$("$cargo" test --locked --quiet --manifest-path "$top/Cargo.toml" --package softnic $tests 2>&1); then
    path="$(grep -o '[0-9]* passed' <<<"$ran" | awk '{ sum += $1 } END { print sum }') tests passed"
  else
    path="FAILED: $(grep -m 1 -E 'panicked|error' <<<"$ran")"; missed=1
  fi
  printf '%-10s %-34s %-12s %-12s %s\n' "$release" "$library" "$plugin" "$preload" "$path"
done
exit $missed
