# What a worker does that a template has forked (template.py), before it goes on into the interpreter's own
# start. Any Python 3 must be able to read it.
import sys


def go_on_as_worker(template, fields, numbers, written):
    """In the worker: all that a new process would have of its own. The file to which it writes what it imports, or
    '', and the environment that the program's interpreter would have begun with."""
    os = template.os
    marker, directory, learned = [field.decode() for field in fields[2:5]]
    go = numbers[4]
    if os.read(go, 1) != b'g':
        os._exit(1)
    os.close(go)
    template.socket.close()
    for i in range(4):
        os.dup2(numbers[i], i, inheritable=True)
    for i in range(4):
        os.close(numbers[i])
    if template.prctl is not None:
        template.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != template.parent:
        os._exit(1)
    os.chdir(directory)
    _write_marker(os, marker)
    base = _set_environment(template, fields[5:])
    _make_anew(template)
    for i in (0, 1):
        rest = written[i]
        while rest:
            rest = rest[os.write(i + 1, rest):]
    return learned, base


def _set_environment(template, entries):
    """What this worker is given, and what a script around the interpreter, a .pth file or a package has made of the
    rest, which is the same for the template. In the order of a plain start."""
    os = template.os
    own = template.rank_variables.union(template.OF_THIS_PROCESS)
    given = dict(os.fsdecode(entry).partition('=')[::2] for entry in entries)
    environment, before = os.environ, dict(os.environ)
    for name in before:
        del environment[name]
    for name in list(given) + [name for name in before if name not in given and name not in own]:
        value = given[name] if name in own else before.get(name)
        if value is not None:
            environment[name] = value
    base = dict((name, value) for name, value in template.at_start.items() if name not in own)
    base.update((name, given[name]) for name in own if name in given)
    return base


def _write_marker(os, marker):
    """In /proc/PID/environ, by which the supervisor finds what a worker has left behind."""
    entry = b'CADRE_SUPERVISED_BY=' + marker.encode()
    try:
        with open('/proc/self/stat', 'rb') as file:
            begin = int(file.read().rpartition(b')')[2].split()[47])
        memory = os.open('/proc/self/mem', os.O_RDWR | os.O_CLOEXEC)
        try:
            room = os.pread(memory, 256, begin).partition(b'\0')[0]
            if room.startswith(b'CADRE_SUPERVISED_BY=') and len(entry) <= len(room):
                os.pwrite(memory, entry + b'\0' * (len(room) - len(entry)), begin)
        finally:
            os.close(memory)
    except (OSError, ValueError, IndexError):
        pass


def _make_anew(template):
    """What would be the same in every worker, or tells of the template."""
    os, modules = template.os, sys.modules
    if 'numpy.random' in modules:
        modules['numpy.random'].seed()
    if 'torch' in modules:
        modules['torch'].default_generator.seed()
    if 'sympy.core.random' in modules:
        _seed_sympy(modules)
    if 'logging' in modules:
        logging = modules['logging']
        whole = isinstance(logging._startTime, int)
        logging._startTime = template.time.time_ns() if whole else template.time.time()
    if 'multiprocessing.process' in modules:
        process = modules['multiprocessing.process']
        process.ORIGINAL_DIR = os.getcwd()
        process._current_process._config['authkey'] = process.AuthenticationString(os.urandom(32))
    if 'threading' in modules:
        main = modules['threading'].main_thread()
        if hasattr(main, '_set_native_id'):
            main._set_native_id()
    mine = os.sched_getaffinity(0)
    if mine != template.affinity and 'OMP_NUM_THREADS' not in os.environ:
        _set_threads(os, len(mine))


def _seed_sympy(modules):
    """Its generators, and what its symbols have drawn of one."""
    modules['sympy.core.random'].seed()
    dummy = getattr(modules.get('sympy.core.symbol'), 'Dummy', None)
    if hasattr(dummy, '_prng'):
        dummy._prng.seed()
        dummy._base_dummy_index = dummy._prng.randint(10**6, 9 * 10**6)


def _set_threads(os, count):
    """Of pools that were sized when their library was loaded, for the template's processors."""
    if 'torch' in sys.modules:
        sys.modules['torch'].set_num_threads(count)
    try:
        import ctypes
        with open('/proc/self/maps') as file:
            libraries = set(line.split()[-1] for line in file if 'openblas' in line)
        for path in libraries:
            library = ctypes.CDLL(path)
            for name in ('scipy_openblas_set_num_threads64_', 'scipy_openblas_set_num_threads',
                         'openblas_set_num_threads64_', 'openblas_set_num_threads'):
                if hasattr(library, name):
                    getattr(library, name)(count)
                    break
    except Exception:
        pass
