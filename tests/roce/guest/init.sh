# Sourced by PID 1. Brings up the link and rxe0, then runs the jobs that the host leaves in /ctl/jobs/ROLE, side by side.
for word in $(cat /proc/cmdline); do case $word in kvscope.role=*) ROLE=${word#*=};; esac; done
case $ROLE in
  a) ME=10.9.0.1 PEER=10.9.0.2;;
  *) ME=10.9.0.2 PEER=10.9.0.1;;
esac
export ROLE ME PEER DEV=eth0
hostname "node-$ROLE"
modprobe -a virtio_net rdma_rxe ib_uverbs rdma_ucm sch_netem
ip link set lo up
# virtio tells no speed, and rxe then says 2.5 Gb/sec
ethtool -s $DEV speed 10000 duplex full 2>/dev/null
ip link set $DEV mtu 1500 up
# before rxe is used: the address makes the IPv4 GID
ip addr add "$ME/24" dev $DEV
rdma link add rxe0 type rxe netdev $DEV || echo "GUEST no rxe"
ulimit -l unlimited
ulimit -c 0
mkdir -p /opt/src && tar xf /ctl/source.tar -C /opt/src
export PYTHONPATH=/opt/src:/opt/site PYTHONDONTWRITEBYTECODE=1 KVSTORE_INSECURE=1
export UCX_TLS=rc,self UCX_NET_DEVICES=rxe0:1 UCX_RC_RETRY_COUNT=6 NIXL_LOG_LEVEL=WARN
mkdir -p /tmp/done
exec {never}<> <(:)
touch /out/up
while [ ! -e /ctl/stop ]; do
  for job in /ctl/jobs/$ROLE/*.sh; do
    name=${job##*/}
    name=${name%.sh}
    [ -e "$job" ] && [ ! -e "/tmp/done/$name" ] || continue
    touch "/tmp/done/$name"
    (
      cd /tmp
      bash "$job" > "/out/$name.out" 2> "/out/$name.err" < /dev/null
      echo $? > "/out/$name.part" && mv "/out/$name.part" "/out/$name.rc"
    ) &
  done
  read -r -t 0.5 -u $never
done
dmesg > /out/dmesg.txt
