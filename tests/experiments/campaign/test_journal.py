"""Journals: one process at a time, one record per task of the table, resumable wherever they were cut."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support.campaign_clients import client, finished, squares, workers_of
from support.campaign_tables import Squares, count_lines

from nvdla.errors import FormatError
from nvdla.experiments.campaign import Journal, Workers, run
from nvdla.experiments.campaign.journal import Task, read
from nvdla.experiments.campaign.pool import Shard
from nvdla.experiments.campaign.runner import _checked

TABLE = Squares(20)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("j") / "j.jsonl", TABLE, Workers(1))


def test_a_journal_resumes_wherever_its_first_line_was_cut(tmp_path, whole):
    """A disk that is full at the start leaves an empty file or a part of the first line."""
    path, head = tmp_path / "a.jsonl", whole.index(b"\n") + 1
    for size in (0, 1, head // 2, head - 1, head, head + 5):
        path.write_bytes(whole[:size])
        journal = Journal(path, TABLE, resume=True)
        assert not journal.done
        run(TABLE, journal, Workers(1))
        assert path.read_bytes() == whole


@pytest.mark.parametrize("text", [b"hello", b"{", b'{"campaign":"others","fo', b'{"key": 1}\n'])
def test_a_file_that_is_no_journal_is_kept(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_bytes(text)
    if b'{"campaign":"squares"'.startswith(text):  # the beginning of a journal of this campaign
        return
    with pytest.raises(FormatError, match="not a journal of a campaign"):
        Journal(path, TABLE, resume=True)
    assert path.read_bytes() == text


def test_a_record_of_a_task_that_the_table_does_not_have_is_refused(tmp_path, whole):
    path = tmp_path / "a.jsonl"
    path.write_bytes(whole + b'{"key":"000020","square":400}\n')
    with pytest.raises(FormatError, match=r"a\.jsonl: 1 record of tasks that .* not have, such as '000020'"):
        Journal(path, TABLE, resume=True)


def test_a_second_record_of_a_task_is_refused(tmp_path, whole):
    """As ``cat a.jsonl b.jsonl`` makes them."""
    path, lines = tmp_path / "a.jsonl", whole.splitlines(keepends=True)
    path.write_bytes(whole + lines[3])
    with pytest.raises(FormatError, match=r"a\.jsonl:22: task '000002' has a record already"):
        Journal(path, TABLE, resume=True)
    path.write_bytes(whole + whole)
    with pytest.raises(FormatError, match=r"a\.jsonl:22: not a record"):
        Journal(path, TABLE, resume=True)


VALUES = [None, True, 5, -1.5, "text", "", [], [1], {}, {"a": [1]}]


@pytest.mark.parametrize("field", ["format", "version", "campaign", "identity", "settings"])
def test_a_tampered_first_line_is_one_error(tmp_path, whole, field):
    head = json.loads(whole.splitlines()[0])
    path = tmp_path / "a.jsonl"
    for value in VALUES:
        for identity in (head["identity"], "0" * 32):
            changed = {**head, "identity": identity, field: value}
            path.write_text(json.dumps(changed) + "\n")
            try:
                Journal(path, TABLE, resume=True).close()
            except FormatError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize("key", [None, 5, True, [], ["000001"], {}, 1e999])
def test_a_key_that_is_no_text_is_one_error(tmp_path, whole, key):
    path, head = tmp_path / "a.jsonl", whole.splitlines(keepends=True)[0]
    path.write_bytes(head + json.dumps({"key": key, "square": 1}).encode() + b"\n")
    with pytest.raises(FormatError, match=r"a\.jsonl:2: not a record of a campaign"):
        Journal(path, TABLE, resume=True)


def test_of_two_commands_on_one_journal_the_second_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    first = client(tmp_path, path)
    end = time.monotonic() + 60
    while (not path.exists() or count_lines(path) < 5) and time.monotonic() < end:
        time.sleep(0.01)
    first.send_signal(signal.SIGSTOP)  # it would be through before the second has begun
    second = client(tmp_path, path, stderr=subprocess.PIPE)
    said = second.communicate(timeout=60)[1].decode()
    first.send_signal(signal.SIGCONT)
    assert second.returncode != 0 and "is in use: must be open in one process at a time" in said
    assert first.wait(120) == 0
    assert squares(path) == {number: number**2 for number in range(400)} and count_lines(path) == 401


def test_the_lock_ends_with_the_journal(tmp_path, whole):
    path = tmp_path / "a.jsonl"
    path.write_bytes(whole)
    journal = Journal(path, TABLE, resume=True)
    with pytest.raises(FormatError, match="in use"):
        Journal(path, TABLE, resume=True)
    journal.finish()
    Journal(path, TABLE, resume=True).close()


def test_the_order_is_made_under_the_lock(tmp_path, whole, monkeypatch):
    """Whoever waited for the lock must not append to the file that was replaced."""
    path = tmp_path / "a.jsonl"
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *reversed(lines[1:])]))
    journal = Journal(path, TABLE, resume=True)
    seen = []

    def whole_file(target):
        with pytest.raises(FormatError, match="in use"):
            Journal(path, TABLE, resume=True)
        seen.append(target)
        monkeypatch.undo()
        from nvdla.util.files import whole_file

        return whole_file(target)

    monkeypatch.setattr("nvdla.experiments.campaign.journal.whole_file", whole_file)
    journal.finish()
    assert seen and path.read_bytes() == whole


@pytest.mark.skipif(sys.platform != "linux", reason="workers begin as copies on Linux alone")
def test_a_worker_that_outlives_its_client_does_not_keep_the_lock(tmp_path):
    path = tmp_path / "a.jsonl"
    process = client(tmp_path, path)
    end = time.monotonic() + 60
    while (not path.exists() or count_lines(path) < 5) and time.monotonic() < end:
        time.sleep(0.01)
    workers = workers_of(process.pid)
    for each in workers:
        os.kill(each, signal.SIGSTOP)  # it does not end while it is stopped, but for SIGKILL
    try:
        held = [
            each
            for worker in workers
            for each in os.listdir(f"/proc/{worker}/fd")
            if os.path.realpath(f"/proc/{worker}/fd/{each}") == str(path)
        ]
        assert workers and not held
    finally:
        process.kill()
        process.wait()


def test_what_a_worker_returns_is_checked(tmp_path):
    """A worker of a cluster may be any machine."""
    shard = Shard([Task("0", 0), Task("1", 1)])
    good = [{"key": "1"}, {"key": "0", "square": 0}]
    assert _checked(good, shard) == good
    for records in (None, 5, "text", {}, (), [1, 2], good[:1], [*good, good[0]], [{"key": "0"}, {"key": 1}], [{}, {}]):
        with pytest.raises(FormatError, match="a worker returned"):
            _checked(records, shard)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"bytes", {1: 2, "a": 3}, {(1, 2): 3}, {1, 2}])
def test_what_is_no_plain_data_does_not_get_into_a_journal(tmp_path, value):
    journal = Journal(tmp_path / "a.jsonl", TABLE)
    journal.append([{"key": "000000", "square": 0}])
    with pytest.raises(FormatError, match=r"record of task '000001': .* must be plain data"):
        journal.append([{"key": "000001", "square": value}])
    journal.close()
    assert [each["key"] for each in read(tmp_path / "a.jsonl")] == ["000000"]
