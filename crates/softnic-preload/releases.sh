#!/usr/bin/env bash
# The soft NIC under other releases of libibverbs: builds each from a checkout of
# rdma-core, then runs that release's own tools by every method, and tests of the
# data path, on it. One line per release. A release that is in target/releases
# already is not built again. Where its build has libmlx5, too, the method mlx5 is
# run: the tools, the tests, and the conformance suite against its record.
#   releases.sh CHECKOUT [RELEASE ..]        called by `make releases`
set -euo pipefail
checkout=${1:?say where rdma-core is: make releases RDMA_CORE=path}
shift
[ $# -gt 0 ] || set -- v44.0 v50.0 v56.0 v57.0 v59.0 v62.0 v64.0
# softnic-verbs/src/abi.rs: NEWEST_RELEASE
newest=65
cargo=${CARGO:-cargo}
top=$(cd "$(dirname "$0")/../.." && pwd)
softnic=$top/target/debug/softnic
record=$top/crates/conformance/src/libmlx5.tsv
modules='verbs_objects:: verbs_traffic:: verbs_sending:: verbs_steering:: verbs_lifetimes::'
missed=0

build() { # RELEASE FOLDER
  mkdir -p "$2/source" "$2/build"
  git -C "$checkout" archive "$1" | tar x -C "$2/source"
  cmake -S "$2/source" -B "$2/build" -DNO_PYVERBS=1 -DNO_MAN_PAGES=1 -DENABLE_STATIC=0
  make -C "$2/build" ibverbs ibv_devices ibv_devinfo
}

# Both tools by one method: what was seen, or what went wrong.
through() { # FOLDER METHOD DEVICE
  local devices info
  devices=$("$softnic" exec --method "$2" -- "$1/build/bin/ibv_devices" 2>&1) || { tail -n 1 <<<"$devices"; return 1; }
  grep -q "$3" <<<"$devices" || { echo "no device"; return 1; }
  info=$("$softnic" exec --method "$2" -- "$1/build/bin/ibv_devinfo" -v 2>&1) || { tail -n 1 <<<"$info"; return 1; }
  grep -q PORT_ACTIVE <<<"$info" && echo works || { echo "no active port"; return 1; }
}

# Tests of this repository on the release: how many passed, or the first problem.
passed() { # PACKAGE OPTION ..
  local package=$1 ran
  shift
  if ran=$("$cargo" test --locked --quiet --manifest-path "$top/Cargo.toml" --package "$package" "$@" 2>&1); then
    echo "$(grep -o '[0-9]* passed' <<<"$ran" | awk '{ sum += $1 } END { print sum }') tests"
  else
    echo "FAILED: $(grep -m 1 -E 'panicked|error' <<<"$ran")"; return 1
  fi
}

# The rows of the conformance suite by the method mlx5, compared with those that are recorded.
rows() { # FOLDER
  local said run same recorded
  said=$("$softnic" exec --method mlx5 --mtu 1500 --wire "link:releases-$$:a" -- "$top/target/debug/conformance" \
    --device mlx5_0 --link "releases-$$" --record "$1/answers.tsv" 2>&1) || { tail -n 1 <<<"$said"; return 1; }
  run=$(grep -vc '^#' "$1/answers.tsv")
  recorded=$(grep -vc '^#' "$record")
  same=$(LC_ALL=C comm -12 <(grep -v '^#' "$1/answers.tsv" | LC_ALL=C sort) <(grep -v '^#' "$record" | LC_ALL=C sort) | wc -l)
  echo "$run rows run, $same as recorded, $((run - same)) differ"
  [ "$same" = "$run" ] && [ "$same" = "$recorded" ]
}

# The method mlx5 with the release's own provider.
mlx5() { # FOLDER
  [ -e "$1/build/lib/libmlx5.so.1" ] || { echo 'not run: no libmlx5'; return 0; }
  # The library appends -rdmavNN.so.
  export IBV_DRIVERS=$1/build/lib/libmlx5
  local tools suite tests
  tools=$(through "$1" mlx5 mlx5_0) || { echo "$tools"; return 1; }
  suite=$(rows "$1") || { echo "$tools, $suite"; return 1; }
  # Without those that run the distribution's tools, which need the private version of its library.
  tests=$(passed softnic-preload --test it -- mlx5:: --skip stock_tools --skip releases_of_an_unknown_layout) || { echo "$tools, $suite, $tests"; return 1; }
  echo "$tools, $suite, $tests"
}

printf '%-10s %-24s %-8s %-8s %-10s %s\n' release library plugin preload 'data path' mlx5
for release in "$@"; do
  folder=$top/target/releases/$release
  if [ ! -x "$folder/build/bin/ibv_devinfo" ] && ! { mkdir -p "$folder"; build "$release" "$folder" >"$folder/log" 2>&1; }; then
    echo "$release cannot be built: see $folder/log"; missed=1; continue
  fi
  export LD_LIBRARY_PATH=$folder/build/lib
  library=$(basename "$(readlink -f "$folder/build/lib/libibverbs.so.1")")
  number=$(cut -d . -f 5 <<<"$library")
  if [ "$number" -gt "$newest" ]; then
    # Too new to know: it must be refused, and by name. The method mlx5 needs no private layout.
    for kind in plugin preload; do
      said=$("$softnic" exec --method $kind -- "$folder/build/bin/ibv_devices" 2>&1 || true)
      refusal=$(grep -m 1 "private layout of libibverbs .*$library is not known" <<<"$said") || { refusal="NOT REFUSED: $said"; missed=1; }
    done
    provider=$(mlx5 "$folder") || missed=1
    printf '%-10s %-24s %s; mlx5: %s\n' "$release" "$library" "$refusal" "$provider"
    continue
  fi
  plugin=$(through "$folder" plugin softnic0) || missed=1
  preload=$(through "$folder" preload softnic0) || missed=1
  # shellcheck disable=SC2086 # a list of options
  path=$(passed softnic-verbs --test it -- $modules) || missed=1
  provider=$(mlx5 "$folder") || missed=1
  printf '%-10s %-24s %-8s %-8s %-10s %s\n' "$release" "$library" "$plugin" "$preload" "$path" "$provider"
done
exit $missed
