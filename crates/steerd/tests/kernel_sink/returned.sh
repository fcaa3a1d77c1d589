#!/usr/bin/env bash
# The first way of docs/how-to/return-packets.md: the host's address is on the port's own interface. The policy of config/examples
# leaves SSH, a transfer, a UDP service and ping to the kernel, before a rule whose flows take everything for the host:
# their packets reach the host by the TAP interface alone, and its replies leave by the port's interface.
. "$(dirname "$0")/common.sh"

ip address add $host4/24 dev steer0
ip neigh add $client4 lladdr $client_mac dev steer0
sed "s/^interface = .*/&\nring_bytes = $transfer_ring/" "$(dirname "$0")/../../../../config/examples/host-return.toml" \
  > "$dir/policy.toml"
settings 2 "variables = { node = \"$host4\", management = [22, 5001] }"

# An SSH session that is open before the daemon starts.
echo_server tcp 22
converse tcp 22
ssh=($write $read)
session() { write=${ssh[0]} read=${ssh[1]} answers "$1"; }
session_before=$(session 3)
# The last acknowledgement can be late.
acknowledged 22

start
# As in docs/how-to/return-packets.md.
ip address add $host4/32 dev host0
ip link set host0 arp off
sysctl -q -w net.ipv4.conf.host0.rp_filter=2
claim "ip daddr $host4"

session_after=$(session 20)
echo_server udp 123
converse udp 123
echoes=$(answers 20)
pings=$(pings 10)
datagrams 15 100
head -c 8000000 /dev/urandom > "$dir/upload"
timeout 120 nc -l $host4 5001 > "$dir/received" &
server=$!
listens --tcp 5001
client timeout 120 nc -N $host4 5001 < "$dir/upload"
wait $server
session_end=$(session 7)
quiet

cat > "$dir/seen.env" <<EOF
session=$((session_before + session_after + session_end))
echoes=$echoes
pings=$pings
intact=$(cmp -s "$dir/upload" "$dir/received" && echo 1 || echo 0)
taken=$(tap_received)
claimed=$(claimed)
EOF
finish
ip link show host0 2>/dev/null > "$dir/left.txt" || true
