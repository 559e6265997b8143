# Has programs that start ranks of their own within a worker, by torch.multiprocessing.spawn(), a launcher or a library,
# run as they do without Cadre. sitecustomize.py runs it when the modules of PyTorch's that it names are imported. Any
# Python 3 must be able to read it.
import sys

_ARGUMENTS = ('host_name', 'port', 'world_size', 'is_master')
# What PyTorch's launcher sets, for whom it is one of the signs that it launched them.
_LAUNCHED = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'GROUP_WORLD_SIZE', 'NODE_RANK',
             'ROLE_NAME', 'ROLE_RANK', 'ROLE_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'TORCHELASTIC_RUN_ID',
             'TORCHELASTIC_RESTART_COUNT', 'TORCHELASTIC_MAX_RESTARTS', 'TORCHELASTIC_USE_AGENT_STORE')
_LIGHTNING = ('lightning', 'lightning_fabric', 'pytorch_lightning')


def _names(host, address):
    """Whether the host's name is one for the address, or, where that is this machine's, for this machine."""
    import socket
    if host == address:
        return True
    try:
        found = [entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return False
    if address in found:
        return True
    if not any(name == '::1' or name.startswith('127.') for name in found):
        return False
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as own:
        try:
            own.bind((address, 0))
        except OSError:
            return False
    return True


def _agents_address(host, port):
    """Under which address an agent serves the store that is meant; None: it is another one."""
    import os
    address, _, number = os.environ.get('CADRE_TORCH_STORE', '').rpartition(':')
    if not address or number != str(port) or not isinstance(host, str):
        return None
    return address if _names(host, address) else None


class _SpawnedPort(object):
    """Of ranks that a worker beside others of its node has spawned, a group of exactly these, which meets at localhost
    and a port that the program names. Every one of the workers has such a group, at the same port. All but those of
    the first worker meet at another one, which their worker chooses; of several ports the first that they name."""
    VARIABLE = 'CADRE_SPAWNED_RANKS'
    named = None

    @classmethod
    def of(cls, host, port, world_size):
        import os
        ranks, _, own = os.environ.get(cls.VARIABLE, '').partition(':')
        if ranks != str(world_size) or not isinstance(host, str) or cls.named not in (None, port):
            return port
        if host not in ('localhost', '::1') and not host.startswith('127.'):
            return port
        cls.named = port
        return int(own)

    @classmethod
    def give(cls, module):
        """Wraps start_processes() of torch.multiprocessing, and its spawn() with it."""
        plain = module.start_processes

        def start_processes(fn, args=(), nprocs=1, *others, **keywords):
            import os
            import socket
            get = os.environ.get
            if get('LOCAL_RANK', '0') == '0' or get('TORCHELASTIC_RUN_ID') != get('CADRE_JOB'):
                return plain(fn, args, nprocs, *others, **keywords)
            with socket.socket() as held:  # a rank may bind it, and nobody else is given it
                held.bind(('', 0))
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                os.environ[cls.VARIABLE] = '%d:%d' % (nprocs, held.getsockname()[1])
                try:
                    return plain(fn, args, nprocs, *others, **keywords)
                finally:
                    os.environ.pop(cls.VARIABLE, None)

        start_processes.__doc__ = plain.__doc__
        module.start_processes = start_processes


def _be_clients_of_the_agent(store):
    """Whoever would serve where the agent does is its client, as everybody else is; at any other address a program
    has the store that it asks for. PyTorch knows one variable for that, which reaches also ranks that set
    MASTER_ADDR and MASTER_PORT to what they please: of TORCHELASTIC_USE_AGENT_STORE=True they would all be clients
    of a store that nobody serves."""
    plain = store.__init__

    def __init__(self, *arguments, **keywords):
        given = dict(zip(_ARGUMENTS, arguments), **keywords)
        host, port, world_size = [given.get(name) for name in _ARGUMENTS[:3]]
        address = _agents_address(host, port)
        if address is not None:
            changed = {'host_name': address, 'is_master': False}
        else:
            changed = {'port': _SpawnedPort.of(host, port, world_size)}
        arguments = list(arguments)
        for name, value in changed.items():
            index = _ARGUMENTS.index(name)
            if index < len(arguments):
                arguments[index] = value
            elif name in keywords or name == 'is_master':
                keywords[name] = value
        plain(self, *arguments, **keywords)

    __init__.__doc__ = plain.__doc__
    store.__init__ = __init__


def _is_lightnings_own_launch(caller):
    """Lightning starts ranks by itself, unless it finds that torchrun did. A job of one worker is as if it were
    started by hand: it may want as many as it has devices."""
    import os
    if caller.f_globals.get('__name__', '').partition('.')[0] not in _LIGHTNING:
        return False
    get = os.environ.get
    return get('WORLD_SIZE') == '1' and get('TORCHELASTIC_RUN_ID') == get('CADRE_JOB')


def _leave_ranks_to_lightning(distributed):
    plain = distributed.is_torchelastic_launched

    def is_torchelastic_launched():
        if not plain():
            return False
        if not _is_lightnings_own_launch(sys._getframe(1)):
            return True
        import os
        for name in _LAUNCHED:
            os.environ.pop(name, None)
        return False

    is_torchelastic_launched.__doc__ = plain.__doc__
    distributed.is_torchelastic_launched = is_torchelastic_launched


def watch(module):
    """Of torch.distributed.distributed_c10d and torch.multiprocessing.spawn, before others import from them."""
    if module.__name__ == 'torch.multiprocessing.spawn':
        return _SpawnedPort.give(module)
    from torch._C._distributed_c10d import TCPStore
    _be_clients_of_the_agent(TCPStore)
    _leave_ranks_to_lightning(module)
