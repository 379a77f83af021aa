/* Keeps the program alive when somebody shortens a file of ours that it has mapped.

A store where the file has ended is SIGBUS. While there is a window of ours, this is its handler: in
such a window it puts an empty page of memory where the file's was, notes that the window is lost,
and the store goes on; whoever keeps the journal looks at the note later. Every other SIGBUS goes to
the handler that was there before, as the kernel would have called it: with its mask, its flags and,
by default, to the end of the process, from the same instruction.

A library may set its own handler over ours, and call ours from there. So one that is set anew on
top of theirs is another function, with a former handler of its own: no chain becomes a circle.

In a child that a library forks, without Python's hooks, windows are memory of its own: what it
writes there must not reach its parent's journal. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

enum { WINDOWS = 32, LEVELS = 8 };

/* ---- windows: read by the handler at any moment, changed under the GIL only ------------------ */

typedef struct {
    _Atomic uintptr_t start; /* 0: nothing here */
    _Atomic uintptr_t end;
    atomic_int lost;
} Window;

static Window windows[WINDOWS];
static uintptr_t page;

static int cover(uintptr_t start, uintptr_t end) {
    return mmap((void *)start, end - start, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/* Whether the address lies in a window, and can be stored to now. */
static int rescue(uintptr_t address) {
    for (int i = 0; i < WINDOWS; i++) {
        uintptr_t start = atomic_load(&windows[i].start);
        if (start == 0 || address < start || address >= atomic_load(&windows[i].end)) continue;
        uintptr_t first = address / page * page;
        if (!cover(first, first + page)) return 0;
        atomic_store(&windows[i].lost, 1);
        return 1;
    }
    return 0;
}

static void in_child(void) {
    for (int i = 0; i < WINDOWS; i++) {
        uintptr_t start = atomic_load(&windows[i].start);
        if (start != 0) cover(start, atomic_load(&windows[i].end));
    }
}

/* ---- the handlers --------------------------------------------------------------------------- */

static struct sigaction formers[LEVELS]; /* what stood there before the handler of each level */
static int used;                         /* levels whose functions somebody may call */

/* A page of memory is broken that nobody was reading just now: no instruction is to blame. */
static int is_hint(siginfo_t *info) {
#ifdef BUS_MCEERR_AO
    return info->si_code == BUS_MCEERR_AO;
#else
    return info == NULL;
#endif
}

static void by_default(int number, siginfo_t *info) {
    struct sigaction standard = {.sa_handler = SIG_DFL};
    sigaction(number, &standard, NULL);
    if (info->si_code > 0 && !is_hint(info)) return; /* the instruction faults again, and ends it */
#ifdef __linux__
    if (syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), number, info) == 0) return;
#endif
    raise(number); /* it is blocked until we return */
}

static void on_bus(int level, int number, siginfo_t *info, void *context) {
    int saved = errno;
    int done = info->si_code > 0 && rescue((uintptr_t)info->si_addr);
    errno = saved;
    if (done) return;
    const struct sigaction former = formers[level];
    if (!(former.sa_flags & SA_SIGINFO) && former.sa_handler == SIG_DFL) {
        by_default(number, info);
        errno = saved;
        return;
    }
    if (former.sa_flags & SA_RESETHAND) {
        struct sigaction standard = {.sa_handler = SIG_DFL};
        sigaction(number, &standard, NULL);
    }
    if (former.sa_flags & SA_SIGINFO)
        former.sa_sigaction(number, info, context);
    else
        former.sa_handler(number);
}

#define LEVEL(n) \
    static void on_bus_##n(int s, siginfo_t *i, void *c) { on_bus(n, s, i, c); }
LEVEL(0) LEVEL(1) LEVEL(2) LEVEL(3) LEVEL(4) LEVEL(5) LEVEL(6) LEVEL(7)
static void (*const handlers[LEVELS])(int, siginfo_t *, void *) = {
    on_bus_0, on_bus_1, on_bus_2, on_bus_3, on_bus_4, on_bus_5, on_bus_6, on_bus_7};

/* Which of ours this is; -1: none. */
static int level_of(const struct sigaction *action) {
    for (int level = 0; level < LEVELS; level++)
        if (action->sa_flags & SA_SIGINFO && action->sa_sigaction == handlers[level]) return level;
    return -1;
}

static int is_same(const struct sigaction *one, const struct sigaction *other) {
    return one->sa_flags == other->sa_flags && one->sa_handler == other->sa_handler;
}

/* See that the handler is ours. Whether it is: one who ignores SIGBUS hands that down to what it
   executes, which no handler does, and one who sets handlers again and again is let alone. */
static int settle(void) {
    struct sigaction now, ours = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    if (sigaction(SIGBUS, NULL, &now) != 0) return 0;
    if (level_of(&now) >= 0) return 1;
    int handled = now.sa_flags & SA_SIGINFO || now.sa_handler != SIG_DFL;
    if (!(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_IGN) return 0;
    int level = 0; /* the one over this very handler, where there was one */
    while (level < used && !is_same(&formers[level], &now)) level++;
    if (level == LEVELS) return 0;
    formers[level] = now;
    ours.sa_sigaction = handlers[level];
    ours.sa_mask = now.sa_mask;
    if (handled) ours.sa_flags = (now.sa_flags & ~(int)SA_RESETHAND) | SA_SIGINFO;
    if (sigaction(SIGBUS, &ours, NULL) != 0) return 0;
    if (level == used) used++;
    return 1;
}

/* The last window is gone: put back what was there, unless somebody has come over it. */
static void leave(void) {
    struct sigaction now;
    if (sigaction(SIGBUS, NULL, &now) != 0) return;
    int level = level_of(&now);
    if (level < 0 || sigaction(SIGBUS, &formers[level], NULL) != 0) return;
    if (level == used - 1) used = level;
}

/* ---- the module ------------------------------------------------------------------------------ */

static int is_blocked(void) {
    sigset_t mask;
    return pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0 && sigismember(&mask, SIGBUS) == 1;
}

static int barred; /* a thread blocks SIGBUS: a fault of its own would end the process */

static PyObject *ready(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    barred |= is_blocked();
    return PyBool_FromLong(!barred && settle());
}

static const char WINDOW[] = "disttrace.window";

static void let_go(Window *window) {
    atomic_store(&window->start, 0);
    for (int i = 0; i < WINDOWS; i++)
        if (atomic_load(&windows[i].start) != 0) return;
    leave();
}

/* Nobody has it any more who could release it: an exception of a signal handler struck where the
   mapping was made, or given up. */
static void dropped(PyObject *guard) {
    Window *window = PyCapsule_GetPointer(guard, WINDOW);
    if (window != NULL && PyCapsule_GetContext(guard) == NULL) let_go(window);
}

static PyObject *guard(PyObject *Py_UNUSED(self), PyObject *mapping) {
    static int forks; /* whether the hook is there: it cannot be taken away again */
    Py_buffer buffer;
    int free = 0;
    while (free < WINDOWS && atomic_load(&windows[free].start) != 0) free++;
    if (free == WINDOWS || barred || !settle() ||
        (!forks && pthread_atfork(NULL, NULL, in_child) != 0)) {
        PyErr_SetString(PyExc_OSError, "SIGBUS cannot be handled for a mapping");
        return NULL;
    }
    forks = 1;
    if (PyObject_GetBuffer(mapping, &buffer, PyBUF_WRITABLE) != 0) return NULL;
    uintptr_t start = (uintptr_t)buffer.buf, end = start + (uintptr_t)buffer.len;
    PyBuffer_Release(&buffer); /* the mapping stays where it is until it is closed */
    PyObject *made = PyCapsule_New(&windows[free], WINDOW, dropped);
    if (made == NULL) return NULL;
    atomic_store(&windows[free].lost, 0);
    atomic_store(&windows[free].end, (end + page - 1) / page * page);
    atomic_store(&windows[free].start, start);
    return made;
}

static PyObject *lost(PyObject *Py_UNUSED(self), PyObject *guard) {
    Window *window = PyCapsule_GetPointer(guard, WINDOW);
    return window == NULL ? NULL : PyBool_FromLong(atomic_load(&window->lost));
}

static PyObject *release(PyObject *Py_UNUSED(self), PyObject *guard) {
    Window *window = PyCapsule_GetPointer(guard, WINDOW);
    if (window == NULL) return NULL;
    if (PyCapsule_GetContext(guard) == NULL) {
        if (PyCapsule_SetContext(guard, windows) != 0) return NULL;
        let_go(window);
    }
    Py_RETURN_NONE;
}

/* Memory that the file of a descriptor shows, without a descriptor of its own as Python's mmap keeps
   one. It is there until the process ends. */
static PyObject *share(PyObject *Py_UNUSED(self), PyObject *args) {
    int fd;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "in", &fd, &size)) return NULL;
    void *start = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (start == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
    return PyMemoryView_FromMemory(start, size, PyBUF_WRITE);
}

static PyMethodDef methods[] = {
    {"share", share, METH_VARARGS, "Memory that a file shows, by descriptor and size."},
    {"ready", ready, METH_NOARGS, "See that SIGBUS comes to us, of this thread too; whether it does."},
    {"guard", guard, METH_O, "Survive stores into a mapping whose file has ended, until\n"
     "that is released or nobody has it."},
    {"lost", lost, METH_O, "Whether something was stored where the file had ended."},
    {"release", release, METH_O, "The mapping is about to be closed."},
    {NULL},
};

static int module_exec(PyObject *self) {
    page = (uintptr_t)sysconf(_SC_PAGESIZE);
    return PyModule_AddIntConstant(self, "SOURCE", DISTTRACE_SOURCE);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "disttrace.journal._mapping",
    .m_doc = "Windows into files that somebody may shorten; see segment.py.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__mapping(void) { return PyModuleDef_Init(&module); }
