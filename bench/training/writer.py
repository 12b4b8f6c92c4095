"""Writes the content of one sample: text from `Texts`, and numbers, ids, times and paths that never repeat."""

from __future__ import annotations

import random
import uuid

from training.texts import Texts


class Writer:
    """Generates the text, numbers and ids of one sample."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.random: random.Random = texts.random

    def prose(self, low: int, high: int) -> str:
        return self.texts.take("prose", int(self.random.triangular(low, high, low + (high - low) / 4)))

    def code(self, low: int, high: int) -> str:
        return self.texts.take("code", int(self.random.triangular(low, high, low + (high - low) / 4)))

    def uid(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def token(self, size: int) -> str:
        return "".join(self.random.choices("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz123456789", k=size))

    def pick(self, *options: str) -> str:
        return self.random.choice(options)

    def moment(self) -> str:
        r = self.random
        day = f"20{r.randint(23, 27)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"
        return f"{day}T{r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02}" + self.pick(
            "Z", "+00:00", f".{r.randint(0, 999999):06}Z"
        )

    def path(self) -> str:
        words = [word for word in self.texts.take("prose", 60).split() if word.isidentifier()] or ["notes"]
        folder = self.pick("/", "/app/", "/home/user/", "/project/src/", "/repo/", "./", "docs/", "tests/", "/data/")
        return folder + "/".join(words[:3]).lower() + self.pick(".py", ".py", ".md", ".json", ".ts", ".txt", ".yaml")
