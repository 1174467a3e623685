#!/bin/bash
# SLURM_PLACE=DIR slurm.sh up | down
# Runs Slurm on this machine as root, without systemd: munge, slurmctld, slurmd; files are in DIR.
set -u
place=${SLURM_PLACE:?}
export SLURM_CONF=$place/slurm.conf
case $1 in
up)
  mkdir -p $place/{state,spool,log,munge}; chmod 700 $place/munge
  head -c 1024 /dev/urandom > $place/munge/key; chmod 400 $place/munge/key
  # Without --force munged refuses a socket below a folder that others may write to, like /tmp.
  munged --force --key-file=$place/munge/key --socket=$place/munge/socket --pid-file=$place/munge/pid \
    --log-file=$place/munge/log --seed-file=$place/munge/seed
  host=$(hostname -s)
  cat > $place/slurm.conf <<C
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$place/munge/socket
CredType=cred/munge
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd.pid
SlurmctldLogFile=$place/log/slurmctld.log
SlurmdLogFile=$place/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
C
  echo "PMIxCliTmpDirBase=$place" > $place/mpi.conf # a killed step leaves its folder
  : > $place/cgroup.conf
  slurmctld -c; slurmd
  for k in $(seq 100); do sinfo -h -o %T 2> /dev/null | grep -q idle && break; sleep 0.2; done
  sinfo ;;
down) scontrol shutdown; kill "$(cat $place/munge/pid)" ;;
esac
