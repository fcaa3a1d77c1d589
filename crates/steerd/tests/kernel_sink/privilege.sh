#!/usr/bin/env bash
# Without CAP_NET_ADMIN: an interface that the administrator has made is used, and one that does not exist is an error
# with its remedy, like a name that another kind of interface has.
. "$(dirname "$0")/common.sh"

policy() { # further options of the sink
  cat > "$dir/policy.toml" <<EOF
version = 1
default = "host"
[sinks.host]
kind = "kernel"
interface = "host0"
transmit = false
$1
[groups.host]
workers = "all"
sinks = ["host"]
EOF
}
chmod 755 "$dir"
# As the unit: not root, and CAP_NET_RAW alone. The software NIC has its own traffic.
unprivileged=(
  env STEERD_HTTP__LISTEN=127.0.0.1:9464 "STEERD_SOFTNIC__PERSONALITY=$personality"
  setpriv --reuid=65534 --regid=65534 --clear-groups
  --inh-caps=-all,+net_raw --ambient-caps=-all,+net_raw --bounding-set=-all,+net_raw
  "$steerd" run --demo --policy "$dir/policy.toml" --for
)
policy 'mac = "keep"'
"${unprivileged[@]}" 5s > "$dir/none.txt" 2>&1 && echo 0 > "$dir/none.code" || echo $? > "$dir/none.code"

ip link add host0 type veth peer name other0
"${unprivileged[@]}" 5s > "$dir/kind.txt" 2>&1 && echo 0 > "$dir/kind.code" || echo $? > "$dir/kind.code"
ip link del host0

ip tuntap add dev host0 mode tap multi_queue user 65534
ip link set host0 up
policy ''
"${unprivileged[@]}" 5s > "$dir/mac.txt" 2>&1 && echo 0 > "$dir/mac.code" || echo $? > "$dir/mac.code"
policy 'mac = "keep"'
"${unprivileged[@]}" 60s > "$dir/summary.txt" 2> "$dir/steerd.log" &
daemon=$!
until_page readyz '^ready'
until_sink delivered_packets_total 1000
finish
ip -d -o link show host0 > "$dir/left.txt"

# One queue for all workers.
ip tuntap del dev host0 mode tap multi_queue
ip tuntap add dev host0 mode tap user 65534
ip link set host0 up
mv "$dir/state.json" "$dir/multi.json"
"${unprivileged[@]}" 60s > "$dir/single.txt" 2> "$dir/single.log" &
daemon=$!
until_page readyz '^ready'
until_sink delivered_packets_total 1000
finish
