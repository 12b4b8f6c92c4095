"""Trains the zstd dictionary that threadkeep ships, and prints how much it saves.

    python bench/train_dictionary.py            # writes src/threadkeep/engine/log/dictionary-2.zdict
    python bench/train_dictionary.py --check    # measures the shipped file, writes nothing

The dictionary is chosen by messages about packages that it was not trained on. The benchmark's conversation does not
influence the choice; it is only reported. Other versions of the packages give another dictionary, so a released one
stays: stored items need the exact dictionary that they were written with. Its id comes from its content.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import zstandard
from rich.console import Console
from rich.table import Table

import workload
from training import samples
from training.texts import HELD_OUT, TRAINING, Texts, standard_library_lines

TARGET = pathlib.Path(__file__).parents[1] / "src/threadkeep/engine/log/dictionary-2.zdict"
SEED = 20_250
LEVEL = 6
TRAINING_ITEMS, HELD_OUT_ITEMS, BENCHMARK_TURNS = 16_000, 1_500, 200
# 384 KB would save 0.4 % more than 256 KB.
SIZES = [kib * 1024 for kib in (64, 128, 192, 256)]
SEGMENTS = (200, 400, 700, 1_000, 1_500)
DMERS = (6, 8)
PROBE = 40

Bytes = bytes | bytearray | memoryview  # what train_dictionary takes, according to its stubs


@dataclass(frozen=True, slots=True)
class Trained:
    """A candidate, with the mean compressed size of the held-out items."""

    dictionary: zstandard.ZstdCompressionDict
    mean_size: float
    k: int
    d: int

    @property
    def size(self) -> int:
        return len(self.dictionary.as_bytes())


def mean_size(items: Sequence[bytes], dictionary: zstandard.ZstdCompressionDict | None = None) -> float:
    compressor = zstandard.ZstdCompressor(
        level=LEVEL, dict_data=dictionary, write_content_size=True, write_dict_id=False
    )
    return statistics.fmean(len(compressor.compress(item)) for item in items)


def candidates(training: list[Bytes], held_out: list[bytes]) -> list[Trained]:
    """Return the best dictionary of each size, measured on the held-out items."""
    best = []
    for size in SIZES:
        tried = [train(training, held_out, size=size, k=k, d=d) for k, d in itertools.product(SEGMENTS, DMERS)]
        best.append(min(tried, key=lambda one: one.mean_size))
    return best


def train(training: list[Bytes], held_out: list[bytes], *, size: int, k: int, d: int) -> Trained:
    dictionary = zstandard.train_dictionary(size, training, k=k, d=d, level=LEVEL)
    return Trained(dictionary, mean_size(held_out, dictionary), k, d)


def training_items(foreign: frozenset[int]) -> list[Bytes]:
    return list(samples.items(Texts(TRAINING, seed=SEED, foreign=foreign), TRAINING_ITEMS))


def held_out_items(foreign: frozenset[int]) -> list[bytes]:
    return list(samples.items(Texts(HELD_OUT, seed=SEED + 1, foreign=foreign), HELD_OUT_ITEMS))


def benchmark_items() -> list[bytes]:
    """Return every message of the benchmark's conversation as an item."""
    return [samples.list_item(message) for message in workload.messages(BENCHMARK_TURNS)]


def without_registry(dictionary: bytes) -> bytes:
    """Replace the name of the package registry that the texts link to, without moving anything."""
    name = b"py" + b"pi"
    return dictionary.replace(name, b"docs").replace(name.upper(), b"DOCS").replace(b"Py" + b"PI", b"Docs")


def shared_with_standard_library(dictionary: bytes) -> float:
    """Return the share of PROBE-byte pieces that also occur in the standard library. It should be a few idioms only."""
    text = "\0".join(workload.corpus()).encode()
    pieces = [dictionary[at : at + PROBE] for at in range(0, len(dictionary) - PROBE, PROBE)]
    return sum(piece in text for piece in pieces) / len(pieces)


def report(console: Console, held_out: list[bytes], benchmark: list[bytes], tried: list[Trained]) -> None:
    """Print the mean bytes per item, and the ratio to no dictionary."""
    table = Table("dictionary", "k", "d", "held-out items", "benchmark items", title=f"bytes an item, level {LEVEL}")
    plain = mean_size(held_out), mean_size(benchmark)
    table.add_row(
        "(uncompressed)", "", "", *(f"{statistics.fmean(map(len, items)):.0f}" for items in (held_out, benchmark))
    )
    table.add_row("none", "", "", *(f"{size:.0f}" for size in plain))
    for one in tried:
        sizes = one.mean_size, mean_size(benchmark, one.dictionary)
        cells = (f"{size:.0f} ({size / without:.2f})" for size, without in zip(sizes, plain, strict=True))
        table.add_row(f"{one.size / 1024:.0f} KB", str(one.k or ""), str(one.d or ""), *cells)
    console.print(table)


def shipped(held_out: list[bytes]) -> Trained:
    dictionary = zstandard.ZstdCompressionDict(TARGET.read_bytes())
    return Trained(dictionary, mean_size(held_out, dictionary), 0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the dictionary that threadkeep ships.")
    parser.add_argument("--check", action="store_true", help="measure the shipped file instead of training one")
    options = parser.parse_args()
    console = Console()
    foreign = standard_library_lines()
    held_out = held_out_items(foreign)
    tried = [shipped(held_out)] if options.check else candidates(training_items(foreign), held_out)
    report(console, held_out, benchmark_items(), tried)
    best = min(tried, key=lambda one: one.mean_size)
    if not options.check:
        TARGET.write_bytes(without_registry(best.dictionary.as_bytes()))
    share = shared_with_standard_library(best.dictionary.as_bytes())
    console.print(
        f"{TARGET.name}: {best.size:,} bytes, id {best.dictionary.dict_id()}, {share:.1%} also in the standard library"
    )


if __name__ == "__main__":
    main()
