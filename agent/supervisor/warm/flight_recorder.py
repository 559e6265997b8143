# Tells the agent which collectives this process has called, by PyTorch's own flight recorder
# (agent/evidence/torch/flight_recorder.h). sitecustomize.py runs it when torch.distributed is imported. A thread that
# waits for the agent is there from the first init_process_group() on, when PyTorch has threads of its own, too:
# before, a program may count on having one. Any Python 3 must be able to read it.
import sys

_AT_EXIT = 0.05  # seconds
_GROUPS, _CALLS_BEFORE, _CALLS_AFTER, _NAME, _RANKS = 8, 4, 4, 64, 8


class _Recorder(object):
    def __init__(self, distributed, plain):
        self.distributed, self.plain = distributed, plain
        self.begun = 0  # how often groups were begun: a program may destroy all and begin anew
        self.since = 0  # when, in ns since 1970
        self.process = 0

    def init_process_group(self, *arguments, **keywords):
        import time
        since = time.time_ns()
        result = self.plain(*arguments, **keywords)
        if not self.begun:
            # Gloo's threads drop what they have finished a moment later, for which they take the interpreter's lock. An
            # interpreter that is ending by then has them call std::terminate: it lets them come first.
            import atexit
            atexit.register(time.sleep, _AT_EXIT)
        self.begun, self.since = self.begun + 1, since
        self.listen()
        return result

    def listen(self):
        import os
        path = os.environ.get('CADRE_STACK_FILE')
        if not path or self.process == os.getpid():
            return
        self.process = os.getpid()
        path = '%s.calls.%d' % (path, os.getpid())
        try:
            import _thread
            import fcntl
            import socket
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
                first.bind(path)
                first.listen(4)
                # A high number, which a program that counts on the next one does not get.
                listener = socket.socket(fileno=fcntl.fcntl(first.fileno(), fcntl.F_DUPFD_CLOEXEC, 700))
            # Not one of threading's, which a program may count.
            _thread.start_new_thread(self.answer, (listener, path))
        except Exception:
            pass  # such a path is too long, or there is no room: there is less evidence, and no harm

    def answer(self, listener, path):
        while True:
            try:
                # A program that closes what it did not open may have given the number to a socket of its own.
                if listener.getsockname() != path:
                    return listener.detach()
                connection = listener.accept()[0]
            except Exception:
                return listener.detach()
            try:
                connection.settimeout(1)
                connection.sendall(self.record())
            except Exception:
                pass  # who asked hears nothing
            finally:
                connection.close()

    def record(self):
        """One object of JSON: the groups, each with what it called around its first call that has not ended."""
        import json
        groups = self.groups()
        for call in self.calls():
            name = call['process_group'][0]
            if name in groups and not call.get('is_p2p') and call['time_created_ns'] >= self.since:
                groups[name]['calls'][call['collective_seq_id']] = call
        # Those that wait, then the largest: with many meshes there are more than anybody reads.
        told = sorted((_group(group) for group in groups.values()), key=lambda group: (not group['waits'], -group['size']))
        return json.dumps(told[:_GROUPS]).encode()

    def groups(self):
        """Those there are, by name, without their calls."""
        world = self.distributed._world
        groups = {}
        for group in list(world.pg_map):
            name = world.pg_names[group]
            description = getattr(group, 'group_desc', '')
            groups[name] = {
                'group': '%s/%d' % (name[:_NAME], self.begun),
                'description': description[:_NAME] if description != 'undefined' else '',
                'ranks': sorted(world.pg_group_ranks[group]),
                'calls': {},
            }
        return groups

    def calls(self):
        import json
        from torch._C import _distributed_c10d as c10d
        dumps = [getattr(c10d, '_dump_fr_trace_json', None)]
        # NCCL has a recorder of its own, of which only those with a group of NCCL's must ask.
        if any('nccl' in str(backend[0]) for backend in self.distributed._world.pg_map.values()):
            dumps.append(getattr(c10d, '_dump_nccl_trace_json', None))
        for dump in dumps:
            for call in json.loads(dump(True, False)).get('entries', ()) if dump else ():
                yield call


def watch(distributed):
    """Has init_process_group(), of the module torch.distributed.distributed_c10d, begin the thread."""
    import functools
    plain = distributed.init_process_group
    recorder = _Recorder(distributed, plain)

    @functools.wraps(plain)
    def init_process_group(*arguments, **keywords):
        return recorder.init_process_group(*arguments, **keywords)

    distributed.init_process_group = init_process_group


def _group(group):
    calls = group['calls']
    numbers = sorted(calls)
    pending = [number for number in numbers if not _has_ended(calls[number])]
    at = numbers.index(pending[0]) if pending else len(numbers)
    return {
        'group': group['group'], 'description': group['description'], 'ranks': group['ranks'][:_RANKS],
        'size': len(group['ranks']), 'last': numbers[-1] if numbers else 0, 'waits': bool(pending),
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
