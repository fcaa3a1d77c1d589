#!/bin/sh
# Drop rules for the filters of a veth, whose driver has none: what the commands say, and what they leave behind.
set -eu
steerd=$1 folder=$2
cd "$folder"
ip link add t0 type veth peer name t1
ip link set t0 up
ip link set t1 up
cat > drops.toml <<'TOML'
version = 1
[groups.w]
workers = "all"
[[rules]]
name = "scan"
match = { protocol = "tcp", dst_port = 23 }
action = "drop"
TOML
cat > steerd.toml <<'TOML'
[http]
listen = "off"
[api]
enabled = false
[[softnic.ports]]
wire = { kind = "af_xdp", interface = "t0", mode = "generic" }
nic_filters = "drop"
filter_model = "mlx5"
[policy]
file = "drops.toml"
TOML
export STEERD_STATE__FOLDER="$folder/state" STEERD_API__ENABLED=false
mkdir "$folder/state"
attempt() {
  name=$1
  shift
  code=0
  timeout 60 "$steerd" "$@" > "$name.out" 2> "$name.txt" || code=$?
  echo "$name=$code" >> codes.env
}
attempt run run --interface t0 --nic-filters drop --listen off drops.toml
attempt settings run --config steerd.toml
attempt check check --interface t0 --nic-filters drop drops.toml
attempt off run --interface t0 --nic-filters off --listen off --for 500ms drops.toml
# The XDP program of a daemon that does not start is detached.
ip -d link show t0 > link.txt
ls "$folder/state" > state.txt
