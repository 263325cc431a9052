"""Certificates, tokens and what a shard off loopback asks for; the attempts of strangers are in the table's test."""

from __future__ import annotations

import asyncio
import datetime
import json
import shutil
import stat
import subprocess
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from kvstore.calls.rpc import RpcCalls
from kvstore.client import Client, SyncClient
from kvstore.cluster import LocalCluster
from kvstore.deadline import Deadline
from kvstore.errors import AccessDenied, BadRequest
from kvstore.messages import Lookup
from kvstore.security import Access, Refusals, Token, is_loopback
from kvstore.settings import Settings
from tests.kvstore.process_rig import LAYOUT, Helper, blocks_for, some_keys
from tests.kvstore.security_rig import Files, command, rig

SECRET = "a-secret-of-enough-length"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.3.2.1", True), ("0.0.0.0", False), ("::", False),
     ("192.0.2.1", False), ("example.org", False), ("127.0.0.1.example.org", False), ("", False)],
)  # fmt: skip
def test_what_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_a_token_agrees_with_itself_alone_and_shows_itself_nowhere() -> None:
    token = Token(SECRET)
    assert token.agrees(f"Bearer {SECRET}")
    assert token.agrees(f"Bearer {SECRET}".encode())
    for other in (SECRET, f"Bearer {SECRET}x", f"bearer {SECRET}", "", "Bearer ä"):
        assert not token.agrees(other)
    assert SECRET not in repr(token) + str(token) + repr(Access(token=token)) + f"{[token]}"
    assert token == Token(SECRET)
    assert token != Token(SECRET + "x")


@pytest.mark.parametrize("text", ["", "short", "has a space in it, it has", "x" * 5000, "ümlaut-of-enough-length"])
def test_what_is_no_token_is_refused_without_being_shown(text: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(BadRequest, match=r"token file .*token is") as error:
        Token.read(path)
    assert not text or text not in str(error.value)


def test_access_from_options_and_from_the_environment(tmp_path: Path) -> None:
    files = Files(tmp_path)
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "client.pem", "client.key"))
    environment = {"KVSTORE_TLS_CA": ca, "KVSTORE_TLS_CERT": cert, "KVSTORE_TLS_KEY": key}
    assert not Access.from_environment(environment).whole
    environment["KVSTORE_TOKEN_FILE"] = str(files.token)
    found = Access.from_environment(environment)
    assert found == files.access()
    found.require_for("192.0.2.1:7600")
    assert Access.from_environment({}) == Access()
    Access.from_environment({"KVSTORE_INSECURE": "1"}).require_for("192.0.2.1:7600")
    for wrong, why in (
        ({"cert": cert}, "belong together"),
        ({"cert": cert, "key": key}, "give --tls-ca"),
        ({"ca": key}, "holds no PEM"),
        ({"ca": str(tmp_path / "none")}, "CA file .*No such file"),
        ({"ca": ca, "cert": cert, "key": str(tmp_path / "shard.key")}, "the key is not the certificate's"),
        ({"ca": ca, "cert": cert, "key": str(tmp_path / "none")}, "key file .*there is none"),
    ):
        with pytest.raises(BadRequest, match=why):
            Access.of(**wrong)


def test_settings_off_loopback(tmp_path: Path) -> None:
    access = Files(tmp_path).access()
    for host in ("192.0.2.1", "0.0.0.0", "example.org"):
        with pytest.raises(BadRequest, match="--tls-ca, --tls-cert, --tls-key and --token-file, or --insecure"):
            Settings(LAYOUT, 4, host=host)
    with pytest.raises(BadRequest, match="--advertise HOST"):
        Settings(LAYOUT, 4, host="0.0.0.0", access=access)
    guarded = Settings(LAYOUT, 4, host="0.0.0.0", access=access, advertise="kv1.example.org")
    assert guarded.address(7600) == "kv1.example.org:7600"
    assert guarded.page_host == "127.0.0.1"
    assert guarded.warnings() == []
    bare = Settings(LAYOUT, 4, host="192.0.2.1", access=Access(insecure=True), metrics_host="192.0.2.1")
    assert bare.warnings()[0].split(":")[0] == "--insecure"
    assert "plain HTTP" in bare.warnings()[1]
    assert Settings(LAYOUT, 4, metrics_host="192.0.2.1", metrics_port=None).warnings() == []
    assert Settings(LAYOUT, 4).warnings() == []


def test_refusals_are_counted_all_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(every_s=0.2)
    for _ in range(100):
        refusals.note("tls", "HOST:1", "it showed no certificate")
    refusals.note("tls", "HOST:2", "its certificate\nhas expired")
    assert refusals.counts == {"tls": 101}
    assert len(caplog.messages) == 2
    time.sleep(0.25)
    refusals.note("tls", "HOST:3", "it showed no certificate")
    assert caplog.messages[2] == "refused HOST:3: it showed no certificate (99 more like it since the last line)"
    for number in range(1000):
        refusals.note("request", "HOST:1", f"column {number}")
    assert len(caplog.messages) < 80
    assert not any("\n" in message for message in caplog.messages)


def test_the_command_makes_certificates_for_this_user_alone_and_overwrites_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    assert command("certs", str(folder), "--host", "kv1.example.org", "--host", "192.0.2.7", "--lifetime", "2h")[0] == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {"ca.pem", "ca.key", "shard.pem", "shard.key", "client.pem", "client.key", "token"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    shard, client, ca = (
        x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes()) for name in ("shard", "client", "ca")
    )
    for one in (shard, client):
        one.verify_directly_issued_by(ca)
        assert one.not_valid_after_utc - one.not_valid_before_utc == datetime.timedelta(hours=2)
    names_of = shard.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "kv1.example.org"} == set(names_of.get_values_for_type(x509.DNSName))
    assert "192.0.2.7" in [str(address) for address in names_of.get_values_for_type(x509.IPAddress)]
    uses = [list(one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) for one in (shard, client)]
    assert uses[1] == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert set(uses[0]) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, said = command("certs", str(folder))
    assert (code, len(said.splitlines())) == (2, 1)
    assert "is there already" in said
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert command("certs", str(tmp_path / "other"), "--lifetime", "9000h")[0] == 2
    assert command("certs", str(tmp_path / "third"), "--host", "not a host ü")[0] == 2


def test_a_guarded_store_keeps_its_token_to_itself_and_takes_renewed_files(tmp_path: Path) -> None:
    with rig(tmp_path) as found:
        secret = found.files.token.read_bytes().strip()
        pid = found.guarded.pids[0]
        for name in ("cmdline", "environ"):
            assert secret not in Path(f"/proc/{pid}/{name}").read_bytes()
        with urllib.request.urlopen(found.guarded.metrics_urls[0], timeout=10) as page:
            assert secret not in page.read()
        assert secret.decode() not in json.dumps(found.guarded.facts) + found.guarded.log(0)
        keys = some_keys(2, 5)
        with SyncClient(found.guarded.targets, LAYOUT, access=found.files.access()) as client:
            client.put(keys, blocks_for(keys))
            with found.files.serving("shard-expired"), pytest.raises(AccessDenied, match="it has expired"):
                SyncClient(found.guarded.targets, LAYOUT, access=found.files.access())
            assert client.get(keys).found.all()  # who is in stays in
        with SyncClient(found.guarded.targets, LAYOUT, access=found.files.access()) as client:
            assert client.get(keys).found.all()


async def test_large_messages_pass_the_front_whole(tmp_path: Path) -> None:
    """Some side by side, more than either side's buffers hold."""
    files = Files(tmp_path)
    files.serve("shard")
    async with (
        LocalCluster(1, LAYOUT, 64, **files.options) as cluster,
        await Client.connect(cluster.targets, LAYOUT, access=files.access()) as client,
    ):
        await client.put(some_keys(64, 0), blocks_for(some_keys(64, 0)))
        link = client.shards.links[0]
        await link.use(RpcCalls(link.address, files.access()))
        keys = np.tile(some_keys(64, 0), (1 << 11, 1))  # 4 MiB
        answers = await asyncio.gather(*(link.call(Lookup(keys), Deadline(60_000)) for _ in range(4)))
        assert all((answer.slot >= 0).all() and len(answer.slot) == len(keys) for answer in answers)


def test_shards_hear_each_other_by_the_same_means(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.serve("shard")
    with LocalCluster(2, LAYOUT, 16, **files.options) as cluster:
        end = time.monotonic() + 20
        while True:
            with urllib.request.urlopen(cluster.metrics_urls[0], timeout=10) as page:
                if 'kv_peer_up{peer="1",shard="0"} 1.0' in page.read().decode():
                    break
            assert time.monotonic() < end, cluster.log(0)
            time.sleep(0.1)
        assert cluster.log(0) == cluster.log(1) == ""


_IN_A_NAMESPACE = """
import os, sys
from pathlib import Path
from kvstore.cli import main
from kvstore.client import SyncClient
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest
from kvstore.security import Access
from kvstore.security.certs import make_certificates
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys
import datetime
folder, host = Path(sys.argv[1]), "198.51.100.1"
make_certificates(folder, [host], datetime.timedelta(hours=1))
access = Access.of(folder / "ca.pem", folder / "client.pem", folder / "client.key", folder / "token")
files = {"tls_ca": folder / "ca.pem", "tls_cert": folder / "shard.pem", "tls_key": folder / "shard.key"}
with LocalCluster(2, LAYOUT, 16, host=host, token_file=folder / "token", **files) as cluster:
    keys = some_keys(4, 1)
    with SyncClient(cluster.targets, LAYOUT, access=access) as client:
        client.put(keys, blocks_for(keys))
        found = bool(client.get(keys).found.all())
    try:
        SyncClient(cluster.targets, LAYOUT, access=Access())
        refused = ""
    except BadRequest as error:
        refused = str(error)
    say({"found": found, "addresses": cluster.addresses, "pages": cluster.metrics_urls, "refused": refused,
         "log": cluster.log(0)})
with LocalCluster(1, LAYOUT, 16, host=host, insecure=True) as cluster:
    with SyncClient(cluster.targets, LAYOUT, access=Access(insecure=True)) as client:
        client.put(keys, blocks_for(keys))
    say({"warned": cluster.log(0)})
"""


def _namespace() -> list[str]:
    """A prefix that runs a command in a network of its own, which has one address off loopback."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("a network namespace cannot be made: unshare and ip are needed")
    up = 'ip link set lo up && ip address add 198.51.100.1/32 dev lo && exec "$@"'
    words = ["unshare", "-n", "sh", "-c", up, "sh"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a network namespace cannot be made: only root may")
    return words


def test_off_loopback_for_real(tmp_path: Path) -> None:
    with Helper(_IN_A_NAMESPACE, str(tmp_path / "certs"), prefix=_namespace()) as helper:
        said = helper.heard(60)
        assert said["found"]
        assert all(address.startswith("198.51.100.1:") for address in said["addresses"])
        assert all(page.startswith("http://127.0.0.1:") for page in said["pages"])
        assert "is not on loopback" in said["refused"]
        assert said["log"] == ""
        warned = helper.heard(60)["warned"]
    assert len(warned.splitlines()) == 1
    assert "--insecure: what is sent to and from 198.51.100.1 can be read" in warned
