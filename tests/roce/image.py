"""The guests' image: a Debian root with kernel, Soft-RoCE, rdma-core and NIXL, and the kernel and initrd to boot it.

``python -m tests.roce.image [FOLDER]`` builds it (root is needed); what is there already is kept. The Debian mirror is
the first of apt's configured sources that carries the suite, or ``MIRROR``; wheels come through pip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SUITE = "bookworm"
NIXL = "nixl-cu12==1.5.1"
PYTHON_PACKAGES = (
    "grpcio>=1.66", "h11>=0.14", "jsonschema>=4.21", "numpy>=1.26", "prometheus-client>=0.21", "promql-parser>=0.10",
    "pyyaml>=6.0", "xxhash>=3.4",
)  # fmt: skip
DEBIAN_PACKAGES = (
    "linux-image-amd64", "initramfs-tools", "zstd", "rdma-core", "ibverbs-providers", "ibverbs-utils", "iproute2",
    "iputils-ping", "kmod", "python3", "ethtool", "procps",
)  # fmt: skip
TOOLS = {
    "debootstrap": "debootstrap",
    "mke2fs": "e2fsprogs",
    "qemu-system-x86_64": "qemu-system-x86",
    "depmod": "kmod",
}
BUNDLED = ("libibverbs", "libmlx5", "libnl-3", "libnl-route-3", "librdmacm")
"""Libraries that the NIXL wheel brings along under hashed names. Its libibverbs loads only providers built for it, so
that rxe is no device to it: Debian's own take their places (libmlx5 must match libibverbs' private symbols)."""
UNUSED_MODULES = (
    "sound", "drivers/gpu", "drivers/media", "drivers/staging", "drivers/iio", "drivers/isdn", "drivers/usb",
    "drivers/bluetooth", "drivers/hwmon", "drivers/input", "drivers/scsi", "drivers/mtd", "drivers/net/wireless",
    "drivers/net/ethernet", "drivers/net/usb", "drivers/net/can", "fs/xfs", "fs/btrfs", "fs/ocfs2", "fs/gfs2",
    "fs/nfs", "fs/nfsd", "fs/f2fs", "fs/jfs", "fs/ceph", "fs/smb",
)  # fmt: skip
INITRD_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
"""What finds the root disk. The stock initrd is seven times as large, and is unpacked under emulation."""
GUEST = Path(__file__).parent / "guest"


class ImageError(Exception):
    """The image cannot be built: what is missing, in one line."""


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvscope" / "roce"


def missing_tools() -> list[str]:
    """Debian packages that building and booting need and that are not here."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return sorted({package for tool, package in TOOLS.items() if shutil.which(tool, path=path) is None})


@dataclass(frozen=True)
class Image:
    """A built image: files to boot from."""

    folder: Path

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd"

    @property
    def disk(self) -> Path:
        return self.folder / "root.img"

    @property
    def built(self) -> bool:
        return self.kernel.exists() and self.initrd.exists() and self.disk.exists()


def build(folder: Path) -> Image:
    """The image in ``folder``, built where it is not there. Raises ``ImageError``."""
    image = Image(folder)
    if image.built and (folder / "entry").exists() and (folder / "entry").read_bytes() == _entry():
        return image
    if missing := missing_tools():
        raise ImageError(f"needs the Debian packages {' '.join(missing)}")
    if os.geteuid() != 0:
        raise ImageError("debootstrap needs root")
    folder.mkdir(parents=True, exist_ok=True)
    _Builder(folder).run()
    return image


def _entry() -> bytes:
    return (GUEST / "entry.sh").read_bytes()


class _Builder:
    def __init__(self, folder: Path) -> None:
        self.image = Image(folder)
        self.root = folder / "rootfs"
        self.log = folder / "build.log"

    def run(self) -> None:
        if not (self.root / ".debian").exists():
            self._debian()
        kernel = sorted((self.root / "lib/modules").iterdir())[-1].name
        if not self.image.initrd.exists():
            self._initrd(kernel)
        if not (self.root / ".python").exists():
            self._python()
        self._disk(kernel)

    def _debian(self) -> None:
        mirror = os.environ.get("MIRROR") or _mirror()
        self._unmount()
        shutil.rmtree(self.root, ignore_errors=True)
        include = ",".join(DEBIAN_PACKAGES)
        self._call("debootstrap", "--variant=minbase", f"--include={include}", SUITE, str(self.root), mirror)
        self._unmount()
        for waste in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(self.root / waste, ignore_errors=True)
        (self.root / ".debian").touch()

    def _unmount(self) -> None:
        """What debootstrap may leave mounted in the root; nothing below it is deleted before."""
        for mount in ("proc", "sys"):
            subprocess.run(["umount", "-q", str(self.root / mount)], check=False)
            if (self.root / mount).is_mount():
                raise ImageError(f"{self.root / mount} is mounted and cannot be unmounted")

    def _initrd(self, kernel: str) -> None:
        config = self.root / "etc/initramfs-tools/initramfs.conf"
        lines = config.read_text().splitlines()
        kept = [line for line in lines if not line.startswith(("MODULES=", "COMPRESS="))]
        config.write_text("\n".join([*kept, "MODULES=list", "COMPRESS=zstd", ""]))
        (self.root / "etc/initramfs-tools/modules").write_text("\n".join([*INITRD_MODULES, ""]))
        self._call("chroot", str(self.root), "mkinitramfs", "-o", "/tmp/initrd", kernel)
        shutil.copy(self.root / "boot" / f"vmlinuz-{kernel}", self.image.kernel)
        shutil.move(self.root / "tmp/initrd", self.image.initrd)

    def _python(self) -> None:
        site = self.root / "opt/site"
        shutil.rmtree(site, ignore_errors=True)
        site.mkdir(parents=True)
        version = next(p.name.removeprefix("python") for p in (self.root / "usr/lib").glob("python3.*"))
        wheels = ["--only-binary=:all:", "--python-version", version, "--implementation", "cp"]
        wheels += [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 27, 28)] + [
            "--platform=manylinux2014_x86_64"
        ]
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        self._call(*pip, "install", *wheels, "--target", str(site), *PYTHON_PACKAGES)
        with tempfile.TemporaryDirectory() as folder:
            self._call(*pip, "download", "--no-deps", *wheels, "-d", folder, NIXL)
            for wheel in Path(folder).glob("*.whl"):
                zipfile.ZipFile(wheel).extractall(site)
        if not self._own_libraries(site):
            raise ImageError("the NIXL wheel brings no libibverbs: its layout has changed")
        # Under emulation it is compiling, not running, that a process spends its start on.
        self._call("chroot", str(self.root), "python3", "-m", "compileall", "-q", "/opt/site", "/usr/lib/python3")
        (self.root / ".python").touch()

    def _own_libraries(self, site: Path) -> int:
        """Put Debian's libraries where the wheel has its own; how many."""
        put = 0
        for bundled in site.glob("nixl_cu12.libs/*.so*"):
            stem = bundled.name.partition(".so")[0].rpartition("-")[0]
            ours = sorted((self.root / "usr/lib/x86_64-linux-gnu").glob(f"{stem}.so.*"))
            if stem in BUNDLED and ours:
                bundled.unlink()
                shutil.copy(ours[0].resolve(), bundled)
                put += 1
        return put

    def _disk(self, kernel: str) -> None:
        modules = self.root / "lib/modules" / kernel
        for unused in UNUSED_MODULES:
            shutil.rmtree(modules / "kernel" / unused, ignore_errors=True)
        self._call("depmod", "-b", str(self.root), kernel)
        entry = self.root / "opt/entry.sh"
        entry.write_bytes(_entry())
        entry.chmod(0o755)
        for mount in ("ctl", "out"):
            (self.root / mount).mkdir(exist_ok=True)
        for spare in (self.root / "boot").glob("initrd.img*"):
            spare.unlink()
        used = int(subprocess.check_output(["du", "-sm", str(self.root)]).split()[0])
        part = self.image.disk.with_suffix(".part")
        part.unlink(missing_ok=True)
        self._call("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(self.root), str(part),
                   f"{used * 115 // 100 + 128}M")  # fmt: skip
        part.rename(self.image.disk)
        (self.image.folder / "entry").write_bytes(_entry())

    def _call(self, *command: str) -> None:
        environment = os.environ | {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "LC_ALL": "C"}
        with self.log.open("ab") as log:
            done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
        if done.returncode:
            raise ImageError(f"{command[0]} failed with {done.returncode}: see {self.log}")


def _mirror() -> str:
    """The first of apt's configured archives that carries the suite."""
    listed = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    for line in subprocess.run(listed, capture_output=True, text=True, check=False).stdout.splitlines():
        uri, _, rest = line.partition(" ")
        if rest == f"{SUITE} main":
            return uri
    raise ImageError(f"apt has no source for {SUITE} main: name one with MIRROR=")


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0]) if arguments else default_folder()
    try:
        image = build(folder)
    except ImageError as error:
        print(f"roce image: {error}", file=sys.stderr)
        return 1
    print(f"{image.folder}: {image.disk.stat().st_size >> 20} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
