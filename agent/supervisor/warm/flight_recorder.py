# Tells the agent which collectives this process has called, by PyTorch's own flight recorder
# (agent/evidence/torch/flight_recorder.h). sitecustomize.py runs it when torch.distributed is imported. A thread that
# waits for the agent is there from the first init_process_group() on, when PyTorch has threads of its own, too:
# before, a program may count on having one. Any Python 3 must be able to read it.
import sys

_GROUPS, _CALLS_BEFORE, _CALLS_AFTER = 4, 4, 4


def watch(distributed):
    """Has init_process_group(), of the module torch.distributed.distributed_c10d, begin the thread."""
    import functools
    plain = distributed.init_process_group

    @functools.wraps(plain)
    def init_process_group(*arguments, **keywords):
        result = plain(*arguments, **keywords)
        _begin(distributed)
        return result

    distributed.init_process_group = init_process_group


def _begin(distributed):
    import os
    path = os.environ.get('CADRE_STACK_FILE')
    if not path or getattr(distributed, '_cadre_answers', 0) == os.getpid():
        return
    distributed._cadre_answers = os.getpid()
    try:
        import _thread
        import socket
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind('%s.calls.%d' % (path, os.getpid()))
        listener.listen(4)
        # Not one of threading's, which a program may count.
        _thread.start_new_thread(_answer, (listener, distributed))
    except Exception:
        pass  # such a path is too long, or there is no room: there is less evidence, and no harm


def _answer(listener, distributed):
    while True:
        try:
            connection = listener.accept()[0]
        except Exception:
            return
        try:
            connection.settimeout(1)
            connection.sendall(_record(distributed))
        except Exception:
            pass  # who asked hears nothing
        finally:
            connection.close()


def _record(distributed):
    """One object of JSON: the groups, each with what it called around its first call that has not ended."""
    import json
    from torch._C import _distributed_c10d as c10d
    dumps = [getattr(c10d, '_dump_fr_trace_json', None)]
    # NCCL has a recorder of its own, of which only those with a group of NCCL's must ask.
    if any('nccl' in str(backend[0]) for backend in distributed._world.pg_map.values()):
        dumps.append(getattr(c10d, '_dump_nccl_trace_json', None))
    groups = {}
    for dump in dumps:
        for call in json.loads(dump(True, False)).get('entries', ()) if dump else ():
            if not call.get('is_p2p'):
                groups.setdefault(tuple(call['process_group']), {})[call['collective_seq_id']] = call
    return json.dumps([_group(name, calls) for name, calls in list(groups.items())[-_GROUPS:]]).encode()


def _group(name, calls):
    numbers = sorted(calls)
    pending = [number for number in numbers if not _has_ended(calls[number])]
    at = numbers.index(pending[0]) if pending else len(numbers)
    return {
        'group': name[0], 'description': name[1] if len(name) > 1 else '', 'last': numbers[-1],
        'calls': [{
            'number': number,
            'name': calls[number]['profiling_name'],
            'pending': not _has_ended(calls[number]),
            'input_sizes': calls[number]['input_sizes'][:8],
            'output_sizes': calls[number]['output_sizes'][:8],
            'dtypes': calls[number].get('input_dtypes', [])[:1],
        } for number in numbers[max(at - _CALLS_BEFORE, 0):at + _CALLS_AFTER]],
    }


def _has_ended(call):
    return call.get('retired') or call.get('state') == 'completed'
