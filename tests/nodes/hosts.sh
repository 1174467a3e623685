#!/bin/bash
# hosts.sh up N | down | run HOST COMMAND... | cut HOST | mend HOST
# Simulates N hosts on one machine; needs root, but not ip netns. Each has its own network
# (10.77.0.1N on a bridge), host name hN, process IDs, IPC, /dev/shm, /tmp and /etc/hosts, and, if
# sshd is installed, its own sshd with key login for root. The folders in $SHARE (space-separated,
# below /tmp) are a shared file system; everything outside /tmp and /dev/shm is also shared.
state=${HOSTS_STATE:-/run/test-hosts}; self=$(readlink -f "$0")
case $1 in
up)
  n=${2:-2}; mkdir -p $state /run/sshd
  ip link add tsthbr type bridge; ip addr add 10.77.0.1/24 dev tsthbr; ip link set tsthbr up
  { echo "127.0.0.1 localhost"; echo "10.77.0.1 head"; for i in $(seq "$n"); do echo "10.77.0.1$i h$i"; done; } > $state/hosts
  if [ -x /usr/sbin/sshd ]; then
    [ -e $state/key ] || ssh-keygen -q -t ed25519 -N '' -f $state/key
    cp $state/key.pub $state/authorized; chmod 600 $state/authorized
    printf 'Host h* 10.77.*\n IdentityFile %s/key\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n' $state > $state/ssh_config
  fi
  for i in $(seq "$n"); do
    cat > $state/start.h$i <<S
hostname h$i
mount --make-rprivate /
mount --bind $state/hosts /etc/hosts
mount -t tmpfs -o size=${SHM_SIZE:-2g} tmpfs /dev/shm
mkdir -p $state/keep; mount --rbind /tmp $state/keep
mount -t tmpfs tmpfs /tmp; chmod 1777 /tmp
for d in $SHARE; do mkdir -p \$d; mount --rbind $state/keep/\${d#/tmp/} \$d; done
until ip addr show eth0 2> /dev/null | grep -q 10.77; do sleep 0.05; done
ip link set lo up
[ -x /usr/sbin/sshd ] && /usr/sbin/sshd -h $state/key -o AuthorizedKeysFile=$state/authorized -o StrictModes=no \
  -o PermitRootLogin=yes -o UsePAM=no -o PidFile=/tmp/sshd.pid -o AcceptEnv=* 
touch $state/ready.h$i; exec sleep infinity
S
    setsid unshare --net --uts --ipc --mount --pid --fork --mount-proc bash $state/start.h$i < /dev/null > $state/h$i.log 2>&1 &
    outer=$!; sleep 0.3
    until pid=$(pgrep -P $outer); do sleep 0.05; done
    echo "$pid" > $state/pid.h$i
    ip link add tstv$i type veth peer name tstp$i
    ip link set tstv$i master tsthbr up; ip link set tstp$i netns "$pid" name eth0
    nsenter -t "$pid" --net sh -c "ip addr add 10.77.0.1$i/24 dev eth0; ip link set eth0 up"
    for k in $(seq 100); do [ -e $state/ready.h$i ] && break; sleep 0.05; done
    [ -e $state/ready.h$i ] && echo "h$i is process $pid" || { echo "h$i did not start:"; cat $state/h$i.log; exit 1; }
  done ;;
down)
  for f in $state/pid.*; do kill -9 "$(cat "$f")"; ip link del tstv${f##*.h}; done 2> /dev/null
  ip link del tsthbr; rm -rf $state ;;
run) host=$2; shift 2
  exec nsenter -t "$(cat $state/pid.$host)" --net --uts --ipc --mount --pid --root -- "$@" ;;
cut) ip link set tstv${2#h} down ;;
mend) ip link set tstv${2#h} up ;;
*) sed -n 2,6p "$self" ;;
esac
