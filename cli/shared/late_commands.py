"""The commands of `cq` and the modules that have them: only the module of the command that runs is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import typer.main

from cq.cli.shared.interrupts import ended_by_interrupts

PANELS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Queues": {
        "configure": ("queues.configure", "Create a queue, or change its configuration."),
        "rebucket": ("queues.manage", "Change the number of buckets of a queue and of its levels."),
        "limit": ("queues.manage", "Show or set the limits of the queued updates of a queue."),
        "pause": ("queues.configure", "Stop workers from combining a queue and its levels."),
        "resume": ("queues.configure", "Let workers combine a queue and its levels again."),
        "purge": ("queues.manage", "Delete all values and queued updates of a queue and its levels."),
        "delete": ("queues.manage", "Delete a queue with all its data."),
    },
    "Write and read": {
        "add": ("queues.data", "Add updates to a queue, or the visits of an access log."),
        "ask": ("queues.data", "Ask a queue with a decider, wait for the answer, and print it."),
        "get": ("queues.data", "Print the values of keys, one line per key."),
        "items": ("queues.data", "Print all keys and their values, one line per key."),
        "series": ("queues.series", "Print the values of keys by minutes, hours or days."),
        "top": ("queues.top", "Print the keys with the highest scores."),
        "cloud": ("queues.top", "Print the published cloud of a queue."),
    },
    "Run and watch": {
        "worker": ("operate.worker", "Combine queues, send their changes, publish clouds, serve feeds."),
        "status": ("operate.status", "Show the backlogs of queues, the workers and warnings."),
        "web": ("web.command", "Serve a dashboard of workers, queues and problems."),
        "drain": ("queues.manage", "Wait until no updates of a queue and its levels are queued."),
        "copy": ("operate.copy", "Copy an embedded store to a file, while it is in use."),
        "health": ("operate.checks", "Check that the store answers and workers keep up."),
        "doctor": ("operate.checks", "Check what cq needs, from Python to reporting databases."),
        "settings": ("operate.config", "Show every setting, its value and its source."),
    },
    "Repair": {
        "verify": ("queues.verify", "Check a queue for corrupt or inconsistent data."),
        "aside": ("queues.set_aside", "Show, retry or drop failed updates and missed reports."),
    },
    "Connect": {
        "link": ("queues.link", "Send changes of queues to SQL tables, webhooks, Kafka, stores."),
        "outbox": ("queues.outbox", "Add rows of a table in an application's database to a queue."),
        "feed": ("queues.feed", "Append and read messages by receiver, in commit order."),
        "cells": ("queues.cells", "Distribute users over many stores."),
    },
    "Try it": {
        "demo": ("demos.command", "Run a demonstration on real data."),
        "bench": ("bench.command", "Measure cq and other systems on this machine."),
    },
}
"""{title in `cq --help`: {command or group: (its module, its summary)}}."""
_MODULES: Final = {name: module for panel in PANELS.values() for name, (module, _) in panel.items()}


class LateCommands(Mapping[str, Any]):
    """The commands and groups by name; the module of one is imported when it is looked up.

    Args:
        prepare: called with the name and the command before its first use.
    """

    def __init__(self, prepare: Callable[[str, Any], object]) -> None:
        self._prepare = prepare
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._load(_MODULES[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)

    def _load(self, module: str) -> None:
        # Through a group, because typer makes a group only of a set that has a name.
        parent = typer.Typer(rich_markup_mode=None)
        parent.callback()(lambda: None)
        with ended_by_interrupts():
            parent.add_typer(import_module(f"cq.cli.{module}").commands)
        group: Any = typer.main.get_group(parent)
        for name, command in group.commands.items():
            self._prepare(name, command)
            self._loaded[name] = command
