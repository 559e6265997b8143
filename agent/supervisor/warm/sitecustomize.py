# What Cadre runs first in a Python program that it starts, or that a worker of another kind starts, a shell's script say
# (docs/design.md, "Warm start"). The interpreter imports it within "import site": __main__ and sys.path[0] do not exist yet. Depending on
# CADRE_WARM_START the process notes what the program imports ("learn"), does not ("plain"), or is a
# template ("template"; template.py, forked.py): it imports that by itself and is forked for each worker, which
# returns from here and goes on into the interpreter's own start. All workers answer with their stacks
# when they are asked. Only the standard library; what a plain start would not have imported is taken
# out of sys.modules again. Every start compiles this where no bytecode is written, so it is short. Any
# Python 3 must be able to read it.
import sys


def _find_behind(own, name, path, target):
    """What the finders behind this one on sys.meta_path have; nothing once it is not there any more."""
    finders = sys.meta_path
    for finder in finders[finders.index(own) + 1:] if own in finders else ():
        find = getattr(finder, 'find_spec', None)
        spec = find(name, path, target) if find is not None else None
        if spec is not None:
            return spec
    return None


class _Learning(object):
    """The first on sys.meta_path: lets the others find a module and writes down which they found, a
    line "name TAB origin" for each, at once, since a program may be killed at any time. The file's
    time is that of the last import, also of one that stands in it already."""

    def __init__(self, os, path):
        self.os, self.path, self.pid = os, path, os.getpid()
        self.known = set()
        try:
            with open(path) as file:
                self.known.update(line.partition('\t')[0] for line in file)
        except OSError:
            pass

    def find_spec(self, name, path=None, target=None):
        # Who only asks whether there is such a module does not import it.
        caller = sys._getframe(1)
        while caller is not None and caller.f_code.co_name == '_find_spec':
            caller = caller.f_back
        if caller is None or caller.f_code.co_name != '_find_and_load_unlocked':
            return None
        spec = _find_behind(self, name, path, target)
        if spec is not None:
            self.note(name, spec.origin)
        return spec

    def note(self, name, origin):
        os = self.os
        # Processes that the program forks do as they like.
        if os.getpid() != self.pid:
            return
        try:
            if name in self.known:
                return os.utime(self.path)
            # No descriptor of ours stays open, which a program could close and use.
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, ('%s\t%s\n' % (name, origin)).encode())
            finally:
                os.close(file)
        except OSError:
            self.pid = 0


def _learn(os, path):
    sys.meta_path.insert(0, _Learning(os, path))


class _AtTorch(object):
    """On sys.meta_path: has files of Cadre's run as soon as these modules of PyTorch's are imported, and is gone then."""

    def __init__(self, directory, files):
        self.directory, self.loaders = directory, {}
        self.files = {'torch.distributed.distributed_c10d': files, 'torch.multiprocessing.spawn': ('own_ranks.py',)}

    def find_spec(self, name, path=None, target=None):
        spec = _find_behind(self, name, path, target) if name in self.files else None
        if spec is not None:
            self.loaders[name], spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.loaders[spec.name].create_module(spec)

    def exec_module(self, module):
        loader = module.__spec__.loader = module.__loader__ = self.loaders[module.__name__]
        files = self.files.pop(module.__name__)
        if not self.files:
            sys.meta_path.remove(self)
        loader.exec_module(module)
        for name in files:
            try:
                code = {}
                with open(self.directory + '/' + name, 'rb') as file:
                    exec(compile(file.read(), '<cadre %s>' % name, 'exec'), code)
                code['watch'](module)
            except Exception:
                pass


def _note_exits(os, faulthandler, file):
    """sys.exit() with a status that is no success leaves where it was called: an interpreter that ends prints nothing of that."""
    leave = sys.exit

    def exit(*status):
        code = status[0] if status else None
        if code is not None and not (isinstance(code, int) and code == 0):
            try:
                code = code & 255 if isinstance(code, int) else 1
                os.write(file, ('sys.exit(%d) in process %d\n' % (code, os.getpid())).encode())
                faulthandler.dump_traceback(file=file, all_threads=False)
            except Exception:
                pass
        leave(*status)

    exit.__module__, exit.__qualname__, exit.__doc__ = 'sys', 'exit', leave.__doc__
    sys.exit = exit


def _answer_with_stacks(os):
    """Has all threads' stacks printed whenever the agent sends its signal (agent/evidence/python_dump.h).
    It is the C code of faulthandler that answers, also while other C code holds the interpreter's lock."""
    path = os.environ.get('CADRE_STACK_FILE')
    if not path:
        return
    before = set(sys.modules)
    try:
        import faulthandler
        import fcntl
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # A high number, which a program that counts on the next one does not get.
        number = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 700)
        os.close(opened)
        faulthandler.register(61, file=number, all_threads=True, chain=False)
        # And where it was when a fatal signal came, SIGSEGV or SIGABRT, which ends it as ever. A program that wants
        # these stacks for itself has them where it wants.
        if not faulthandler.is_enabled():
            faulthandler.enable(file=number, all_threads=True)
        _note_exits(os, faulthandler, number)
    except Exception:
        pass
    for name in set(sys.modules) - before:
        del sys.modules[name]


def _keep_to_the_agents_store(os, here):
    """By own_ranks.py instead of PyTorch's variable, in this process and in those that it starts. A launcher that
    the program starts has a store of its own, and says so to its ranks."""
    store = os.environ.get('CADRE_TORCH_STORE')
    if not store:
        return
    if store == '%s:%s' % (os.environ.get('MASTER_ADDR'), os.environ.get('MASTER_PORT')):
        os.environ['TORCHELASTIC_USE_AGENT_STORE'] = 'False'
    others = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = here + os.pathsep + others if others else here


def _begin():
    import os
    here = os.path.dirname(__file__)
    start = os.environ.pop('CADRE_WARM_START', '')
    mode, _, rest = start.partition(':')
    had_path, _, rest = rest.partition(':')
    parts = os.environ.get('PYTHONPATH', '').split(os.pathsep)
    if here in parts:
        # A script that starts the interpreter may have put others before it.
        parts.remove(here)
        os.environ['PYTHONPATH'] = os.pathsep.join(parts)
        if had_path != '1' and not parts:
            del os.environ['PYTHONPATH']
    while here in sys.path:
        sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)
    if sys.version_info < (3, 8):
        return
    if mode in ('learn', 'plain', 'template'):
        sys.meta_path.insert(0, _AtTorch(here, ('own_ranks.py', 'flight_recorder.py')))
    elif 'CADRE_TORCH_STORE' in os.environ:
        # A process that a worker has started, which may be a rank: of the job or of a group of the program's own.
        sys.meta_path.insert(0, _AtTorch(here, ('own_ranks.py',)))
    if mode != 'template':
        _keep_to_the_agents_store(os, here)
    if mode in ('learn', 'plain'):
        if mode == 'learn':
            _learn(os, rest)
        _answer_with_stacks(os)
    elif mode == 'template':
        _be_template(os, here, int(rest))


def _be_template(os, here, socket):
    """Returns in each worker that is forked."""
    template = None
    try:
        code = {}
        for name in ('template.py', 'forked.py'):
            with open(os.path.join(here, name), 'rb') as file:
                exec(compile(file.read(), file.name, 'exec'), code)
        template = code['Template'](os, socket)
        written = template.prepare()
        fields, numbers = template.serve()
    except BaseException as error:
        # It is not to run the program.
        try:
            if template is None:
                raise
            template.send('ended', '%s: %s' % (type(error).__name__, error))
        finally:
            os._exit(1)
    try:
        learned = code['go_on_as_worker'](template, fields, numbers, written)
        _keep_to_the_agents_store(os, here)
        if learned:
            _learn(os, learned)
        _answer_with_stacks(os)
    except BaseException:
        # Better late than not at all.
        with open('/proc/self/cmdline', 'rb') as file:
            arguments = file.read().split(b'\0')[:-1]
        environment = dict(entry.partition(b'=')[::2] for entry in fields[5:])
        os.execve(sys.executable, arguments, environment)


_begin()
_cadre = sys.modules.pop('sitecustomize')
try:
    import sitecustomize  # the next one on sys.path, if there is one
except ImportError as error:
    # Python 2, which a script may start, has no such name and takes this for there being none.
    if getattr(error, 'name', None) != 'sitecustomize':
        raise
    sys.modules['sitecustomize'] = _cadre
    raise ImportError("No module named 'sitecustomize'", name='sitecustomize')
