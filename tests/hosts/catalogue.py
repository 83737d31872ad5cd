"""Where each fault of the catalogue is covered, if no scenario of this folder does it.

Numbers that a scenario names in ``covers`` may stand here too: then a cheaper test, or one that
reaches where packets do not, looks at the same fault.
"""

NUMBERS = tuple(f"F{number}" for number in range(1, 38))

ELSEWHERE = {
    # A network or a process.
    "F1": ("tests/processes/test_run.py::test_processes_with_a_kill_and_a_slow_learner",),
    "F2": ("tests/processes/test_chaos.py::test_a_job_survives_and_replays",),
    "F3": ("tests/processes/test_run.py::test_processes_with_a_kill_and_a_slow_learner",),
    "F4": ("tests/processes/test_chaos.py::test_a_job_survives_and_replays",),
    "F14": ("tests/ddloco/stage/driver/test_driver.py::test_links_recover_from_faults",),
    "F15": (
        "tests/transport/test_link_breaks.py::test_a_duplicate_is_dropped_and_counted",
        "tests/ddloco/stage/driver/test_driver.py::test_links_recover_from_faults",
    ),
    # Wrong bytes.
    "F17": (
        "tests/transport/test_codec_pieces.py::test_a_flipped_bit_anywhere_in_the_tensors_is_refused",
    ),
    "F18": (
        "tests/hosts/test_fuzz.py::test_a_live_job_is_fuzzed",
        "tests/transport/test_zeromq.py::test_rude_messages_are_dropped_and_counted",
    ),
    "F19": (
        "tests/hosts/test_fuzz.py::test_a_live_job_is_fuzzed",
        "tests/transport/test_zeromq.py::test_a_part_beyond_reading_ends_only_its_own_connection",
        "tests/transport/test_codec.py::test_a_bomb_inside_a_header_is_refused",
    ),
    "F20": (
        "tests/hosts/test_fuzz.py::test_a_live_job_is_fuzzed",
        "tests/transport/test_curve_auth.py::test_half_open_connections_stop_no_other",
        "tests/processes/test_keys.py::test_a_foreign_key_keeps_its_holder_waiting",
    ),
    "F21": (
        "tests/hosts/test_fuzz.py::test_a_live_job_is_fuzzed",
        "tests/transport/test_curve_auth.py::test_a_stolen_identity_is_not_heard",
    ),
    "F22": (
        "tests/processes/test_run.py::test_a_different_job_is_refused_at_the_handshake",
        "tests/transport/test_link.py::test_who_does_not_agree_is_refused_and_told_what_differs",
    ),
    # Wrong numbers.
    "F23": (
        "tests/ddloco/machines/outer/test_merge.py::test_a_value_that_is_not_finite_refuses_the_whole_learner",
        "tests/lab/test_hostile_world.py::test_poison_is_in_and_out",
    ),
    "F24": ("tests/processes/test_divergence.py::test_a_changed_loss_is_named",),
    "F25": (
        "tests/ddloco/machines/syncer/test_machine.py::test_a_false_report_is_refused",
        "tests/ddloco/machines/syncer/test_machine.py::test_a_stale_contribution_is_refused",
        "tests/ddloco/machines/syncer/test_machine.py::test_no_tokens_are_merged_twice",
    ),
    # Disks.
    "F28": (
        "tests/ddloco/stage/driver/test_driver.py::test_a_tape_that_cannot_be_written_ends_its_actor",
        "tests/replay/test_tape.py::test_a_full_disk_is_a_tape_error",
        "tests/ddloco/workers/test_fragment_store.py::test_what_cannot_be_written_leaves_what_was",
    ),
    "F29": (
        "tests/replay/test_tape.py::test_a_tape_cut_at_any_byte_gives_the_whole_records_before",
        "tests/replay/test_tape.py::test_every_flipped_bit_is_noticed_where_it_stands",
        "tests/ddloco/workers/test_fragment_store.py::test_every_damaged_byte_is_noticed",
    ),
    # Processes again.
    "F30": ("tests/processes/test_run.py::test_a_worker_that_dies_is_an_event",),
    "F34": ("tests/processes/test_kills.py::test_a_run_with_a_kill_at_any_moment_replays",),
    "F35": ("tests/ddloco/test_cancellations.py::test_cancelled_anywhere_a_driver_leaves_nothing",),
}

NOT_HERE = {
    "F31": "there are no snapshots of a whole run yet",
    "F32": "there are no snapshots of a whole run yet, so no markers",
    "F36": "there is one protocol version; another one is refused, see F22",
    "F37": "no time-out can be configured, and no actor is expelled for silence",
}
"""Why nothing covers these."""
