# What a template does until it is forked (docs/design.md, "Warm start"); forked.py goes on from there.
# sitecustomize.py reads them in templates only, so that no other process has to. Any Python 3 must be able
# to.
#
# Messages on the template's socket are text fields with a NUL between them (template_messages.h).
import sys


# Packages that are taken to be clean without a look (examine.py), with what they import and the libraries that they
# load: what each does while it is imported was compared (docs/design.md). The standard library is as well.
KNOWN = frozenset((
    'certifi', 'torch', 'torchgen', 'functorch', 'numpy', 'triton', 'nvidia', 'cuda', 'tqdm', 'typing_extensions',
    'sympy', 'mpmath', 'networkx', 'jinja2', 'markupsafe', 'filelock', 'fsspec', 'packaging', 'yaml', '_yaml',
    'optree', 'opt_einsum', 'setuptools', '_distutils_hack', 'scipy', 'pandas', 'dateutil', 'pytz', 'six', 'PIL',
    'psutil', 'safetensors', 'tokenizers', 'regex', 'charset_normalizer', 'google',
    'dill'))  # which torch imports where it is installed

# What they read while they are imported begins like one of these, by what torch 2.15, numpy, the libraries of both and
# the standard library ask for.
READ_BY_KNOWN = (
    'ACC_', 'AS_SECURE', 'ATEN', 'BLIS', 'C10', 'CASK', 'CLICOLOR', 'COMPILE_', 'CUBLAS', 'CUDA', 'CUDNN', 'DNNL',
    'FX_', 'GFORTRAN', 'GLIBC', 'GLOO', 'GOMP', 'GOTO', 'HIP', 'HOME', 'HSA', 'INTEL', 'I_MPI', 'KINETO', 'KMP',
    'LANG', 'LC_', 'LD_', 'LIB', 'LLVM', 'MALLOC', 'MIOPEN', 'MKL', 'MPI', 'NCCL', 'NETWORKX', 'NPY', 'NUMBA',
    'NUMEXPR', 'NUMPY', 'NV', 'OMP', 'ONEDNN', 'OPENBLAS', 'OPENSSL', 'PANDAS', 'PATH', 'NO_COLOR',
    'PROTOCOL_BUFFERS', 'PSUTIL', 'PTXAS', 'PYTHON', 'PYTORCH', 'ROC', 'RUST', 'SCIPY', 'SSL', 'TEMP', 'TERM',
    'TMP', 'TOKENIZERS_LOG', 'TORCH', 'TQDM', 'TRITON', 'TZ', 'UCC', 'UCX', 'USE_', 'XDG', 'XLA', 'XPU', 'ZE_')


FILES_READ_BY_KNOWN = ('~/.config/fsspec',)
# But these only later, when CUDA, NCCL or Gloo is used, or something is downloaded.
READ_LATER = (
    'CUDA_DEVICE_ORDER', 'CUDA_VISIBLE_DEVICES', 'GLOO_', 'NCCL_', 'PYTORCH_NVML_BASED_CUDA_CHECK', 'TORCH_HOME',
    'TORCH_NCCL_')


class NotBeforehand(BaseException):
    """Of an import that this process must not do."""


class Template(object):
    PATIENCE = 64  # looks at threads that are about to end
    # By their first part. cadre remembers which process imported it: that one is the worker, and what is
    # forked from it is not. pkg_resources remembers sys.path.
    NOT_PRELOADED = ('__main__', 'sitecustomize', 'usercustomize', 'cadre', 'pkg_resources')
    # They change the standard library: nothing is imported beforehand that the program imports after them.
    CHANGES_OTHERS = ('gevent', 'eventlet')
    # Variables that are each process's, besides the ranks'.
    OF_THIS_PROCESS = ('CADRE_SUPERVISED_BY', 'CADRE_WARM_START')
    # What shells set, whichever rank they start.
    OF_SHELLS = ('PYTHONPATH', 'SHLVL', '_', 'PWD', 'OLDPWD', 'LC_CTYPE', 'CADRE_PROGRESS_FD')

    def __init__(self, os, number, code):
        self.code = code
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
        fields = [os.fsdecode(field) for field in self.receive()[0][1:]]
        self.module, self.script, self.learned, preload, refused, rank_variables = fields[:6]
        self.learner = dict(entry.partition('=')[::2] for entry in fields[6:])
        self.preload = [name for name in preload.split(',') if name]
        self.refused = set(name for name in refused.split(',') if name)
        self.rank_variables = set(rank_variables.split(','))
        self.at_start = dict(os.environ)
        self.library = os.path.dirname(os.__file__) + '/'
        self.origins = {}  # what the program has imported, and from where
        self.clean = None  # of other packages, once a child has looked: '' or what they do that a worker must do itself
        self.started = None  # the environment in which an interpreter of the program has begun that was not forked
        self.asked = set()  # by their first part: what imports here have looked for
        self.importing = ''
        self.complaints = []  # "name: why" of what this template has imported and must not have
        self.notes = []

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
        entries = self.code['read_learned'](self)
        self.look_at_start()
        written = self.capture(lambda: self.import_all(entries))
        if self.complaints:
            self.send('refused', *self.complaints[:64])
            self.os._exit(0)
        import gc
        gc.collect()
        self.files = self.files_imported()
        self.places = self.look_at_places()
        self.affinity = self.os.sched_getaffinity(0)
        self.send('ready', len(sys.modules) - before, int(1e3 * (self.time.monotonic() - begin)), *self.notes[:64])
        return written

    def look_at_start(self):
        """A script around the interpreter, or a .pth file, may do for each rank what was done here for none."""
        os = self.os
        for name, module in list(sys.modules.items()):
            path = getattr(module, '__file__', None)
            top = name.partition('.')[0]
            harmless = top in KNOWN or top.startswith(('__editable__', '_virtualenv', '__main__', 'sitecustomize'))
            if path and not self.is_standard(path) and not harmless:
                self.end('a .pth file imports %s before the program' % name)
        given = self.learner
        if not given or self.started is None:
            return
        ranks = self.rank_variables
        plain = self.changes(given, self.started)
        here = self.changes(dict((name, value) for name, value in given.items() if name not in ranks), self.at_start)
        values = set(given[name] for name in ranks if name in given)
        for name in sorted(set(plain) | set(here)):
            if plain.get(name, 0) != here.get(name, 0) or name in ranks or plain[name] in values:
                self.end('a script around the interpreter, or a .pth file, sets %s, which may be another for each rank' %
                         name)

    def end(self, why):
        self.send('ended', why)
        self.os._exit(0)

    def changes(self, before, after):
        names = set(before) | set(after)
        return dict((name, after.get(name)) for name in names
                    if before.get(name) != after.get(name) and name not in self.OF_THIS_PROCESS + self.OF_SHELLS)

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

    def import_all(self, entries):
        # Once it imports, it takes what the program's own imports have taken.
        looks = any(entry.needs_look for entry in entries)
        self.send('looks' if looks else 'imports')
        sys.meta_path.insert(0, self)
        try:
            for i, entry in enumerate(entries):
                if entry.needs_look and self.clean is None:
                    self.clean = self.code['examine'](self, entries[i:])
                    self.send('imports')
                if self.is_wanted(entry):
                    self.import_one(entry.name, entry.preload)
                if self.stopped:
                    break
        finally:
            sys.meta_path.remove(self)
        self.note_poisoned_fork('its imports')
        self.notes += self.left_out(entries)

    def left_out(self, entries):
        """Packages that are left to each worker, and why."""
        found = dict(self.clean or {})
        for entry in entries:
            top = entry.name.partition('.')[0]
            if entry.after_own_code and not self.is_known(top, entry.origin):
                found.setdefault(top, 'the program runs code of its own before it imports it')
        return ['%s: %s' % (top, why) for top, why in sorted(found.items()) if why and top not in self.refused]

    stopped = False
    on_found = None  # a look at what is imported

    def is_wanted(self, entry):
        """Whether it is imported here, by what the program had done before it."""
        top = entry.name.partition('.')[0]
        known = self.is_known(top, entry.origin)
        if not known and (entry.after_own_code or self.clean is None or self.clean.get(top, 'no')):
            return False
        if known and not entry.preload:
            name = self.differing(entry)
            if name:
                self.stopped = True
                self.notes.append('%s: the program sets %s before it imports it; what follows is left out too' %
                                  (entry.name, name))
                return False
        return True

    def differing(self, entry, reads=None):
        """A variable that it may read and that is another here than it was for the program."""
        environment = self.os.environ
        for name in set(entry.changed) | self.changed_here():
            if reads is None:
                read = name.startswith(READ_BY_KNOWN) and not name.startswith(READ_LATER)
            else:
                read = name in reads
            if not read or name in self.rank_variables:
                continue
            if environment.get(name) != entry.changed.get(name, self.at_start.get(name)):
                return name
        return ''

    def changed_here(self):
        now = dict(self.os.environ)
        return set(name for name in set(now) | set(self.at_start) if now.get(name) != self.at_start.get(name))

    def is_standard(self, origin):
        return (origin in ('built-in', 'frozen') or
                origin.startswith(self.library) and '-packages/' not in origin[len(self.library):])

    def is_installed(self, origin):
        # A folder without a file of its own has none, and runs no code.
        packages = '/site-packages/' in origin or '/dist-packages/' in origin
        return origin in ('', 'None') or packages or self.is_standard(origin)

    def is_known(self, top, origin):
        return top in KNOWN or self.is_standard(origin)

    # As the first on sys.meta_path, while it imports: nothing but what the program has imported, from the same file.

    def find_spec(self, name, path=None, target=None):
        top = name.partition('.')[0]
        self.asked.add(top)
        caller = sys._getframe(1)
        while caller is not None and caller.f_code.co_name == '_find_spec':
            caller = caller.f_back
        if caller is None or caller.f_code.co_name != '_find_and_load_unlocked':
            return None
        spec = self.code['find_behind'](self, name, path, target)
        if spec is not None or name in self.origins:
            why = self.why_not(name, top, spec)
            if why:
                self.refuse(self.importing, why)
                raise self.refusal(why)
            if self.on_found is not None:
                self.on_found(name, spec)
        return spec

    def refusal(self, why):
        return NotBeforehand(why)

    def why_not(self, name, top, spec):
        if spec is None:
            return 'imports %s, which is not an installed package' % name
        origin = str(spec.origin)
        if top in self.NOT_PRELOADED:
            return 'imports ' + name
        if name in self.origins:
            if self.origins[name] != origin:
                return 'finds another %s than the program does: %s' % (name, origin)
        elif not self.is_free:
            return 'imports %s, which the program did not import' % name
        if not self.is_installed(origin):
            return 'imports %s, which is not an installed package' % name
        if top in self.refused:
            return 'imports ' + name
        if not self.is_known(top, origin) and (self.clean is None or self.clean.get(top, 'no')):
            return 'imports %s, which is left to the workers' % name
        return ''

    is_free = False

    def import_one(self, name, free):
        parts = name.split('.')
        if any('.'.join(parts[:i]) in self.refused for i in range(1, len(parts) + 1)):
            return
        if name in sys.modules:
            return
        threads = self.count_threads()
        self.importing, self.is_free = parts[0], free
        try:
            __import__(name)
        except ImportError as error:
            # It may have failed in the program too, which goes on without it.
            if free:
                self.refuse(name, '%s: %s' % (type(error).__name__, error))
            return
        except BaseException as error:
            self.refuse(parts[0], '%s: %s' % (type(error).__name__, error))
            return
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

    def files_imported(self):
        """As they are now: when one changes, an import would find something else."""
        paths = set(self.read).union(self.os.path.expanduser(path) for path in FILES_READ_BY_KNOWN)
        for module in list(sys.modules.values()):
            path = getattr(module, '__file__', None)
            if isinstance(path, str):
                paths.add(path)
        return dict((path, self.look_at(path)) for path in paths)

    read = ()  # other files that imports have read

    def look_at(self, path):
        try:
            found = self.os.stat(path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def look_at_places(self):
        """Changes when something is installed, or lies where an import would find it first."""
        places = {}
        for place in sys.path:
            if self.is_installed(place + '/'):
                places[place] = self.look_at(place)
        for place in self.own_places():
            places[place] = self.modules_in(place)
        return places

    def own_places(self):
        """Folders of the program's own in which an import looks, the script's first."""
        os = self.os
        places = [os.path.dirname(os.path.realpath(self.script)) if self.script else os.getcwd()]
        return places + [place for place in sys.path if not self.is_installed(place + '/')]

    def modules_in(self, place):
        """Those of the names that imports have looked for that are there."""
        os, found = self.os, set()
        try:
            names = os.listdir(place or '.')
        except OSError:
            names = ()
        for name in names:
            name, dot, _ = name.partition('.')
            if name in self.asked and (dot or os.path.exists(os.path.join(place, name, '__init__.py'))):
                found.add(name)
        return found

    def what_changed(self):
        """The first file or folder that is not what it was; '': all are."""
        places = self.look_at_places()
        for place, seen in self.places.items():
            if places[place] != seen:
                return place
        for path, seen in self.files.items():
            if self.look_at(path) != seen:
                return path
        return ''

    # The fork for each worker.

    def serve(self):
        """Returns in each worker, with its order."""
        while True:
            fields, numbers = self.receive()
            serial = fields[1].decode()
            changed = self.what_changed()
            if changed:
                self.send('stale', serial, changed)
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
