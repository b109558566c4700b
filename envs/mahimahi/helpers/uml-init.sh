#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Process 1 of the User-Mode Linux that envs/mahimahi/uml.py boots, with the host's files as its root, read-only: sends one flow
# over an emulated link, leaves what was recorded in the host's folder, ends the machine. Everything here takes no virtual
# time but the sleeps and the flow itself. Usage: uml-init.sh FOLDER, which holds
#   flow   what to run, as assignments: cc queue (options of mm-link) delay_ms seconds drain_s user_id helpers iptables xtables
#   down, up   the link's traces
#   out/   empty, for: events (the sender's), received (the receiver's and Mahimahi's), log (mm-link's), status (0 = done)
set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin
folder=$1
bin=/run/reinet/bin
user=/run/reinet/user
traces=/run/reinet/traces
events=/run/reinet/events
out=/run/reinet/out

prepare() {
  mount -t proc proc /proc && mount -t devtmpfs dev /dev && mount -t tmpfs -o mode=755 run /run || return 1
  mkdir -p $bin $user $traces $out && mount -t hostfs -o "$folder/out" out $out || return 1
  cp "$helpers/reinet-iptables" "$helpers/reinet-receiver" "$helpers/reinet-sender" $bin || return 1
  cp "$folder/down" "$folder/up" $traces && chown "$user_id:$user_id" $user || return 1
  # Mahimahi is setuid root, which current iptables refuses: helpers/iptables.c
  touch /run/reinet/xtables && mount --bind "$xtables" /run/reinet/xtables || return 1
  mount --bind $bin/reinet-iptables "$iptables" || return 1
  # Network namespaces that Mahimahi makes begin with this one's forwarding.
  ip link set lo up && echo 1 >/proc/sys/net/ipv4/ip_forward && mkfifo /run/reinet/hold
}

wait_for() { # EVENT
  tries=0
  until grep -q "\"$1\"" $events; do
    tries=$((tries + 1))
    [ $tries -lt 3000 ] || return 1
    sleep 0.01
  done
}

run_flow() {
  exec 3<>/run/reinet/hold # the sender ends when this does
  $bin/reinet-sender --cc "$cc" </run/reinet/hold >$events 2>$out/received 3>&- &
  sender=$!
  wait_for listening || return 1
  port=$(sed -n 's/.*"listening", "port": \([0-9]*\).*/\1/p' $events)
  shells="mm-link --downlink-log=$user/log $queue
    $traces/up $traces/down $bin/reinet-receiver $port"
  [ "$delay_ms" = 0 ] || shells="mm-delay $delay_ms $shells"
  # shellcheck disable=SC2086 # words
  setpriv --reuid="$user_id" --regid="$user_id" --clear-groups -- env -i PATH=$PATH $shells >>$out/received 2>&1 3>&- &
  wait_for sending || return 1
  sleep "$seconds"
  exec 3>&-
  wait $sender || return 1
  sleep "$drain_s"
  [ -f $user/log ] && [ ! -L $user/log ] && cp $events $user/log $out # the user may plant links in its folder
}

# shellcheck disable=SC1091
. "$folder/flow"
prepare && run_flow
echo $? >$out/status
echo o >/proc/sysrq-trigger
sleep 60
