#!/usr/bin/env bash
# Two hosts on one cable: this namespace is the steered host, `client` is its peer.
# Run by tests/it/namespaces.rs inside fresh network and mount namespaces:
#   traffic.sh STEERD DIR [OFFLOAD [BYTES]]
# OFFLOAD is `off` (default: the cable carries what a wire would) or `on`: the client's kernel
# leaves the cutting of its stream to the cable, as veth interfaces do by default. Uploads BYTES.
# Sends known traffic from the client and leaves in DIR what was sent (sent.env) and
# what steerd says of it (state.json, metrics.txt, steerd.log). Touches nothing outside.
set -euo pipefail
steerd=$1 dir=$2 offload=${3:-off} upload_bytes=${4:-100000}
server4=10.77.0.1 server6=fd77::1

mount -t tmpfs tmpfs /run
mkdir /run/netns
ip netns add client
# Router solicitations come when the kernel thinks fit, in the middle of what is counted.
for side in "" "ip netns exec client"; do
  $side sysctl -q -w net.ipv6.conf.all.router_solicitations=0 net.ipv6.conf.default.router_solicitations=0
done
ip link set lo up
ip link add steer0 type veth peer name client0
ip link set client0 netns client
ip address add $server4/24 dev steer0
ip address add $server6/64 dev steer0 nodad
ip -n client link set lo up
ip -n client address add 10.77.0.2/24 dev client0
ip -n client address add fd77::2/64 dev client0 nodad
[ "$offload" = on ] || ip -n client link set client0 gso_max_segs 1
ip -n client link set client0 up
ip link set steer0 up

sent() { ip -n client -s -o link show dev client0 | sed -E 's/.*TX:[^0-9]*//' | awk '{ print $2 }'; }
# Segments sent: OutSegs leaves out those that only repeat, which RetransSegs counts (RFC 4022).
tcp() { # a counter of the client's TCP
  ip netns exec client awk -v name="$1" '
    /^Tcp:/ && !named { for (i = 2; i <= NF; i++) column[$i] = i; named = 1; next }
    /^Tcp:/ { if (!column[name]) exit 1; print $column[name] }
  ' /proc/net/snmp
}
segments() { echo $(($(tcp OutSegs) + $(tcp RetransSegs))); }
quiet() { # waits until the client has sent nothing for two seconds: its neighbour and multicast chatter is over
  local before after=$(sent)
  for _ in $(seq 15); do before=$after; sleep 2; after=$(sent); [ "$before" = "$after" ] && return; done
  echo "the client's interface does not come to rest" >&2; return 1
}

cat > "$dir/policy.toml" <<EOF
version = 1
default = "kernel"
[groups.every]
workers = "all"
[[rules]]
name = "ping"
match = { family = "ipv4", protocol = "icmp" }
action = { steer = "every" }
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = 53 }
action = { steer = "every" }
[[rules]]
name = "discard"
match = { protocol = "udp", dst_port = 9 }
action = "drop"
[[rules]]
name = "syn"
match = { protocol = "tcp", dst_port = 8080, tcp_flags = "syn,!ack" }
action = { steer = "every" }
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = 8080 }
action = { steer = "every" }
EOF
cat > "$dir/steerd.toml" <<EOF
[api]
socket = "api.sock"
[device]
name = "softnic0"
[policy]
file = "policy.toml"
[workers]
cores = 2
frames = 8192
pages = ["plain"]
[[softnic.ports]]
wire = { kind = "af_packet", interface = "steer0" }
[http]
listen = "127.0.0.1:9464"
EOF

quiet
"$steerd" run --config "$dir/steerd.toml" --for 120s 2> "$dir/steerd.log" > "$dir/summary.txt" &
daemon=$!
trap 'kill $daemon 2>/dev/null || true' EXIT
for _ in $(seq 100); do curl -fs http://127.0.0.1:9464/readyz >/dev/null && break; sleep 0.1; done
curl -fsS http://127.0.0.1:9464/readyz >/dev/null || { cat "$dir/steerd.log" >&2; exit 1; }

sent_before=$(sent) segments_before=$(segments) repeated_before=$(tcp RetransSegs)
client() { ip netns exec client "$@"; }
client ping -q -c 10 -i 0.05 -W 2 $server4 > "$dir/ping.txt"
client bash -c "for i in \$(seq 20); do echo query \$i > /dev/udp/$server4/53; done" 2>/dev/null || true
client bash -c "for i in \$(seq 12); do echo query \$i > /dev/udp/$server6/53; done" 2>/dev/null || true
client bash -c "for i in \$(seq 15); do echo nothing > /dev/udp/$server4/9; done" 2>/dev/null || true
head -c "$upload_bytes" /dev/urandom > "$dir/upload"
timeout 20 nc -l $server4 8080 > "$dir/received" &
server=$!
for _ in $(seq 50); do ss -Htln sport = :8080 | grep -q LISTEN && break; sleep 0.1; done
client timeout 20 nc -N $server4 8080 < "$dir/upload"
wait $server
quiet

curl -fsS http://127.0.0.1:9464/api/v1/state > "$dir/state.json"
curl -fsS http://127.0.0.1:9464/metrics > "$dir/metrics.txt"
cat > "$dir/sent.env" <<EOF
frames=$(($(sent) - sent_before))
segments=$(($(segments) - segments_before))
repeated=$(($(tcp RetransSegs) - repeated_before))
pings=$(sed -nE 's/.* ([0-9]+) received.*/\1/p' "$dir/ping.txt")
upload_intact=$(cmp -s "$dir/upload" "$dir/received" && echo 1 || echo 0)
EOF
kill -TERM $daemon
trap - EXIT
wait $daemon
