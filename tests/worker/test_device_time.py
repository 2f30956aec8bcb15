from spearhead.worker.device_time import GPU_TIME, PROCESS_TIME, EventTimer, ProcessTimer
from spearhead.worker.model_thread import ModelThread


class Stream:
    """A device's clock and how far the host knows that it came."""

    def __init__(self):
        self.now_ms = 0.0
        self.synchronized = False


class Mark:
    def __init__(self, stream):
        self.stream = stream
        self.at_ms = -1.0

    def record(self):
        self.at_ms = self.stream.now_ms

    def synchronize(self):
        self.stream.synchronized = True

    def elapsed_time(self, end):
        assert self.stream.synchronized
        return end.at_ms - self.at_ms


def test_the_processors_time_is_that_of_the_work():
    timer = ProcessTimer()
    timer.start()
    sum(range(200_000))
    ((name, spent_ns),) = timer.stop().items()
    assert name == PROCESS_TIME
    assert spent_ns > 0


def test_the_devices_time_is_between_its_own_marks_after_it_has_reached_them():
    stream = Stream()
    timer = EventTimer(lambda: Mark(stream))
    for start_ms, end_ms in ((3.0, 5.5), (7.0, 7.25)):
        stream.now_ms = start_ms
        timer.start()
        stream.now_ms, stream.synchronized = end_ms, False
        assert timer.stop() == {GPU_TIME: round((end_ms - start_ms) * 1e6)}


async def test_work_is_timed_on_the_device_from_when_its_thread_is_told_to():
    thread = ModelThread("test")
    try:
        assert (await thread.run(lambda: 1)).device == {}
        thread.measure_with(ProcessTimer())
        timed = await thread.run(lambda: sum(range(200_000)))
        assert timed.device.keys() == {PROCESS_TIME}
    finally:
        thread.close()
