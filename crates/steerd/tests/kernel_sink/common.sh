# Sourced by the scripts of this folder, which tests/it/kernel_sink.rs runs inside fresh network and mount namespaces:
#   SCRIPT STEERD DIR PERSONALITY
# This namespace is the steered host (steer0, its TAP interface host0), `client` is its peer (client0).
# Everything that a script leaves for the test is in DIR. Nothing outside is touched.
set -euo pipefail
steerd=$1 dir=$2 personality=$3 daemon=
port_mac=02:00:00:00:77:01 client_mac=02:00:00:00:77:02
host4=10.77.0.1 client4=10.77.0.2

mount -t tmpfs tmpfs /run
mkdir /run/netns
ip netns add client
client() { ip netns exec client "$@"; }
# Nothing on the cable but what is sent here: no IPv6, and no ARP by fixed neighbours.
for side in "" client; do
  $side sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
done
ip link set lo up
client ip link set lo up
ip link add steer0 address $port_mac type veth peer name client0 address $client_mac
ip link set client0 netns client
# One segment a frame: the cable carries what a wire would.
ip link set steer0 gso_max_segs 1
client ip link set client0 gso_max_segs 1
client ip address add $client4/24 dev client0
client ip link set client0 up
client ip neigh add $host4 lladdr $port_mac dev client0
ip link set steer0 up

# An AF_PACKET socket receives copies, and a NIC's flow takes packets away: what flows take is dropped behind the
# packet socket, so that it reaches the host by the sink or not at all.
claim() { # the match of nft(8) for what the flows take
  nft -f - <<EOF
table netdev claimed {
  chain claimed {
    type filter hook ingress device "steer0" priority 0; policy accept;
    $1 counter drop
  }
}
EOF
}

claimed() { nft list table netdev claimed | sed -nE 's/.*counter packets ([0-9]+).*/\1/p'; }

settings() { # the number of workers, and further lines of [policy]
  cat > "$dir/steerd.toml" <<EOF
[device]
name = "softnic0"
[policy]
file = "policy.toml"
${2:-}
[workers]
cores = $1
pages = ["plain"]
[softnic]
personality = "$personality"
[[softnic.ports]]
wire = { kind = "af_packet", interface = "steer0" }
[http]
listen = "127.0.0.1:9464"
EOF
}

page() { curl -s -m 20 "http://127.0.0.1:9464/$1"; }
fail() { echo "$*" >&2; cat "$dir/steerd.log" >&2; exit 1; }
# A ring that holds a whole transfer: on a busy machine, TCP sends more at once than the default holds.
transfer_ring=$((32 << 20))
# How long a script waits for what must happen, in seconds: long, because the machine may be busy with other tests.
patience=60
until_page() { # the page has a line that matches
  local end=$((SECONDS + patience))
  while [ $SECONDS -lt $end ]; do page "$1" | grep -q "$2" && return; sleep 0.1; done
  page "$1" >&2
  fail "$1 has no $2"
}
start() {
  "$steerd" run --config "$dir/steerd.toml" --for 300s 2> "$dir/steerd.log" > "$dir/summary.txt" &
  daemon=$!
  until_page readyz '^ready'
}
finish() { # the state, and the summary of the end
  page api/v1/state > "$dir/state.json"
  kill -TERM $daemon
  wait $daemon
  daemon=
}
trap '[ -z "$daemon" ] || kill $daemon 2>/dev/null || true; kill $(jobs -p) 2>/dev/null || true' EXIT

# Packets that the kernel counted as received by the TAP interface.
tap_received() { ip -s -o link show dev host0 | sed -E 's/.*RX:[^0-9]*//' | awk '{ print $2 }'; }
sink() { # the sum of a metric of the sink over its workers, with further labels
  page metrics | grep "^steerd_sink_$1{" | grep "${2:-}" | awk '{ sum += $2 } END { print sum + 0 }'
}
until_sink() { # a metric has at least this value
  local end=$((SECONDS + patience))
  while [ $SECONDS -lt $end ]; do [ "$(sink "$1" "${3:-}")" -ge "$2" ] && return; sleep 0.1; done
  fail "steerd_sink_$1 ${3:-} is $(sink "$1" "${3:-}"), not $2: $(page metrics | grep steerd_sink)"
}
listens() { # PROTOCOL PORT
  local end=$((SECONDS + patience))
  while [ $SECONDS -lt $end ]; do ss -Hln "$1" sport = ":$2" | grep -q . && return; sleep 0.1; done
  fail "nobody listens to $2"
}
acknowledged() { # waits until both ends of the TCP connections to a port know that all was received
  local end=$((SECONDS + patience)) port=":$1"
  while [ $SECONDS -lt $end ]; do
    # Without the state, the second column is what was sent and not acknowledged.
    { ss -Htn state established sport = "$port"; client ss -Htn state established dport = "$port"; } |
      awk '$2 != 0 { waiting = 1 } END { exit waiting }' && return
    sleep 0.1
  done
  fail "no acknowledgement on port $1"
}

echo_server() { # answers everything on one socket with itself: PROTOCOL PORT
  mkfifo "$dir/echo-$1-$2"
  if [ "$1" = udp ]; then set -- "$@" -u; fi
  nc ${3:-} -l $host4 "$2" <> "$dir/echo-$1-$2" >&0 &
  listens "--$1" "$2"
}
# A conversation of the client with an echo server: PROTOCOL PORT; what is written to descriptor $write comes back on $read.
converse() {
  local name="$dir/talk-$1-$2"
  mkfifo "$name.in" "$name.out"
  if [ "$1" = udp ]; then set -- "$@" -u; fi
  ip netns exec client timeout 240 nc ${3:-} $host4 "$2" < "$name.in" > "$name.out" &
  exec {write}> "$name.in" {read}< "$name.out"
}
answers() { # COUNT LINES over $write and $read; prints how many came back
  local right=0 answer i
  for i in $(seq "$1"); do
    echo "line $i" >&"$write"
    if read -r -t 20 -u "$read" answer && [ "$answer" = "line $i" ]; then right=$((right + 1)); fi
  done
  echo $right
}
pings() { # COUNT; prints how many were answered, however late each
  local answered=0
  for _ in $(seq "$1"); do
    if client ping -q -c 1 -W 20 $host4 > /dev/null; then answered=$((answered + 1)); fi
  done
  echo $answered
}
arrivals() { echo "$(claimed) $(tap_received)"; }
quiet() { # waits until nothing has come for the host, or to it by the sink, for a second: acknowledgements can be late
  local before after=$(arrivals)
  for _ in $(seq $patience); do before=$after; sleep 1; after=$(arrivals); [ "$before" = "$after" ] && return; done
  fail "the client does not come to rest"
}
datagrams() { # COUNT BYTES: to a port that nobody answers from
  client bash -c 'for i in $(seq "$1"); do head -c "$2" /dev/zero > "/dev/udp/$3/9"; done' - "$1" "$2" $host4
}
