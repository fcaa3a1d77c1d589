#!/usr/bin/env bash
# Two hosts on one cable: this namespace is the steered host, `client` is its peer. The steered host's interface is
# enforced by AF_XDP: steered and dropped packets leave its kernel, and only they.
# Run by tests/it/namespaces.rs inside fresh network and mount namespaces:
#   enforce.sh STEERD DIR MODE
# MODE is `native` or `generic`. Sends known traffic by ordinary programs and leaves in DIR what the kernel and its
# programs received (seen.env), what steerd has counted (state.json) and had found out before (check.json), and its log. Touches nothing outside.
set -euo pipefail
steerd=$1 dir=$2 mode=$3
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
ip -n client link set client0 gso_max_segs 1
ip -n client link set client0 up
ip link set steer0 up

udp() { # a counter of this kernel's UDP, both families
  awk -v name="$1" '
    /^Udp:/ && !named { for (i = 2; i <= NF; i++) column[$i] = i; named = 1; next }
    /^Udp:/ { sum += $column[name] }
    $1 == "Udp6" name { sum += $2 }
    END { print sum }
  ' /proc/net/snmp /proc/net/snmp6
}
client() { ip netns exec client "$@"; }
datagrams() { # COUNT ADDRESS PORT: from one socket
  client bash -c "exec 3> /dev/udp/$2/$3; for i in \$(seq $1); do echo datagram \$i >&3; done"
}

cat > "$dir/policy.toml" <<EOF
version = 1
default = "kernel"
[groups.every]
workers = "all"
[[rules]]
name = "blocked"
match = { protocol = "udp", dst_port = 53, src_port = 5354 }
action = "drop"
[[rules]]
name = "own"
match = { protocol = "udp", dst_port = 53, src_port = 5353 }
action = "kernel"
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = 53 }
action = { steer = "every" }
[[rules]]
name = "discard"
match = { protocol = "udp", dst_port = 9 }
action = "drop"
[[rules]]
name = "watch"
match = { protocol = "udp", dst_port = 5001 }
action = { copy = "every" }
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
wire = { kind = "af_xdp", interface = "steer0", mode = "$mode" }
[http]
listen = "127.0.0.1:9464"
EOF

"$steerd" check --config "$dir/steerd.toml" --format json > "$dir/check.json"
"$steerd" run --config "$dir/steerd.toml" --for 120s 2> "$dir/steerd.log" > "$dir/summary.txt" &
daemon=$!
trap 'kill $daemon 2>/dev/null || true' EXIT
for _ in $(seq 100); do curl -fs http://127.0.0.1:9464/readyz >/dev/null && break; sleep 0.1; done
curl -fsS http://127.0.0.1:9464/readyz >/dev/null || { cat "$dir/steerd.log" >&2; exit 1; }

client ping -q -c 10 -i 0.05 -W 2 $server4 > "$dir/ping.txt"
timeout 60 nc -u -l $server4 5000 > "$dir/heard" &
# Claimed ports have a listener too, which must hear nothing.
timeout 60 nc -u -l $server4 53 > "$dir/heard-53" &
timeout 60 nc -u -l $server4 9 > "$dir/heard-9" &
for _ in $(seq 50); do [ "$(ss -Hlun "src $server4" | wc -l)" = 3 ] && break; sleep 0.1; done
in_before=$(udp InDatagrams) no_ports_before=$(udp NoPorts)
datagrams 40 $server4 5000
datagrams 30 $server4 53
datagrams 20 $server4 9
datagrams 12 $server6 53
# Taken for a copy, and given back. Their checksums are unfinished, so the kernel discards them.
datagrams 15 $server4 5001
# Of a rule before the one that steers.
echo datagram | client nc -u -w 1 -p 5354 $server4 53
# An exception of the rule.
echo own | client nc -u -w 1 -p 5353 $server4 53
head -c 300000 /dev/urandom > "$dir/upload"
timeout 20 nc -l $server4 8080 > "$dir/received" &
server=$!
for _ in $(seq 50); do ss -Htln sport = :8080 | grep -q LISTEN && break; sleep 0.1; done
client timeout 20 nc -N $server4 8080 < "$dir/upload"
wait $server
for _ in $(seq 50); do
  curl -fsS http://127.0.0.1:9464/api/v1/state > "$dir/state.json"
  curl -fsS http://127.0.0.1:9464/metrics > "$dir/metrics.txt"
  passed=$(grep -o '"passed_packets": *[0-9]*' "$dir/state.json" | tr -dc 0-9)
  grep -q '"received_packets": *78[,}]' "$dir/state.json" && [ "$(wc -l < "$dir/heard")" = 40 ] && [ "$passed" -gt 50 ] && break
  sleep 0.1
done
cat > "$dir/seen.env" <<EOF
udp_in=$(($(udp InDatagrams) - in_before))
udp_no_ports=$(($(udp NoPorts) - no_ports_before))
heard=$(wc -l < "$dir/heard")
heard_own=$(grep -c '^own$' "$dir/heard-53" || true)
heard_claimed=$(cat "$dir/heard-53" "$dir/heard-9" | grep -c datagram || true)
pings=$(sed -nE 's/.* ([0-9]+) received.*/\1/p' "$dir/ping.txt")
upload_intact=$(cmp -s "$dir/upload" "$dir/received" && echo 1 || echo 0)
program_before=$(ip -d link show dev steer0 | grep -c 'prog/xdp' || true)
EOF
kill -TERM $daemon
trap - EXIT
wait $daemon
echo "program_after=$(ip -d link show dev steer0 | grep -c 'prog/xdp' || true)" >> "$dir/seen.env"
# The listeners; whoever runs this script waits for the end of its output, which they have too.
kill $(jobs -p) 2>/dev/null || true
