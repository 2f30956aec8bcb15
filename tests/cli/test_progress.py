import io

from spearhead.cli.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_one_line_every_tenth_of_the_way():
    stream = io.StringIO()
    bar = ProgressBar("work", 100, stream=stream)
    for _ in range(100):
        bar.advance()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 10
    assert "100/100" in lines[-1]


def test_a_terminal_is_redrawn_and_left_with_a_line_end():
    stream = Terminal()
    bar = ProgressBar("work", 2, unit="MiB", stream=stream)
    bar.advance()
    bar.advance()
    text = stream.getvalue()
    assert text.count("\r") == 2
    assert text.endswith("\n")
    assert "1/2 MiB" in text


def test_the_total_may_come_later_and_is_never_overrun():
    stream = io.StringIO()
    bar = ProgressBar("work", stream=stream)
    bar.move_to(30, 10)
    assert "10/10" in stream.getvalue()


def test_what_was_done_before_does_not_count_in_the_rate():
    stream = io.StringIO()
    bar = ProgressBar("work", 1000, stream=stream)
    bar.start_from(900)
    bar.move_to(900)
    assert "  0.0/s  0 s left" in stream.getvalue()
