"""The rolling restart itself, with few streams: no request may fail, and every service ends with code 0."""

from benchmarks.rolling_restart import measure


async def test_each_service_is_replaced_under_load_and_no_request_fails(tmp_path):
    found = await measure(tmp_path, streams=4, tokens=64, rest_s=0.5)
    assert [restart["service"] for restart in found["restarts"]] == ["draft", "verify", "scheduler"]
    assert {restart["exit_code"] for restart in found["restarts"]} == {0}
    assert found["requests"] >= 8
    assert (found["failed"], found["short"], found["errors"]) == (0, 0, [])
