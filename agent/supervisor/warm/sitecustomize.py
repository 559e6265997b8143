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
    line "name TAB origin" for each, at once, since a program may be killed at any time. An import that begins
    by itself, not within another's, has a third field, the script's line that it comes from, or 0. examine.py reads
    it, and the lines between, which begin with a TAB:
      start TAB environment            a plain worker's, when it began; what follows is of this worker
      again                            what follows is of a worker that a template had forked
      set TAB {name: value or None}    what the program's variables have become since, where that has changed
      own                              a module of the program's own is imported, whose code runs now
    The file's time is that of the last import, also of one that stands in it already; beside it is a file
    "busy" as long as an import of something installed goes on, however long that is quiet."""

    def __init__(self, os, path, base, started):
        import _thread
        self.os, self.path, self.pid, self.get_ident = os, path, os.getpid(), _thread.get_ident
        self.base, self.started = base, started
        self.said = None
        self.begun, self.own = False, False
        self.going_on = {}  # by thread: imports that began by themselves and have not ended
        self.library = os.path.dirname(os.__file__) + '/'
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
        # Processes that the program forks do as they like.
        if spec is not None and self.os.getpid() == self.pid:
            try:
                self.note(name, spec, caller)
            except OSError:
                self.pid = 0
        return spec

    def note(self, name, spec, caller):
        by_itself = not self.going_on.get(self.get_ident())
        installed = self.is_installed(spec.origin)
        if by_itself and installed and type(spec) is type(__spec__):
            spec.__class__ = _watched(self, type(spec))
        if name in self.known:
            self.os.utime(self.path)
        else:
            self.known.add(name)
            line = '\t%d' % self.line_of(caller) if by_itself else ''
            self.write(self.state() + '%s\t%s%s\n' % (name, spec.origin, line))
        # Also of one that is known: what follows it is not as clean.
        if not installed and not self.own:
            self.own = True
            self.write(self.state() + '\town\n')

    def state(self):
        """What is to be said before what follows is understood."""
        text = ''
        if not self.begun:
            self.begun = True
            text = '\tagain\n' if self.started is None else '\tstart\t%r\n' % self.started
        data = self.os.environ._data
        if data != self.said:
            self.said = dict(data)
            now = dict(self.os.environ)
            names = set(now) | set(self.base)
            changed = dict((name, now.get(name)) for name in names if now.get(name) != self.base.get(name))
            text += '\tset\t%r\n' % changed
        return text

    def is_installed(self, origin):
        return (origin in (None, 'built-in', 'frozen') or '/site-packages/' in origin or '/dist-packages/' in origin
                or origin.startswith(self.library))

    def line_of(self, frame):
        # None of the script's yet, as in a .pth file, or one that is not known, as in a thread.
        line = 0 if not hasattr(sys.modules.get('__main__'), '__file__') else 1 << 30
        while frame is not None:
            if frame.f_globals.get('__name__') == '__main__':
                line = frame.f_lineno
            frame = frame.f_back
        return line

    def write(self, text):
        os = self.os
        # No descriptor of ours stays open, which a program could close and use.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, text.encode('utf-8', 'backslashreplace'))
        finally:
            os.close(file)

    def goes_on(self, begins):
        os, thread = self.os, self.get_ident()
        if os.getpid() != self.pid:
            return
        self.going_on[thread] = self.going_on.get(thread, 0) + (1 if begins else -1)
        if not self.going_on[thread]:
            del self.going_on[thread]
        try:
            if begins:
                os.close(os.open(self.path + '.busy', os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            elif not self.going_on:
                os.utime(self.path)
                os.unlink(self.path + '.busy')
        except OSError:
            self.pid = 0


def _watched(learning, kind):
    """A kind of module specification that tells of the module's beginning and end, as importlib sets them, without a
    frame of ours in tracebacks; it is a plain one again then."""

    class Watched(kind):
        def __setattr__(self, name, value):
            kind.__setattr__(self, name, value)
            if name == '_initializing':
                if not value:
                    self.__class__ = kind
                learning.goes_on(value)

    return Watched


def _learn(os, path, base, started=None):
    """`base`: the variables with which the program begins. `started`: those of an interpreter that was not forked, before
    this hook has set any."""
    sys.meta_path.insert(0, _Learning(os, path, base, started))


def _reach_processes(os, here):
    """Interpreters that this process starts from now on import this file, too. Returns the variable that says so."""
    others = os.environ.get('PYTHONPATH')
    if here not in (others or '').split(os.pathsep):
        os.environ['PYTHONPATH'] = here + os.pathsep + others if others else here
    return {'PYTHONPATH': os.environ['PYTHONPATH']}


class _AtTorch(object):
    """On sys.meta_path: has files of Cadre's run as soon as these modules of PyTorch's are imported, and is gone then.
    Where `reaches`, processes that the program starts then have the same: they may be ranks."""

    def __init__(self, directory, files, reaches):
        self.directory, self.reaches, self.loaders = directory, reaches, {}
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
        if self.reaches:
            import os
            _reach_processes(os, self.directory)
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
    """Has all threads' stacks printed whenever the agent sends its signal (agent/evidence/python_stack.h).
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
    the program starts has a store of its own, and says so to its ranks. Returns the variables that it has set."""
    store = os.environ.get('CADRE_TORCH_STORE')
    kept = {}
    if not store:
        return kept
    if store == '%s:%s' % (os.environ.get('MASTER_ADDR'), os.environ.get('MASTER_PORT')):
        kept['TORCHELASTIC_USE_AGENT_STORE'] = 'False'
    os.environ.update(kept)
    kept.update(_reach_processes(os, here))
    return kept


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
    # An interpreter that learns which packages are imported must not see a variable that an import changed. Processes
    # that it starts are reached through the store's variable.
    if mode in ('learn', 'plain', 'template'):
        files = 'own_ranks.py', 'exits.py', 'flight_recorder.py'
        sys.meta_path.insert(0, _AtTorch(here, files, mode == 'plain'))
    elif 'CADRE_JOB' in os.environ:
        # A process that a worker has started, which may be a rank: of the job or of a group of the program's own.
        sys.meta_path.insert(0, _AtTorch(here, ('own_ranks.py', 'exits.py'), True))
    started = dict(os.environ)
    if mode != 'template':
        _keep_to_the_agents_store(os, here)
    if mode in ('learn', 'plain'):
        if mode == 'learn':
            _learn(os, rest, dict(os.environ), started)
        _answer_with_stacks(os)
    elif mode == 'template':
        _be_template(os, here, int(rest))


def _be_template(os, here, socket):
    """Returns in each worker that is forked."""
    template = None
    try:
        code = {'find_behind': _find_behind}
        for name in ('template.py', 'examine.py', 'forked.py'):
            with open(os.path.join(here, name), 'rb') as file:
                exec(compile(file.read(), file.name, 'exec'), code)
        template = code['Template'](os, socket, code)
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
        learned, base = code['go_on_as_worker'](template, fields, numbers, written)
        base.update(_keep_to_the_agents_store(os, here))
        if learned:
            _learn(os, learned, base)
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
