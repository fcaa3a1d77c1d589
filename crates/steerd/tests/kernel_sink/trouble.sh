#!/usr/bin/env bash
# The TAP interface is set down, gets a smaller MTU, and is removed while an interface of another kind takes its name:
# each packet is counted by its reason, and the sink works again afterwards, also after a reload with another MTU.
. "$(dirname "$0")/common.sh"

cat > "$dir/policy.toml" <<EOF
version = 1
default = "host"
[sinks.host]
kind = "kernel"
interface = "host0"
transmit = false
[sinks.counted]
kind = "count"
[groups.host]
workers = "all"
sinks = ["host", "counted"]
EOF
settings 2
claim "pkttype { host, other, broadcast, multicast }"
start

datagrams 20 100
until_sink delivered_packets_total 20 'sink="host"'
ip link set host0 down
datagrams 30 100
until_sink dropped_packets_total 30 'reason="down"'
page api/v1/state > "$dir/down.json"
ip link set host0 up mtu 600
datagrams 1 100
until_sink delivered_packets_total 21 'sink="host"'
until_page api/v1/state 'up, MTU 600'
datagrams 40 1000
until_sink dropped_packets_total 40 'reason="too_long"'

ip link del host0
ip link add host0 type veth peer name other0
until_page api/v1/state 'is not a TAP interface'
datagrams 50 100
until_sink dropped_packets_total 50 'reason="closed"'
ip link del host0
until_page api/v1/state 'up, MTU 1500'
datagrams 25 100
until_sink delivered_packets_total $((21 + 25)) 'sink="host"'
until_sink delivered_packets_total $((20 + 30 + 1 + 40 + 50 + 25)) 'sink="counted"'
# A reload that changes the sink: the new one shares the interface with the old one until that is closed.
sed -i 's/^transmit = false/&\nmtu = 1400/' "$dir/policy.toml"
kill -HUP $daemon
until_page api/v1/state '"state": *"up, MTU 1400"'
datagrams 10 100
until_sink delivered_packets_total $((21 + 25 + 10)) 'sink="host"'
until_sink delivered_packets_total $((20 + 30 + 1 + 40 + 50 + 25 + 10)) 'sink="counted"'
echo "mac=$(ip -o link show host0 | grep -c $port_mac)" > "$dir/seen.env"
finish
