"""Which variables of a suspended frame can still be read.

A variable that is written before it is read again decides nothing any more. Leaving it out lets states meet that
differ only in what is left over. The analysis is the textbook's, on bytecode, and errs to the safe side.
"""

from __future__ import annotations

import dis
from functools import cache
from types import CodeType

_NO_SUCCESSOR = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_ONLY_JUMPS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})


@cache
def live_variables(code: CodeType, offset: int) -> frozenset[str]:
    """Return the variables that may be read after the instruction at ``offset``.

    Where a call is under way the offset is in the room that the interpreter keeps behind the instruction.
    """
    live = _live(code)
    return live[max(at for at in live if at <= offset)]


@cache
def _live(code: CodeType) -> dict[int, frozenset[str]]:
    instructions = list(dis.get_instructions(code))
    following = _successors(code, instructions)
    always = frozenset(code.co_cellvars + code.co_freevars)
    before: dict[int, frozenset[str]] = {i.offset: always for i in instructions}
    after = dict(before)
    changed = True
    while changed:
        changed = False
        for instruction in reversed(instructions):
            at = instruction.offset
            out = always.union(*(before[n] for n in following[at] if n in before))
            needed = _reads(instruction) | (out - _writes(instruction))
            if needed != before[at] or out != after[at]:
                before[at], after[at], changed = needed, out, True
    return after


def _successors(code: CodeType, instructions: list[dis.Instruction]) -> dict[int, set[int]]:
    following: dict[int, set[int]] = {}
    for here, there in zip(instructions, [*instructions[1:], None], strict=True):
        targets = following.setdefault(here.offset, set())
        if there is not None and here.opname not in _NO_SUCCESSOR | _ONLY_JUMPS:
            targets.add(there.offset)
        if here.opcode in dis.hasjrel or here.opcode in dis.hasjabs:
            targets.add(here.argval)
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined]
        for offset, targets in following.items():
            if entry.start <= offset < entry.end:
                targets.add(entry.target)
    return following


def _reads(instruction: dis.Instruction) -> frozenset[str]:
    name = instruction.opname
    if "FAST" not in name or name == "STORE_FAST":
        return frozenset()
    # Some releases join two instructions in one; whatever those name counts as read.
    value = instruction.argval
    return frozenset(value if isinstance(value, tuple) else (value,))


def _writes(instruction: dis.Instruction) -> frozenset[str]:
    return frozenset({instruction.argval}) if instruction.opname == "STORE_FAST" else frozenset()
