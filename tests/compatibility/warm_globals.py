"""What modules remember of their process, with PYTHONHASHSEED set. `record()` is for a program that was started several times, by several ranks,
plainly or forked from a template; `differences()` compares what they wrote. Whatever is the same in all plain starts
must be the same in all warm ones; whatever is another in each must be another in each."""

import datetime
import glob
import hashlib
import json
import os
import pathlib
import random
import re
import sys
import types
import uuid

_PLAIN = (int, float, complex, str, bytes, bool, type(None), datetime.date, datetime.timedelta, uuid.UUID, pathlib.PurePath)
_MOST = 300  # elements of one value


def _of_any_run(text):
    """Without addresses and the number of the job's agent."""
    return re.sub(r"0x[0-9a-f]+", "0x", re.sub(r"/agent-[0-9]+/", "/agent/", text))


def _text(value, depth=0):
    """None: nothing that could be compared."""
    if type(value) is int and 1 << 46 <= value < 1 << 47:
        return "an address"  # ranks that are forked have their libraries at the same ones
    if isinstance(value, _PLAIN):
        return _of_any_run(repr(value))
    if isinstance(value, random.Random):
        try:
            return hashlib.sha256(repr(value.getstate()).encode()).hexdigest()
        except NotImplementedError:  # random.SystemRandom
            return None
    kind = type(value).__module__ + "." + type(value).__name__
    if kind in ("torch.Generator", "torch._C.Generator"):
        return hashlib.sha256(bytes(value.get_state().tolist())).hexdigest()
    if kind == "numpy.random.mtrand.RandomState":
        return hashlib.sha256(repr(value.get_state()[1].tolist()).encode()).hexdigest()
    if depth > 2:
        return None
    if isinstance(value, dict) and len(value) < _MOST:
        parts = [(_text(key, depth + 1), _text(each, depth + 1)) for key, each in list(value.items())]
        return str(sorted(part for part in parts if None not in part))
    if isinstance(value, (tuple, list, set, frozenset)) and len(value) < _MOST:
        parts = [_text(each, depth + 1) for each in list(value)]
        parts = [part for part in parts if part is not None]
        return str(parts if isinstance(value, (tuple, list)) else sorted(parts))
    return None


def _of_modules():
    for name, module in sorted(sys.modules.items()):
        if name in ("__main__", __name__) or not isinstance(module, types.ModuleType):
            continue
        for attribute, value in list(vars(module).items()):
            if attribute.startswith("__") or isinstance(value, types.ModuleType):
                continue
            yield "%s.%s" % (name, attribute), value
            # Attributes of the module's own classes and objects are yielded too.
            if getattr(value, "__module__", None) == name or getattr(type(value), "__module__", None) == name:
                for inner, of_inner in list(getattr(value, "__dict__", {}).items()):
                    if not inner.startswith("__"):
                        yield "%s.%s.%s" % (name, attribute, inner), of_inner


def record(path, facts):
    """Writes `facts`, by name, and what there is in modules."""
    said = {name: _of_any_run(str(value)) for name, value in facts.items()}
    for name, value in _of_modules():
        try:
            text = _text(value)
        except Exception:
            text = None
        if text is not None:
            said[name] = text if len(text) < 300 else text[:100] + hashlib.sha256(text.encode()).hexdigest()
    with open(path + ".new", "w") as file:
        json.dump(said, file)
    os.rename(path + ".new", path)


def _pattern(values):
    """[0, 0, 1, 1]: the first two are equal, and the last two."""
    return [values.index(value) for value in values]


def differences(folder, allowed=()):
    """Of FOLDER/plain.LIFE.RANK and FOLDER/warm.LIFE.RANK. `allowed`: beginnings of names that may differ."""
    found = {}
    for how in ("plain", "warm"):
        found[how] = []
        for path in sorted(glob.glob(os.path.join(folder, how + ".*"))):
            with open(path) as file:
                found[how].append((path.rsplit(".", 1)[1], json.load(file)))
    plain, warm = found["plain"], found["warm"]
    if len(plain) != len(warm) or len(plain) < 4:
        return ["%d were started plainly and %d warm" % (len(plain), len(warm))]
    lines = []
    names = set.intersection(*(set(said) for _, said in plain + warm))
    for name in sorted(names):
        values = {how: [said[name] for _, said in found[how]] for how in found}
        same = _pattern(values["plain"]) == _pattern(values["warm"])
        for rank in sorted({rank for rank, _ in plain}):
            of_rank = {how: {said[name] for each, said in found[how] if each == rank} for how in found}
            same = same and (len(of_rank["plain"]) > 1 or of_rank["plain"] == of_rank["warm"])
        if not same and not name.startswith(tuple(allowed)):
            lines.append("%s\n  plain %s\n  warm  %s" % (name, *([value[:120] for value in values[how]] for how in ("plain", "warm"))))
    return lines
