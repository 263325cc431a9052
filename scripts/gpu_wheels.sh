#!/bin/sh
# Wheels for benchmarks/gpu_check.py on a machine that has torch and triton but no network:
#   gpu_wheels.sh PYTHON FOLDER [NAME…]      NAME: more packages, without what they need (nixl-cu13;
#   flashinfer-python==0.6.3 apache-tvm-ffi)
# For Python 3.12 on Linux x86-64; GPU_PYTHON=3.13 and GPU_MACHINE=aarch64 pick others. GPU_HAS="grpcio xxhash" names
# what that machine has already, so that it need not travel.
set -eu
python=$1
folder=$2
shift 2
version=${GPU_PYTHON:-3.12}
machine=${GPU_MACHINE:-x86_64}

# What the store and the probes need, as pyproject.toml says; the screen is not shown there, numpy comes with torch.
wanted=$("$python" - <<'PYTHON'
import os
import re
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
for line in (*project["dependencies"], *extras["store"], *extras["nvml"]):
    if re.match(r"[A-Za-z0-9-]+", line)[0] not in ("textual", "numpy", *os.environ.get("GPU_HAS", "").split()):
        print(line)
PYTHON
)

fetch() {
    "$python" -m pip --disable-pip-version-check download --quiet --dest "$folder" --only-binary=:all: \
        --implementation cp --python-version "$version" \
        --platform "manylinux_2_28_$machine" --platform "manylinux_2_27_$machine" --platform "manylinux_2_24_$machine" \
        --platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine" "$@"
}

mkdir -p "$folder"
rm -f "$folder"/*.whl # two versions of one package would both be unpacked
printf '%s\n' "$wanted" >"$folder/requirements.txt"
fetch --requirement "$folder/requirements.txt"
rm "$folder/requirements.txt"
for name; do
    fetch --no-deps "$name"
done
echo "$folder: $(ls "$folder" | wc -l) wheels, $(du -sk "$folder" | cut -f1) KiB, for Python $version on Linux $machine"
