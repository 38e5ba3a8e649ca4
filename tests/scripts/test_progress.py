"""What a training script's progress leaves in a file."""

from __future__ import annotations

import io

import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def written(monkeypatch, stream, **options):
    monkeypatch.setattr("sys.stderr", stream)
    with progress.progress(total=300, desc="training", unit="step", **options) as bar:
        for step in range(300):
            bar.set_postfix(loss=f"{step}", refresh=False)
            bar.update()
    return stream.getvalue()


def test_few_lines_in_a_file(monkeypatch):
    lines = written(monkeypatch, io.StringIO()).split("\n")
    assert "\r" not in "".join(lines)
    assert lines[0].startswith("training:   0%|")
    assert lines[-2].startswith("training: 100%|##########| 300/300")
    assert lines[-2].endswith("loss=299]")
    assert lines[-1] == ""
    assert len(lines) < 10


def test_a_bar_on_a_terminal(monkeypatch):
    text = written(monkeypatch, Terminal())
    assert text.count("\n") == 1
    assert "\r" in text
