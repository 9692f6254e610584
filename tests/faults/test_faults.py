"""Whatever befalls an extraction, what its store says is there is there, and the same command again ends it equal.

Each theorem is tried by a campaign (`campaign.py`) of as many faults as fit into seconds; PROBEKIT_FAULTS=nightly has
all of them. `campaign` itself asserts that nothing was broken; what is asserted here is that the faults were met.
"""

import os

NIGHTLY = os.environ.get("PROBEKIT_FAULTS") == "nightly"


def test_a_kill_at_any_moment_loses_nothing_committed_and_shows_nothing_partial(campaign):
    """kill -9: what was committed stays as it was, every file under a final name is whole, the resumed run is equal."""
    verdict = campaign("kills", 16, 1000)
    assert verdict["killed"] + verdict["finished"] >= (1000 if NIGHTLY else 16)
    assert verdict["killed"] >= verdict["resumed"] / 4
    assert verdict["part"] > 0, "some were killed in the middle"


def test_a_fault_at_each_call_is_reported_or_survived(campaign):
    """A kill, EIO, ENOSPC at each create, write, fsync, rename, link, mkdir: errors are told (code 4), nothing partial
    is visible, the resumed run is equal. Without hard links the run itself is equal."""
    verdict = campaign("points", 9, 1)
    assert verdict["calls"] >= 50
    assert min(verdict[fault] for fault in ("kill", "EIO", "ENOSPC")) >= verdict["calls"] // (1 if NIGHTLY else 9)


def test_every_flipped_bit_is_noticed_and_its_file_named(campaign):
    """In every file of the store; the other exception is a flip that leaves the same JSON, as of a letter in 1e-05."""
    rounds = 2000 if NIGHTLY else 100
    verdict = campaign("flips", 100, 2000)
    assert verdict["noticed"] + verdict.get("same", 0) == rounds
    assert verdict["noticed"] >= 0.97 * rounds


def test_every_truncated_file_is_noticed_and_named(campaign):
    """The one exception is the newline at the end of JSON."""
    rounds = 500 if NIGHTLY else 60
    verdict = campaign("truncations", 60, 500)
    assert verdict["noticed"] + verdict.get("same", 0) == rounds
    assert verdict["noticed"] >= 0.9 * rounds


def test_every_deleted_file_is_noticed_and_named(campaign):
    """A store without its manifest is an unfinished one."""
    assert campaign("deletions", 1, 1)["noticed"] >= 10


def test_a_full_disk_is_an_error_of_storage_and_the_run_resumes_when_there_is_room(campaign):
    """The command exits 4 with one line, keeps whole shards, shows nothing partial; the resumed run is equal."""
    verdict = campaign("full_disk", 3, 40)
    assert verdict["resumed"] == (40 if NIGHTLY else 3)
    assert verdict["part"] > 0


def test_two_writers_with_different_bytes_leave_a_store_whose_records_match_its_shards(campaign):
    """Both end well, and each shard is wholly of the one or of the other."""
    verdict = campaign("two_writers", 8, 100)
    assert verdict["rounds"] >= (100 if NIGHTLY else 8)
    assert verdict["mixed"] > 0, "some stores hold shards of both"


def test_of_two_models_that_write_one_store_at_once_one_is_refused(campaign):
    """The store is wholly that of the other."""
    verdict = campaign("two_models", 3, 50)
    assert verdict.get("first", 0) + verdict.get("second", 0) == (50 if NIGHTLY else 3)


def test_a_reader_sees_complete_prefixes_that_grow_and_then_all(campaign):
    """Progress counts whole shards, in order, and never falls; a listing never fails; until the store is complete,
    opening it says that it is unfinished, and then it is equal."""
    verdict = campaign("readers", 2, 40)
    assert verdict["looks"] > verdict["rounds"]
    assert verdict["steps"] >= 3 * verdict["rounds"]


def test_ctrl_c_at_any_moment_is_orderly(campaign):
    """Exit 130 with one line, or 0 when it had finished; no traceback; what was committed stays; the resumed run is
    equal."""
    verdict = campaign("interrupts", 8, 50)
    assert verdict["interrupted"] > 0


def test_ctrl_c_to_a_process_is_orderly(campaign):
    """The same for the program as people start it."""
    verdict = campaign("interrupted_processes", 1, 10)
    assert verdict["interrupted"] > 0


def test_a_power_loss_after_any_call_leaves_a_sound_store(campaign):
    """What was not fsynced is lost, or any part of it is there: nothing partial is visible, the resumed run is equal.
    After the last call, nothing is lost."""
    verdict = campaign("power", 16, 1)
    assert verdict["calls"] >= 50
    assert verdict["losses"] >= 3 * (verdict["calls"] // (1 if NIGHTLY else 16))


def test_a_power_loss_after_a_kill_and_a_resume_takes_nothing(campaign):
    """What a run finds that was killed before it could fsync it is made to stay before the store is called complete."""
    assert campaign("power_after_kill", 24, 1)["losses"] >= 25


def test_hostile_inputs_end_in_one_line(campaign):
    """Configs, tokenizers, tables, arrays, stores, results and options, also as links, pipes, devices and files without
    end: success or an error of probekit, within memory and time."""
    verdict = campaign("inputs", 30, 1000)
    assert sum(n for outcome, n in verdict.items() if outcome.startswith("exit")) == (1000 if NIGHTLY else 30)
    assert verdict["exit 3"] > 0
