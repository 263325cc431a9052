# snap.sh FOLDER PERIOD_S [HOST PORT]: until killed, one file a period: the time, then PATH VALUE of every counter, and the
# shard's page beside it every ten seconds. Shell builtins only, so that it costs the one emulated processor little.
folder=$1 period=$2 host=${3:-} port=${4:-}
mkdir -p "$folder"
shopt -s nullglob
cd /
files=(sys/class/infiniband/*/ports/*/{state,phys_state,rate,link_layer} sys/class/infiniband/*/ports/*/hw_counters/*
  sys/class/infiniband/*/ports/*/counters/* sys/class/infiniband/*/ports/*/gids/{0,1} sys/class/infiniband/*/ports/*/gid_attrs/{types,ndevs}/{0,1}
  sys/class/net/$DEV/{carrier,carrier_down_count,mtu,speed} sys/class/net/$DEV/statistics/{rx,tx}_{bytes,packets,dropped})
exec {never}<> <(:)
n=0 due=0
while :; do
  printf -v name %05d $n
  {
    read -r up _ < /proc/uptime
    echo "time $up"
    for file in "${files[@]}"; do
      value=
      read -r value < "$file" && echo "$file $value"
    done 2> /dev/null
  } > "$folder/$name.part"
  mv "$folder/$name.part" "$folder/$name.txt"
  if [ -n "$port" ] && [ $SECONDS -ge $due ]; then
    due=$((SECONDS + 10))
    (
      exec {page}<> "/dev/tcp/$host/$port" || exit
      printf 'GET /metrics HTTP/1.0\r\nHost: shard\r\n\r\n' >&$page
      timeout 10 cat <&$page > "$folder/$name.page.part" && mv "$folder/$name.page.part" "$folder/$name.page"
    ) 2> /dev/null
  fi
  n=$((n + 1))
  read -r -t "$period" -u $never
done
