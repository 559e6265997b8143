# What a template does before it imports a package that is not known (template.py): a child of its own imports what the
# program imports and is looked at while it does. What an import has made of something that is another in each run, or
# has left behind, is no good in a template: that package is imported by each worker itself. Any Python 3 must be able
# to read it.
import sys


class Entry(object):
    """A module that the program has imported."""

    def __init__(self, number, name, origin):
        self.number, self.name, self.origin = number, name, origin
        self.changed = {}  # variables: what the program, or a package, had made of them by then; None: removed
        self.after_own_code = False  # of the program's
        self.needs_look = False  # it, or what is imported with it: a child has to look before this one
        self.preload = False


def read_learned(template):
    """What the program has imported, in its order, and what is to be imported besides (sitecustomize.py, _Learning)."""
    entries, changed, own, outermost = [], {}, False, None
    last_line = _end_of_imports(template)
    try:
        with open(template.learned, encoding='utf-8', errors='replace') as file:
            lines = file.read().split('\n')
    except OSError:
        lines = []
    for line in lines:
        name, _, rest = line.partition('\t')
        if name:
            if name.partition('.')[0] in template.CHANGES_OTHERS:
                break
            origin, _, at = rest.partition('\t')
            entry = Entry(len(entries), name, origin)
            entry.changed = changed
            template.origins.setdefault(name, origin)
            if at or outermost is None:
                outermost = entry
                outermost.own_code = own or int(at or 0) >= last_line
            # What a known package imports is its own affair.
            known = template.is_known(outermost.name.partition('.')[0], outermost.origin)
            entry.after_own_code = outermost.own_code and not known
            entries.append(entry)
            if not entry.after_own_code and _is_to_be_looked_at(template, entry):
                outermost.needs_look = True
            continue
        kind, _, rest = rest.partition('\t')
        if kind in ('start', 'again'):
            changed, own, outermost = {}, False, None
            if kind == 'start':
                template.started = _literal(rest)
        elif kind == 'set':
            changed = _literal(rest)
        elif kind == 'own':
            own = True
    return [entry for entry in entries if _is_importable(template, entry)] + _preloaded(template, len(entries))


def _is_importable(template, entry):
    top = entry.name.partition('.')[0]
    return template.is_installed(entry.origin) and top not in template.NOT_PRELOADED and entry.name != template.module


def _is_to_be_looked_at(template, entry):
    top = entry.name.partition('.')[0]
    known = template.is_known(top, entry.origin)
    return _is_importable(template, entry) and not known and top not in template.refused


def _preloaded(template, number):
    entries = []
    for name in template.preload:
        top = name.partition('.')[0]
        if top in template.NOT_PRELOADED:
            continue
        spec = None
        for finder in sys.meta_path:
            spec = spec or finder.find_spec(top, None)
        entry = Entry(number + len(entries), name, str(spec.origin) if spec is not None else 'None')
        entry.preload = True
        entry.needs_look = not template.is_known(top, entry.origin)
        entries.append(entry)
    return entries


def _literal(text):
    """Of what repr() has made of a dictionary of text."""
    return eval(text, {'__builtins__': {}})


def _end_of_imports(template):
    """The first line of the script that does more than import: what it imports from there on may count on that."""
    if not template.script:
        return 1
    before = set(sys.modules)
    try:
        import ast
        with open(template.script, 'rb') as file:
            body = ast.parse(file.read()).body
        for statement in body:
            if not _only_imports(ast, statement):
                return statement.lineno
        return 1 << 29
    except Exception:
        return 1
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]


def _only_imports(ast, statement):
    if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass)):
        return True
    if isinstance(statement, ast.Try):
        parts = statement.body + statement.orelse + statement.finalbody
        for handler in statement.handlers:
            parts = parts + handler.body
        return all(_only_imports(ast, part) for part in parts)
    # A text, and what gets one as its value: of that no package hears.
    if isinstance(statement, ast.Assign) and not all(isinstance(target, ast.Name) for target in statement.targets):
        return False
    constants = ('Constant', 'Str', 'Num', 'NameConstant')
    return isinstance(statement, (ast.Expr, ast.Assign)) and type(statement.value).__name__ in constants


def examine(template, entries):
    """By their first part, packages that are not known and what is wrong with them; '': nothing is."""
    os = template.os
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(ours)
            if template.prctl is not None:
                template.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in (1, 2):
                os.dup2(nothing, number)
            # The workers go first.
            os.nice(19)
            try:
                examiner = _Examiner(template)
                for entry in entries:
                    examiner.import_one(entry)
                text, status = examiner.text(), 0
            except BaseException as error:
                text = '%s: %s (line %d)' % (type(error).__name__, error, error.__traceback__.tb_lineno)
            text = text.encode('utf-8', 'replace')
            while text:
                text = text[os.write(theirs, text):]
        finally:
            os._exit(status)
    os.close(theirs)
    text = b''
    while True:
        part = os.read(ours, 1 << 16)
        if not part:
            break
        text += part
    os.close(ours)
    text, status = text.decode('utf-8', 'replace'), os.waitpid(pid, 0)[1]
    if status != 0:
        why = 'could not be examined: ' + (text or 'a process that imports it ends with status %#x' % status)
        return dict((entry.name.partition('.')[0], why)
                    for entry in entries if not template.is_known(entry.name.partition('.')[0], entry.origin))
    found, read = {}, []
    for line in text.splitlines():
        top, _, why = line.partition('\t')
        if top:
            found[top] = why
        else:
            read.append(why)
    template.read = read
    return found


class _Unlooked(object):
    """Instead of what is wrong with packages: while they are looked at, nothing is."""

    def get(self, name, default=None):
        return ''


# Events of sys.addaudithook() that do not happen in a look; those of files stand in _Examiner.audit.
STOPPED = (
    'os.mkdir', 'os.rmdir', 'os.remove', 'os.rename', 'os.link', 'os.symlink', 'os.truncate', 'os.chmod',
    'os.chown', 'os.utime', 'os.chdir', 'os.kill', 'os.fork', 'os.forkpty', 'os.posix_spawn', 'os.spawn',
    'os.system', 'os.exec', 'subprocess.Popen', 'pty.spawn', 'tempfile.mkstemp', 'tempfile.mkdtemp', 'shutil.',
    'mmap.', 'socket.', 'fcntl.', 'sqlite3.', 'urllib.', 'http.', 'syslog.', '_thread.start_new_thread',
    '_thread.start_joinable_thread', 'ctypes.dlopen')


LOOKED_AT = STOPPED + ('open', 'os.listdir', 'os.scandir')


class _Examiner(object):
    def __init__(self, template):
        self.template, self.os = template, template.os
        self.why = {}  # by their first part: '' or the first thing that is wrong
        self.importers = {}  # by what they import: packages
        self.depth = {}
        self.read = set()
        self.entry = None
        self.busy = False  # what happens now is the examiner's own
        roots = [template.library, sys.prefix, sys.base_prefix, '/usr', '/lib', '/etc', '/sys', '/proc', '/dev/null']
        roots += [place for place in sys.path if template.is_installed(place + '/')]
        self.roots = [root.rstrip('/') + '/' for root in roots]
        template.clean = _Unlooked()
        template.on_found = self.found
        self.own_metadata = self.has_own_metadata()
        self.patched = set()
        self.pid, self.real_import = self.os.getpid(), __import__
        self.patch()
        self.seen, self.generators_seen = self.state(), self.generators()
        self.patch_interpreter()

    def has_own_metadata(self):
        for place in self.template.own_places():
            try:
                if any(name.endswith('-info') for name in self.os.listdir(place)):
                    return True
            except OSError:
                pass
        return False

    def import_one(self, entry):
        template = self.template
        self.entry = entry
        self.busy = True
        wanted = template.is_wanted(entry)
        self.busy = False
        if not wanted:
            return
        complaints = len(template.complaints)
        template.import_one(entry.name, entry.preload)
        for complaint in template.complaints[complaints:]:
            name, _, why = complaint.partition(': ')
            top = name.partition('.')[0]
            if not template.is_known(top, template.origins.get(name, '')):
                self.blame(top, why)

    def text(self):
        # What imports a package that is not clean would import it here.
        unclean = [top for top, why in self.why.items() if why]
        while unclean:
            top = unclean.pop()
            for importer in self.importers.get(top, ()):
                if not self.why.get(importer):
                    self.why[importer] = 'imports ' + top
                    unclean.append(importer)
        lines = ['%s\t%s' % (top, ' '.join(why.split())[:200]) for top, why in self.why.items()]
        return '\n'.join(lines + ['\t' + path for path in self.read if '\n' not in path])

    # Who is it?

    def packages(self):
        """Those on the stack that are not known, the innermost first; none where a known one is imported within."""
        found, frame = [], sys._getframe(1)
        while frame is not None:
            name = frame.f_globals.get('__name__')
            top = name.partition('.')[0] if isinstance(name, str) else ''
            if top in self.why:
                if top not in found:
                    found.append(top)
            elif top and not found and frame.f_code.co_name == '<module>':
                return []
            frame = frame.f_back
        return found

    def blame(self, top, why):
        # Who makes a file or a lock asks for that as well.
        if self.why.get(top, '') in ('', PROCESS, GENERATOR):
            self.why[top] = why

    def note(self, why):
        """Whether somebody is to blame."""
        packages = self.packages() if not self.busy else ()
        for i, top in enumerate(packages):
            self.blame(top, why if i == 0 else 'imports ' + packages[0])
        return bool(packages)

    # What it imports.

    def found(self, name, spec):
        top = name.partition('.')[0]
        template = self.template
        if template.is_known(top, str(spec.origin)):
            if name in PATCHED:
                spec.loader = _Looker(self, '', spec.loader)
            return
        self.why.setdefault(top, '')
        code = spec.loader.get_code(name) if hasattr(spec.loader, 'get_code') else None
        if code is not None and _asks_for_the_date(code):
            self.blame(top, CLOCK)
        if type(spec.loader).__name__ == 'ExtensionFileLoader':
            self.blame(top, 'has compiled code (%s), of which it is not known what it does' % name)
        elif not self.depth.get(top) and hasattr(spec.loader, 'exec_module'):
            spec.loader = _Looker(self, top, spec.loader)

    def imported(self, name, globals=None, locals=None, fromlist=(), level=0):
        if level == 0 and globals is not None:
            importer = str(globals.get('__name__')).partition('.')[0]
            top = name.partition('.')[0]
            if importer != top and importer in self.why:
                self.importers.setdefault(top, set()).add(importer)
        return self.real_import(name, globals, locals, fromlist, level)

    # What it leaves behind.

    def state(self):
        os = self.os
        with open('/proc/self/maps') as maps:
            shared = sum(1 for line in maps if line.split(None, 2)[1].endswith('s'))
        return {
            'leaves a descriptor open': len(os.listdir('/proc/self/fd')),
            'leaves a thread, which a fork would lose': self.template.count_threads(),
            'makes memory or a lock that all processes share': shared,
            'changes the working directory': os.getcwd(),
            'changes sys.path': list(sys.path),
        }

    def generators(self):
        """Of the global ones that there are, what they would draw next."""
        states = {}
        for name, ask in (('random', 'getstate'), ('numpy.random', 'get_state'), ('torch', 'get_rng_state')):
            module = sys.modules.get(name)
            if hasattr(module, ask) and name in self.patched:
                state = getattr(module, ask)()
                states[name] = repr(state.tolist() if hasattr(state, 'tolist') else state)
        return states

    def look(self, top):
        """What this package has changed; '': one of those that are to be patched has come."""
        self.busy = True
        self.patch()
        now, generators = self.state(), self.generators()
        self.busy = False
        if not top:
            for name, state in generators.items():
                self.generators_seen.setdefault(name, state)
            return
        for why, before in self.seen.items():
            if now[why] > before if isinstance(before, int) else now[why] != before:
                self.blame(top, why)
        for name, state in self.generators_seen.items():
            if generators.get(name, state) != state:
                self.blame(top, 'draws from the generator of %s, or seeds it' % name)
        self.seen, self.generators_seen = now, generators

    # What it asks for.

    def patch(self):
        """Has what is there by now tell who asks it."""
        modules = sys.modules
        for name, functions in ASKED_FOR.items():
            for function, why in functions.items():
                if hasattr(modules.get(name), function) and (name, function) not in self.patched:
                    self.patched.add((name, function))
                    setattr(modules[name], function, _noting(self, getattr(modules[name], function), why))
        for name, patch in PATCHED.items():
            if name in modules and name not in self.patched:
                self.patched.add(name)
                patch(self, modules[name])

    def patch_interpreter(self):
        import builtins
        os, examiner, main = self.os, self, sys.modules['__main__']
        original = type(os.environ)

        class Recording(original):
            def __getitem__(self, name):
                examiner.reads(name)
                return original.__getitem__(self, name)

            def __setitem__(self, name, value):
                examiner.sets(name)
                return original.__setitem__(self, name, value)

            def __delitem__(self, name):
                examiner.sets(name)
                return original.__delitem__(self, name)

            def __iter__(self):
                examiner.note('copies the environment')
                return original.__iter__(self)

        class Main(type(main)):
            def __getattribute__(self, name):
                examiner.note('reads __main__')
                return super(Main, self).__getattribute__(name)

        class Path(list):
            def __iter__(self):
                examiner.reads_path()
                return list.__iter__(self)

            def __getitem__(self, index):
                examiner.reads_path()
                return list.__getitem__(self, index)

            def __contains__(self, place):
                examiner.reads_path()
                return list.__contains__(self, place)

        sys.path = Path(sys.path)
        os.environ.__class__ = os.environb.__class__ = Recording
        main.__class__ = Main
        builtins.__import__ = self.imported
        for name in ('stat', 'access'):
            setattr(os, name, self.looking_at(getattr(os, name)))
        sys.addaudithook(self.audit)

    def looking_at(self, function):
        def looks_at(path, *arguments, **keywords):
            if not isinstance(path, int):
                why = self.why_not_read(self.os.fspath(path))
                if why:
                    self.note(why)
            return function(path, *arguments, **keywords)

        return looks_at

    def reads(self, name):
        template = self.template
        if self.busy or self.entry is None:
            return
        name = self.os.fsdecode(name)
        if name in template.rank_variables:
            self.note('reads %s while it is imported' % name)
            return
        self.busy = True
        differs = template.differing(self.entry, (name,))
        self.busy = False
        if differs:
            self.note('reads %s, which the program sets before it imports it' % name)

    def reads_path(self):
        """Which has no folder of the script in it yet. The import system may: it has to find the same; and so may
        who looks for what is installed, if in the program's own folders there is nothing of the kind."""
        frame = sys._getframe(2)
        asker = str(frame.f_globals.get('__name__'))
        by_import = frame.f_code.co_filename.startswith('<frozen importlib')
        if not by_import and (self.own_metadata or not asker.startswith('importlib.metadata')):
            self.note('reads sys.path')

    def sets(self, name):
        name = self.os.fsdecode(name)
        if name in self.template.rank_variables:
            self.note('sets %s while it is imported' % name)

    def audit(self, event, arguments):
        if self.busy or not event.startswith(LOOKED_AT):
            return
        self.busy = True
        try:
            by_import = sys._getframe(1).f_code.co_filename.startswith('<frozen importlib')
            why = self.why_stopped(event, arguments) if not by_import else ''
        finally:
            self.busy = False
        if why and self.note(why):
            raise self.template.refusal(why)

    def why_stopped(self, event, arguments):
        if event == 'open':
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (self.os.O_WRONLY | self.os.O_RDWR | self.os.O_CREAT)
            if writes and path != self.os.devnull:
                return 'writes %s while it is imported' % (path,)
            return self.why_not_read(path)
        if event in ('os.listdir', 'os.scandir'):
            return self.why_not_read('.' if arguments[0] is None else arguments[0])
        if event.startswith(STOPPED) and not (event == 'ctypes.dlopen' and arguments[0] is None):
            return 'does something that each process has to do itself (%s)' % event
        return ''

    def why_not_read(self, path):
        """What is not installed may be another in the next run. What is, is remembered."""
        if not isinstance(path, (str, bytes)):
            return ''
        path = self.os.path.abspath(self.os.fsdecode(path))
        if not (path + '/').startswith(tuple(self.roots)) or path.startswith(('/proc/self', '/proc/%d' % self.pid)):
            return 'accesses %s while it is imported' % path
        if not path.startswith(('/proc/', '/sys/', '/dev/')):
            self.read.add(path)
        return ''


class _Looker(object):
    """The loader of a package's module, or of one that is to be patched: looks at what is left in the end."""

    def __init__(self, examiner, top, loader):
        self.examiner, self.top, self.loader = examiner, top, loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        if not self.top:
            self.loader.exec_module(module)
            return self.examiner.look('')
        depth = self.examiner.depth
        depth[self.top] = depth.get(self.top, 0) + 1
        try:
            self.loader.exec_module(module)
        finally:
            depth[self.top] -= 1
            self.examiner.look(self.top)


ENTROPY, GENERATOR = 'draws random numbers', 'makes a generator of random numbers'
CLOCK, PROCESS = 'asks for the time', 'asks for the number of its process'
ASKED_FOR = {
    'os': {'urandom': ENTROPY, 'getrandom': ENTROPY, 'getpid': PROCESS, 'getppid': PROCESS},
    'random': {'_urandom': ENTROPY},
    'time': dict((name, CLOCK) for name in (
        'time', 'time_ns', 'monotonic', 'monotonic_ns', 'perf_counter', 'perf_counter_ns', 'process_time', 'strftime',
        'ctime', 'localtime', 'gmtime')),
    'threading': {'get_native_id': PROCESS},
    '_thread': {'get_native_id': PROCESS},
}


def _noting(examiner, function, why):
    def noting(*arguments, **keywords):
        examiner.note(why)
        return function(*arguments, **keywords)

    return noting


def _patch_random(examiner, random):
    """Generators that are seeded by nobody."""
    plain = random.Random.seed

    def seed(self, a=None, *arguments, **keywords):
        if a is None:
            examiner.note(GENERATOR)
        return plain(self, a, *arguments, **keywords)

    random.Random.seed = seed


def _patch_torch(examiner, torch):
    class Generator(torch.Generator):
        def __new__(cls, *arguments, **keywords):
            examiner.note(GENERATOR)
            return super(Generator, cls).__new__(cls, *arguments, **keywords)

    torch.Generator = Generator


def _asks_for_the_date(code):
    """Whether a module's code, or that of a class in it, does by its words: the types of datetime cannot be patched."""
    if {'now', 'utcnow', 'today'}.intersection(code.co_names):
        return True
    optimized = 1  # CO_OPTIMIZED: a function's
    parts = [part for part in code.co_consts if hasattr(part, 'co_names') and not part.co_flags & optimized]
    return any(_asks_for_the_date(part) for part in parts)


PATCHED = {'random': _patch_random, 'torch': _patch_torch, 'numpy.random': lambda examiner, module: None}
