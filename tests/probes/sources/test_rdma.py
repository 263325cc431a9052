"""The source `rdma`: what a tree of mlx5, bnxt_re or rxe says under canonical names, and what its faults are called."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from probes.attach import Attachment, attach
from probes.promql.answer import Vector
from probes.sources.base import SourceStatus
from probes.target import TargetError, parse_target
from tests.probes import sysfs_trees as trees

T0 = 1_780_000_000_000


@pytest.fixture
def attached(tmp_path: Path) -> Callable[..., Attachment]:
    return lambda *targets, **options: attach(targets or [f"rdma:{tmp_path}"], **options)


def ask(attachment: Attachment, expr: str, at_ms: int = T0) -> dict[str, float]:
    """Value by device of an expression."""
    answer = attachment.view.instant(expr, at_ms)
    assert isinstance(answer, Vector)
    return {
        labels.get("device"): float(value) for labels, value in zip(answer.labels, answer.values[:, 0], strict=True)
    }


def cycle(attachment: Attachment, at_ms: int = T0) -> SourceStatus:
    (status,) = asyncio.run(attachment.cycle(at_ms)).statuses
    return status


def test_three_drivers_speak_one_vocabulary(tmp_path: Path, attached: Callable[..., Attachment]) -> None:
    trees.mlx5(tmp_path, packet_seq_err=5, out_of_sequence=6, local_ack_timeout_err=7, duplicate_request=8,
               port_xmit_data=1000, port_xmit_packets=11, np_ecn_marked_roce_packets=12, link_downed=1)  # fmt: skip
    trees.bnxt(tmp_path, seq_err_naks_rcvd=50, oos_drop_count=60, to_retransmits=70, dup_req=80, tx_bytes=4000,
               tx_pkts=110, rx_ecn_marked_pkts=120)  # fmt: skip
    trees.lay(tmp_path, "loss2_requests-a-after")
    one = attached()
    assert cycle(one).state == "fresh"
    assert ask(one, "kv:rdma_sequence_errors_total") == {"mlx5_0": 5, "bnxt_re0": 50}
    assert ask(one, "kv:rdma_out_of_sequence_total") == {"mlx5_0": 6, "bnxt_re0": 60, "rxe0": 49}
    assert ask(one, "kv:rdma_ack_timeouts_total") == {"mlx5_0": 7, "bnxt_re0": 70}
    assert ask(one, "kv:rdma_duplicate_requests_total") == {"mlx5_0": 8, "bnxt_re0": 80, "rxe0": 0}
    assert ask(one, "kv:rdma_retries_total") == {"rxe0": 0}
    assert ask(one, "kv:rdma_transmit_bytes_total") == {"mlx5_0": 4000, "bnxt_re0": 4000}, (
        "words of 4 bytes; rxe has none"
    )
    assert ask(one, "kv:rdma_transmit_packets_total") == {"mlx5_0": 11, "bnxt_re0": 110, "rxe0": 26314}
    assert ask(one, "kv:rdma_congestion_marks_total") == {"mlx5_0": 12, "bnxt_re0": 120}
    assert ask(one, "kv:rdma_link_downed_total") == {"mlx5_0": 1, "rxe0": 0}
    assert ask(one, "kv:rdma_rate_bytes_per_second") == {"mlx5_0": 12.5e9, "bnxt_re0": 12.5e9, "rxe0": 1.25e9}
    assert ask(one, 'kv:rdma_port_info{gid_type="RoCE v2",link_layer="Ethernet"}') == {
        "mlx5_0": 1,
        "bnxt_re0": 1,
        "rxe0": 1,
    }
    assert ask(one, 'kv:rdma_port_info{driver="rxe",netdev="eth0"}') == {"rxe0": 1}


def test_a_setting_is_no_counter_and_live_objects_are_a_gauge(
    tmp_path: Path, attached: Callable[..., Attachment]
) -> None:
    trees.bnxt(tmp_path, active_qps=3, lifespan=12)
    one = attached()
    cycle(one)
    assert ask(one, "rdma_hw_active_qps") == {"bnxt_re0": 3}
    assert ask(one, '{__name__=~".*lifespan.*"}') == {}


def test_interfaces_and_their_adapter_figures(tmp_path: Path, attached: Callable[..., Attachment]) -> None:
    trees.mlx5(tmp_path)
    trees.put(tmp_path / "sys/class/net/lo/statistics/rx_bytes", 5)
    trees.put(tmp_path / "sys/class/net/mgmt0/statistics/rx_bytes", 5)
    trees.put(tmp_path / "sys/class/net/mgmt0/speed", -1)
    one = attached()
    cycle(one)
    assert ask(one, "kv:host_network_receive_bytes_total") == {"ens1f0np0": 1000, "mgmt0": 5}
    assert ask(one, 'netdev_rx_bytes_total{rdma_device="mlx5_0",rdma_port="1"}') == {"ens1f0np0": 1000}
    assert ask(one, "netdev_speed_bytes_per_second") == {"ens1f0np0": 12.5e9}, "-1 is unknown"
    assert ask(one, "ethtool_rx_prio3_pause_duration_total") == {"ens1f0np0": 340}
    assert ask(one, "ethtool_outbound_pci_stalled_wr") == {"ens1f0np0": 31}
    assert ask(one, '{__name__=~"ethtool_rx3.*"}') == {}


def test_a_queue_counter_that_turns_goes_on_and_a_reset_is_one(
    tmp_path: Path, attached: Callable[..., Attachment]
) -> None:
    folder = trees.mlx5(tmp_path, packet_seq_err=2**32 - 10, port_xmit_data=2**32 - 1000)
    one = attached()
    cycle(one)
    trees.put(folder / "hw_counters/packet_seq_err", 5)
    cycle(one, T0 + 1000)
    assert ask(one, "rdma_hw_packet_seq_err_total", T0 + 1000) == {"mlx5_0": 2**32 + 5}
    trees.put(folder / "hw_counters/packet_seq_err", 9)
    cycle(one, T0 + 2000)
    assert ask(one, "rdma_hw_packet_seq_err_total", T0 + 2000) == {"mlx5_0": 2**32 + 9}
    trees.put(folder / "hw_counters/packet_seq_err", 1)  # the driver was loaded anew
    trees.put(folder / "counters/port_xmit_data", 7)
    cycle(one, T0 + 3000)
    assert ask(one, "rdma_hw_packet_seq_err_total", T0 + 3000) == {"mlx5_0": 1}
    assert ask(one, "rdma_port_xmit_data_total", T0 + 3000) == {"mlx5_0": 7}


def test_a_reset_near_the_end_of_the_width_is_no_turn(tmp_path: Path, attached: Callable[..., Attachment]) -> None:
    folder = trees.mlx5(tmp_path, packet_seq_err=2**32 - 10, np_cnp_sent=40)
    one = attached()
    cycle(one)
    trees.put(folder / "hw_counters/packet_seq_err", 0)
    trees.put(folder / "hw_counters/np_cnp_sent", 0)
    cycle(one, T0 + 1000)
    assert ask(one, "rdma_hw_packet_seq_err_total", T0 + 1000) == {"mlx5_0": 0}


def test_a_counter_at_its_end_counts_nothing(tmp_path: Path, attached: Callable[..., Attachment]) -> None:
    trees.mlx5(tmp_path, symbol_error=0xFFFF, port_rcv_errors=3)
    one = attached()
    cycle(one)
    assert ask(one, "kv:rdma_symbol_errors_total") == {}
    assert ask(one, "kv:rdma_receive_errors_total") == {"mlx5_0": 3}


def test_missing_is_missing(tmp_path: Path, attached: Callable[..., Attachment]) -> None:
    folder = trees.mlx5(tmp_path, packet_seq_err=4)
    one = attached()
    cycle(one)
    (folder / "hw_counters/packet_seq_err").unlink()
    trees.put(folder / "hw_counters/out_of_sequence", "Invalid argument")
    cycle(one, T0 + 1000)
    assert ask(one, "kv:rdma_sequence_errors_total", T0 + 1000) == {}
    assert ask(one, "kv:rdma_out_of_sequence_total", T0 + 1000) == {}
    assert ask(one, "kv:rdma_duplicate_requests_total", T0 + 1000) == {"mlx5_0": 0}


def test_a_port_that_goes_away_ends_its_series_and_is_told(tmp_path: Path, attached: Callable[..., Attachment]) -> None:
    trees.mlx5(tmp_path, "mlx5_0", "ens1f0np0")
    trees.mlx5(tmp_path, "mlx5_1", "ens1f1np1")
    one = attached()
    cycle(one)
    gone = tmp_path / "sys/class/infiniband/mlx5_1"
    gone.rename(tmp_path / "unplugged")
    status = cycle(one, T0 + 1000)
    assert (status.state, status.detail) == ("fresh", "mlx5_1/1 went away")
    assert ask(one, "kv:rdma_port_state", T0 + 1000) == {"mlx5_0": 4}
    (tmp_path / "sys/class/infiniband/mlx5_0").rename(tmp_path / "unplugged too")
    status = cycle(one, T0 + 2000)
    assert status.state == "gone"
    assert status.error == "no RDMA port is left: mlx5_0/1, mlx5_1/1 went away"
    assert ask(one, 'up{job="rdma"}', T0 + 2000) == {"": 0}
    (tmp_path / "unplugged").rename(gone)
    assert cycle(one, T0 + 3000).state == "fresh"


def test_no_device_is_unsupported(tmp_path: Path, attached: Callable[..., Attachment]) -> None:
    (tmp_path / "sys/class/net").mkdir(parents=True)
    status = cycle(attached())
    assert status.state == "unsupported"
    assert status.error == f"no RDMA device: {tmp_path}/sys/class/infiniband is not there"


@pytest.mark.skipif(os.geteuid() != 0, reason="takes two users to be denied")
def test_what_may_not_be_read_is_no_permission(tmp_path: Path) -> None:
    """Asked as another user, in a process of its own."""
    tree = tmp_path / "tree"
    folder = trees.mlx5(tree)
    for path in (tmp_path, *tmp_path.parents[:-1]):
        path.chmod(path.stat().st_mode | 0o011)
    script = (
        "import os, sys, time\n"
        "from probes.attach import attach\n"
        "one = attach([f'rdma:{sys.argv[1]}'])\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "status = one.cycle_alone(round(time.time() * 1000)).statuses[0]\n"
        "print(status.state, '|', status.error, '|', status.detail)\n"
    )

    def told() -> str:
        found = subprocess.run([sys.executable, "-c", script, tree], capture_output=True, text=True, check=True)
        return found.stdout.strip()

    (folder / "hw_counters/packet_seq_err").chmod(0o000)
    name = "class/infiniband/mlx5_0/ports/1/hw_counters/packet_seq_err"
    assert told() == f"fresh | None | no permission for {name}"
    (tree / "sys/class/infiniband").chmod(0o000)
    assert told() == "no-permission | class/infiniband may not be read by this user |"


def test_a_driver_that_hangs_is_a_timeout_and_is_asked_once(tmp_path: Path) -> None:
    folder = trees.mlx5(tmp_path)
    stuck = folder / "hw_counters/out_of_buffer"
    stuck.unlink()
    os.mkfifo(stuck)  # whoever opens it waits for a writer
    one = attach([f"rdma:{tmp_path}"], timeout_s=0.2)

    async def twice() -> list[SourceStatus]:
        found = [(await one.cycle(T0 + at, 5.0)).statuses[0] for at in (0, 1000)]
        stuck.write_text("3\n")
        while not (last := (await one.cycle(T0 + 2000, 5.0)).statuses[0]).ok:
            stuck.unlink(missing_ok=True)
            trees.put(stuck, 3)
        return [*found, last]

    first, second, last = asyncio.run(twice())
    assert (first.state, second.state, last.state) == ("timeout", "timeout", "fresh")
    assert (second.error or "").startswith("the driver has not answered for 0.")


def test_the_host_is_named_by_the_tree_and_the_root_is_an_option(tmp_path: Path) -> None:
    trees.lay(tmp_path, "healthy_rc-b-after", host="node-b")
    trees.put(tmp_path / "hostname", "node-b")
    one = attach(["rdma"], sysfs=tmp_path)
    status = cycle(one)
    assert (status.target, status.instance, status.job) == ("rdma", "node-b", "rdma")
    with pytest.raises(TargetError, match=r"--sysfs .*/nowhere: no such folder"):
        attach(["rdma"], sysfs=tmp_path / "nowhere")
    with pytest.raises(TargetError, match="no such folder; it stands for /sys"):
        parse_target("rdma:")


@pytest.mark.parametrize("run", ["healthy_rc", "loss2_requests", "loss2_responses", "wrong_transport_tcp"])
def test_every_recorded_tree_is_read_whole(run: str, tmp_path: Path) -> None:
    """Each file of the port's counters is a series, but for the setting among them."""
    for node in "ab":
        root = trees.lay(tmp_path / node, f"{run}-{node}-after")
        one = attach([f"rdma:{root}"])
        cycle(one)
        files = {path.name for path in (root / "sys/class/infiniband/rxe0/ports/1/hw_counters").iterdir()}
        answer = one.view.instant('{__name__=~"rdma_hw_.*"}', T0)
        found = {labels.name.removeprefix("rdma_hw_").removesuffix("_total") for labels in answer.labels}
        assert found == files - {"lifespan"}
