import pytest

from tui.commands.when import Moment, bind_negative, duration_ms, duration_text, expression_first, moment, rfc3339


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("30s", 30_000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("500ms", 500),
        ("1d", 86_400_000),
        ("2.5", 2_500),
        ("0.4s", 400),
        ("1w", 604_800_000),
    ],
)
def test_durations_are_prometheus_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "0s", "-5m", "5 m", "10q", "m10", "30s1h", "nan"])
def test_a_broken_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        duration_ms(text)


@pytest.mark.parametrize("text", ["1h30m", "30s", "15m", "14d", "1d2h3m4s5ms"])
def test_a_duration_is_written_as_it_is_read(text: str) -> None:
    assert duration_text(duration_ms(text)) == text


def test_moments() -> None:
    assert moment("1700000000") == Moment(1_700_000_000_000)
    assert moment("2023-11-14T22:13:20Z") == Moment(1_700_000_000_000)
    assert moment("2023-11-14T23:13:20+01:00") == Moment(1_700_000_000_000)
    assert moment("2023-11-14T22:13:20.5Z") == Moment(1_700_000_000_500)
    assert moment("-5m").resolve(1_000_000) == 700_000
    assert moment("now").resolve(1_000_000) == 1_000_000
    with pytest.raises(ValueError, match="no time"):
        moment("yesterday")


def test_rfc3339_round_trip() -> None:
    for ms in (1_700_000_000_000, 1_700_000_000_123):
        assert moment(rfc3339(ms)) == Moment(ms)


def test_a_negative_duration_binds_to_its_option() -> None:
    assert bind_negative(["x", "--at", "-5m", "--json"]) == ["x", "--at=-5m", "--json"]
    assert bind_negative(["--against=-1d", "-5m"]) == ["--against=-1d", "-5m"]
    assert bind_negative(["-o", "f", "--for", "5m"]) == ["-o", "f", "--for", "5m"]


def test_a_fraction_binds_too_and_an_expression_stays_a_word() -> None:
    assert bind_negative(["x", "--at", "-0.5s"]) == ["x", "--at=-0.5s"]
    words = ["-Inf", "-kv:x", "--json", "--step=1s", "-h", "--", "x"]
    assert expression_first(words) == [" -Inf", " -kv:x", *words[2:]]


@pytest.mark.parametrize("text", ["99999999999999999y", "201y", "9" * 400])
def test_a_duration_that_nobody_can_mean_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration that can be meant") as error:
        duration_ms(text)
    assert len(str(error.value)) < 120


def test_a_time_that_no_calendar_has() -> None:
    with pytest.raises(ValueError, match="year 9999"):
        moment("9" * 400)
    assert rfc3339(10**18) == "1000000000000000 s"
    assert rfc3339(-(10**18)).endswith(" s")
