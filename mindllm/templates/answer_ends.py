"""Where answers end in the text of a chat template, which says so nowhere: learned from what follows a known answer."""

import os
import re
from collections.abc import Iterable


class AnswerEnds:
    """The markers that end answers of one kind, those that another turn follows and the last one of a conversation.

    They differ where a template asks for `loop.last`, and where an answer ends by opening the next turn.
    """

    def __init__(self, inner: str, last: str, specials: Iterable[str], eos: str | None, header: str) -> None:
        """Compare texts.

        Args:
            inner: what a template writes after an answer when another turn follows, "" where it refuses to.
            last: what it writes after the last answer.
            specials: the tokens that can end an answer.
            eos: the token that ends an answer where the template has none.
            header: what opens an answer, "" where that is not known.
        """
        tokens = sorted(specials, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, tokens)) if tokens else r"(?!)")
        self._next_special = re.compile(rf"\s*({self._special.pattern})")
        self._knows_inner, self._knows_last = bool(inner), bool(last)
        shared = self._shared(inner, last)
        ends = [found.end() for found in self._special.finditer(shared)]
        if not shared.strip() and (found := self._next_special.match(inner)):
            # What opens every turn ends none, where another token is seen to end the last one.
            opens_only = found[1] in header and self._special.search(last)
            ends = [] if opens_only else [found.end()]
        stop = ends[-1] if ends else 0
        self._inner = self._last_special(inner[:stop]) or shared.strip()
        self._last, self._missing = self._inner, ""
        if self._inner not in last or not self._inner:
            self._last = self._first_special(last) or last.strip()
        written = last.rstrip()
        self._trailing = last[len(written) :]
        if not self._special.search(last):
            self._missing = inner[len(written) : stop] if inner.startswith(written) else ""
            if not written and not self._missing:
                self._missing = eos or ""

    @classmethod
    def of_calls(cls, inner: str, last: str, specials: Iterable[str], eos: str | None, header: str) -> "AnswerEnds":
        """The same for answers that call tools; both texts begin within a call, whose own end is cut off."""
        ends = cls(inner, last, specials, eos, header)
        shared = ends._shared(inner, last)
        first = ends._special.search(shared)
        call = first.start() if first else len(shared)
        return cls(inner[call:], last[call:], specials, eos, header)

    def close(self, text: str, said: int, stop: int, is_last: bool) -> tuple[str, int | None]:
        """The text, and where in it an answer ends whose words end at `said` and whose turn ends before `stop`.

        The text is longer than before where the template leaves out what ends its last answer. None: nothing ends it.
        """
        marker = self._last if is_last else self._inner
        found = text.find(marker, said, stop) if marker else -1
        if is_last and self._missing and not self._special.search(text, said):
            text = text.removesuffix(self._trailing) + self._missing
            return text, len(text)
        if found >= 0:
            return text, found + len(marker)
        is_known = self._knows_last if is_last else self._knows_inner
        unforeseen = None if is_known else self._next_special.match(text, said, stop)
        return text, unforeseen.end() if unforeseen else None

    def _shared(self, inner: str, last: str) -> str:
        """What both texts begin with, without a part of a token."""
        length = len(os.path.commonprefix([inner, last]))
        for found in (*self._special.finditer(inner), *self._special.finditer(last)):
            if found.start() < length < found.end():
                length = found.start()
        return inner[:length]

    def _first_special(self, text: str) -> str:
        found = self._special.search(text)
        return found[0] if found else ""

    def _last_special(self, text: str) -> str:
        found: list[str] = self._special.findall(text)
        return found[-1] if found else ""
