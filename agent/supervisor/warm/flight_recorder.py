# Tells the agent which collectives this process has called, by PyTorch's own flight recorder
# (agent/evidence/torch/flight_recorder.h). sitecustomize.py runs it when torch.distributed is imported. A thread that
# waits for the agent is there from the first init_process_group() on, when PyTorch has threads of its own, too:
# before, a program may count on having one. Any Python 3 must be able to read it.
import sys

# Of groups, of the calls of one around the first that has not ended, of calls made as one, of messages under way, of
# a name, and of the ranks of a group that are told (rpc/message_limits.h).
_GROUPS, _CALLS_BEFORE, _CALLS_AFTER, _PARTS, _MESSAGES, _NAME, _RANKS = 64, 4, 4, 8, 8, 64, 64


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
            if name not in groups or call['time_created_ns'] < self.since:
                continue
            group = groups[name]
            group['used'] = max(group['used'], call['time_created_ns'])
            if _is_message(call):
                if not _has_ended(call):
                    group['messages'].append(call)
                continue
            # Several of one number were made as one. Another backend of the group has numbers of its own.
            parts = group['calls'].setdefault(call['collective_seq_id'], [])
            if parts and _backend(parts[-1]) != _backend(call):
                del parts[:]
            parts.append(call)
        # Those that wait, then those that were used last: a rank is missed in a group that it does not wait in, and
        # that others use now.
        told = [_group(group) for group in groups.values()]
        told.sort(key=lambda group: (not group['waits'], -group['used']))
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
                'messages': [],
                'used': 0,
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
    pending = [number for number in numbers if not _have_ended(calls[number])]
    at = numbers.index(pending[0]) if pending else len(numbers)
    # Only who waits may have called more behind that.
    told = numbers[max(at - _CALLS_BEFORE, 0):at + _CALLS_AFTER]
    return {
        'group': group['group'], 'description': group['description'],
        'ranks': group['ranks'] if len(group['ranks']) <= _RANKS else group['ranks'][:8],
        'size': len(group['ranks']), 'last': numbers[-1] if numbers else 0,
        'waits': bool(pending or group['messages']), 'used': group['used'],
        'calls': [dict(_call(calls[number]), number=number) for number in told],
        'messages': [message for message in map(_message, group['messages'][:_MESSAGES]) if message],
    }


def _call(parts):
    """One call, or several that were made as one, of which the last entry is the whole."""
    call = dict(_shape(parts[-1]), pending=not _have_ended(parts))
    if len(parts) > 1:
        call['parts'] = [_shape(part) for part in parts[:-1][:_PARTS]]
    return call


def _shape(call):
    return {
        'name': call['profiling_name'],
        'input_sizes': call['input_sizes'][:8], 'output_sizes': call['output_sizes'][:8],
        'input_dtypes': sorted(set(call.get('input_dtypes', []))),
        'output_dtypes': sorted(set(call.get('output_dtypes', []))),
    }


def _backend(call):
    return call['profiling_name'].rpartition(':')[0]


def _is_message(call):
    return call.get('is_p2p') or call['profiling_name'].rpartition(':')[2].split(' ')[0] in ('send', 'recv')


def _message(call):
    """Who sends to whom: "gloo:send 0->1", "nccl:recv 3<-?", by their numbers in the group."""
    name, _, ranks = call['profiling_name'].rpartition(':')[2].partition(' ')
    try:
        if name == 'send':
            source, target = (int(rank) for rank in ranks.split('->'))
        else:
            target, source = ranks.split('<-')
            target, source = int(target), -1 if source == '?' else int(source)
    except ValueError:
        return None
    return {'from': source, 'to': target, 'name': name}


def _have_ended(parts):
    return all(_has_ended(part) for part in parts)


def _has_ended(call):
    return call.get('retired') or call.get('state') == 'completed'
