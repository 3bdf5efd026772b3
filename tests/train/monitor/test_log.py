"""What jzero logs is on the console of a run, once, and nowhere else afterwards."""

import io
import logging

from rich.console import Console

from jzero.train.monitor.log import shown_log


def test_sentences_are_shown_as_they_are():
    text, log = io.StringIO(), logging.getLogger("jzero")
    before = log.level, log.propagate, list(log.handlers)
    with shown_log(Console(file=text, width=20)):
        log.info("kept in runs/[red]%s, which is longer than the console is wide", "x")
        log.warning("again")
        log.debug("not this")
    log.warning("nor this")
    assert text.getvalue() == "kept in runs/[red]x, which is longer than the console is wide\nagain\n"
    assert (log.level, log.propagate, list(log.handlers)) == before


def test_other_processes_show_nothing():
    with shown_log(None):
        logging.getLogger("jzero").info("nothing")
