#!/usr/bin/env bash
# The second way of docs/how-to/return-packets.md: the host's address is on the TAP interface, every packet goes there unless a rule
# takes it, and what the host sends leaves by the port.
. "$(dirname "$0")/common.sh"

cat > "$dir/policy.toml" <<EOF
version = 1
default = "host"
[sinks.host]
kind = "kernel"
interface = "host0"
ring_bytes = $transfer_ring
[groups.host]
workers = "all"
sinks = ["host"]
[[rules]]
name = "new-web"
match = { protocol = "tcp", dst_port = [5002, 5003], tcp_flags = "syn,!ack", ttl = "1-32" }
action = "drop"
[[rules]]
name = "low"
match = { dst = "$host4", ttl = "1-8" }
action = "drop"
EOF
settings 2
claim "pkttype { host, other, broadcast, multicast }"
start
ip address add $host4/24 dev host0
ip neigh add $client4 lladdr $client_mac dev host0

# What arrives at the client; the length is without the Ethernet header.
client nft -f - <<EOF
table netdev arrived {
  counter frames { }
  counter long { }
  chain arrived {
    type filter hook ingress device "client0" priority 0; policy accept;
    counter name frames
    meta length > 1500 counter name long
  }
}
EOF
arrived() { client nft list counter netdev arrived "$1" | sed -nE 's/.*packets ([0-9]+).*/\1/p'; }

low=$(client ping -q -c 5 -i 0.05 -W 1 -t 4 $host4 | sed -nE 's/.* ([0-9]+) received.*/\1/p' || true)
pings=$(pings 10)
echo_server udp 7
converse udp 7
echoes=$(answers 20)
for direction in up down; do
  head -c 4000000 /dev/urandom > "$dir/$direction"
done
# One after the other: a listening nc ends with the peer's last byte, whatever it still has to send.
timeout 120 nc -l $host4 5002 > "$dir/up.received" &
server=$!
listens --tcp 5002
client timeout 120 nc -N $host4 5002 < "$dir/up"
wait $server
timeout 120 nc -N -l $host4 5003 < "$dir/down" &
server=$!
listens --tcp 5003
client timeout 120 nc -d $host4 5003 > "$dir/down.received"
wait $server
quiet

sent_by_tap=$(ip -s -o link show dev host0 | sed -E 's/.*TX:[^0-9]*//' | awk '{ print $2 }')
cat > "$dir/seen.env" <<EOF
low=$low
pings=$pings
echoes=$echoes
intact=$(cmp -s "$dir/up" "$dir/up.received" && cmp -s "$dir/down" "$dir/down.received" && echo 1 || echo 0)
taken=$(tap_received)
sent_by_tap=$sent_by_tap
arrived=$(arrived frames)
long=$(arrived long)
EOF
finish
