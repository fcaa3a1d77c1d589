#!/bin/sh
# A policy that carves queues on a veth, whose driver has no filters: what the commands say, and what they leave behind.
set -eu
steerd=$1 folder=$2
cd "$folder"
ip link add t0 type veth peer name t1
ip link set t0 up
ip link set t1 up
cat > carve.toml <<'TOML'
version = 1
[groups.zc]
queues = [0]
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = 53 }
action = { steer = "zc" }
TOML
export STEERD_STATE__FOLDER="$folder/state"
mkdir "$folder/state"
code=0
"$steerd" run --interface t0 carve.toml 2> run.txt || code=$?
echo "run=$code" > codes.env
code=0
"$steerd" check --interface t0 carve.toml 2> check.txt || code=$?
echo "check=$code" >> codes.env
code=0
"$steerd" devices --probe-filters t0 2> probe.txt || code=$?
echo "probe=$code" >> codes.env
code=0
"$steerd" run --interface t9 carve.toml 2> absent.txt || code=$?
echo "absent=$code" >> codes.env
# XDP would be attached by a policy with workers.
ip -d link show t0 > link.txt
ls "$folder/state" > state.txt
