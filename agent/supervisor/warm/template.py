# What a template does until it is forked (docs/design.md, "Warm start"); forked.py goes on from there.
# sitecustomize.py reads both in templates only, so that no other process has to. Any Python 3 must be able
# to.
#
# Messages on the template's socket are text fields with a NUL between them (template_messages.h).
import sys


class Template(object):
    PATIENCE = 64  # looks at threads that are about to end
    # By their first part. cadre remembers which process imported it: that one is the worker, and what is
    # forked from it is not (forked.py has the rest, for where a package imports it).
    NOT_PRELOADED = ('__main__', 'sitecustomize', 'usercustomize', 'cadre')

    def __init__(self, os, number):
        before = set(sys.modules)
        import _socket
        import time
        self.os, self.time = os, time
        self.parent = os.getppid()
        self.socket = _socket.socket(fileno=number)
        self.socket.setblocking(True)
        os.set_inheritable(number, False)
        self.prctl = self.load_prctl()
        for name in set(sys.modules) - before:
            del sys.modules[name]
        self.module, self.script, self.learned, preload, refused, rank_variables = [
            field.decode() for field in self.receive()[0][1:7]]
        self.preload = [name for name in preload.split(',') if name]
        self.refused = set(name for name in refused.split(',') if name)
        self.rank_variables = set(rank_variables.split(','))
        self.complaints = []  # "name: why" of what this template has imported and must not have
        self.readers = []
        self.note = ''

    def load_prctl(self):
        try:
            import ctypes
            return ctypes.CDLL(None).prctl
        except Exception:
            return None

    def receive(self):
        """Fields and descriptors of the next message; none once the supervisor is gone."""
        data, ancillary, _, _ = self.socket.recvmsg(1 << 20, 4096)
        if not data:
            self.os._exit(0)
        numbers = []
        for _, _, packed in ancillary:
            for i in range(0, len(packed) - len(packed) % 4, 4):
                numbers.append(int.from_bytes(packed[i:i + 4], sys.byteorder))
        return data.split(b'\0'), numbers

    def send(self, *fields):
        self.socket.send('\0'.join(str(field) for field in fields).encode('utf-8', 'replace'))

    # Before the first fork.

    def prepare(self):
        begin = self.time.monotonic()
        before = len(sys.modules)
        written = self.capture(self.import_all)
        if self.complaints:
            self.send('refused', *self.complaints[:64])
            self.os._exit(0)
        import gc
        gc.collect()
        self.places = self.look_at_places()
        self.affinity = self.os.sched_getaffinity(0)
        self.send('ready', len(sys.modules) - before, int(1e3 * (self.time.monotonic() - begin)),
                  self.note)
        return written

    def capture(self, work):
        """What `work` writes to standard output and standard error: each worker says it again."""
        os = self.os
        kept = [os.dup(1), os.dup(2)]
        files = [os.memfd_create('cadre'), os.memfd_create('cadre')]
        for i in (0, 1):
            os.dup2(files[i], i + 1, inheritable=True)
        work()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        written = []
        for i in (0, 1):
            written.append(os.pread(files[i], 1 << 20, 0))
            os.dup2(kept[i], i + 1, inheritable=True)
            os.close(kept[i])
            os.close(files[i])
        return written

    def import_all(self):
        environment = self.os.environ
        original = type(environment)
        template = self

        class Recording(original):
            def __getitem__(self, name):
                if name in template.rank_variables:
                    template.readers.append((name, template.who_reads()))
                return original.__getitem__(self, name)

        environment.__class__ = Recording
        try:
            for name in self.wanted():
                self.import_one(name)
        finally:
            environment.__class__ = original
        self.note_poisoned_fork('its imports')

    def who_reads(self):
        frame = sys._getframe(2)
        while frame and frame.f_globals.get('__name__') in ('os', '_collections_abc', 'collections.abc'):
            frame = frame.f_back
        return frame.f_globals.get('__name__', '?') if frame else '?'

    def wanted(self):
        """Names, in the order in which the program imported them."""
        origins = {}
        try:
            with open(self.learned) as file:
                for line in file:
                    name, _, origin = line.rstrip('\n').partition('\t')
                    origins.setdefault(name, origin)
        except OSError:
            pass
        late = self.imported_after_variables_are_set()
        same = {}
        for name, origin in origins.items():
            top = name.partition('.')[0]
            if top in late and '-packages/' in origin:
                self.note = ('%s and what follows it is left to the workers, since the program sets '
                             'environment variables before it imports it' % top)
                break
            if not self.is_installed(origin) or top in self.NOT_PRELOADED or name == self.module:
                continue
            if top not in same:
                same[top] = self.is_same(top, origins.get(top))
            if same[top]:
                yield name
        for name in self.preload:
            if name.partition('.')[0] not in self.NOT_PRELOADED:
                yield name

    def is_installed(self, origin):
        if origin in ('None', 'built-in', 'frozen'):
            return True
        library = self.os.path.dirname(self.os.__file__) + '/'
        return '/site-packages/' in origin or '/dist-packages/' in origin or origin.startswith(library)

    def is_same(self, top, origin):
        """Whether an import here finds what the program has found, with another sys.path."""
        if top in sys.modules or origin is None:
            return True
        for finder in sys.meta_path:
            spec = finder.find_spec(top, None)
            if spec is not None:
                return str(spec.origin) == origin
        return False

    def imported_after_variables_are_set(self):
        """What the program's source imports at its top only after it has set environment variables:
        that may be how an import is meant to go."""
        if not self.script:
            return ()
        before = set(sys.modules)
        try:
            import ast
            with open(self.script, 'rb') as file:
                tree = ast.parse(file.read())
            line, late, early = 0, [], set()
            for statement in tree.body:
                names = []
                if isinstance(statement, ast.Import):
                    names = [alias.name for alias in statement.names]
                elif isinstance(statement, ast.ImportFrom) and not statement.level:
                    names = [statement.module]
                elif not line and self.sets_variable(ast, statement):
                    line = statement.lineno
                for name in names:
                    top = name.partition('.')[0]
                    if line and top not in early and top not in sys.builtin_module_names:
                        late.append(top)
                    elif not line:
                        early.add(top)
            return set(late)
        except Exception:
            return ()
        finally:
            for name in set(sys.modules) - before:
                del sys.modules[name]

    def sets_variable(self, ast, statement):
        for node in ast.walk(statement):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
                return False
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
                target, keys = node.value, [node.slice]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target, keys = node.func.value, node.args[:1]
                if node.func.attr == 'putenv':
                    return True
                if node.func.attr not in ('setdefault', 'update', 'pop'):
                    continue
            else:
                continue
            if getattr(target, 'attr', getattr(target, 'id', None)) != 'environ':
                continue
            key = getattr(keys[0], 'value', None) if keys else None
            key = getattr(key, 'value', key)  # before Python 3.9
            if key not in self.rank_variables:
                return True
        return False

    def import_one(self, name):
        parts = name.split('.')
        if any('.'.join(parts[:i]) in self.refused for i in range(1, len(parts) + 1)):
            return
        if name in sys.modules:
            return
        threads = self.count_threads()
        readers = len(self.readers)
        try:
            __import__(name)
        except ImportError as error:
            # It may have failed in the program too, which goes on without it.
            if name in self.preload:
                self.refuse(name, '%s: %s' % (type(error).__name__, error))
            return
        except BaseException as error:
            self.refuse(name, '%s: %s' % (type(error).__name__, error))
            return
        if len(self.readers) > readers:
            variable, reader = self.readers[readers]
            self.refuse(name, 'reads %s while it is imported (in %s)' % (variable, reader))
            if reader != name and reader.partition('.')[0] != name.partition('.')[0]:
                self.refuse(reader.partition('.')[0], 'reads %s while it is imported' % variable)
        if self.count_threads() > threads:
            self.note_threads(name, threads)
        if 'torch.cuda' in sys.modules and parts[0] != 'torch':
            self.note_poisoned_fork(name)

    def refuse(self, name, why):
        if name not in self.refused:
            self.refused.add(name)
            self.complaints.append('%s: %s' % (name, ' '.join(why.split())[:200]))

    def count_threads(self):
        return len(self.os.listdir('/proc/self/task'))

    def note_threads(self, name, threads):
        """OpenBLAS ends its threads before a fork, and makes them again when it needs them."""
        for _ in range(self.PATIENCE):
            self.try_fork()
            if self.count_threads() <= threads:
                return
        self.refuse(name, 'leaves a thread, which a fork would lose')

    def note_poisoned_fork(self, name):
        if self.try_fork() != 0:
            self.refuse(name, 'touches a GPU while it is imported; no fork can use it after that')

    def try_fork(self):
        """0: all is well in a process that is forked now."""
        os = self.os
        pid = os.fork()
        if pid == 0:
            bad = False
            for name in ('torch.cuda', 'torch.xpu'):
                probe = getattr(sys.modules.get(name), '_is_in_bad_fork', None)
                try:
                    bad = bad or (probe is not None and bool(probe()))
                except Exception:
                    pass
            os._exit(1 if bad else 0)
        return os.waitpid(pid, 0)[1]

    def look_at_places(self):
        """Changes when something is installed."""
        places = []
        for place in sys.path:
            try:
                places.append((place, self.os.stat(place).st_mtime_ns))
            except OSError:
                pass
        return places

    # The fork for each worker.

    def serve(self):
        """Returns in each worker, with its order."""
        while True:
            fields, numbers = self.receive()
            serial = fields[1].decode()
            if self.look_at_places() != self.places:
                self.send('stale', serial)
                self.os._exit(0)
            try:
                pid = self.fork_worker(numbers)
            except OSError as error:
                self.send('failed', serial, error)
                continue
            if pid == 0:
                return fields, numbers
            self.send('forked', serial, pid)

    def fork_worker(self, numbers):
        """Forks twice: the supervisor is the parent of what has lost its own. 0 in the worker."""
        os = self.os
        ours, theirs = os.pipe()
        between = os.fork()
        if between == 0:
            try:
                if os.fork() != 0:
                    os._exit(0)
                os.setsid()
                os.write(theirs, b'%d' % os.getpid())
                os.close(ours)
                os.close(theirs)
                return 0
            except OSError:
                os._exit(1)
        for number in numbers:
            os.close(number)
        os.close(theirs)
        try:
            said = os.read(ours, 32)
        finally:
            os.close(ours)
            # Only with it gone is the worker the supervisor's child.
            os.waitpid(between, 0)
        if not said:
            raise OSError('no process could be made')
        return int(said)
