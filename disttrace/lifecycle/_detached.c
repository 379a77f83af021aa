/* Starts a process that the program can neither wait for nor be told of.

A child is seen by `wait` and ends with SIGCHLD because it was made with that exit signal. One made
with none is neither, unless somebody asks for __WCLONE; but exec sets the signal, and so does a new
parent. So what execs is never the program's child:

* `between` has no exit signal, shares our memory like a vfork, starts the new process and ends:
  that one goes to whoever adopts orphans, and we reap `between` by __WCLONE.
* Where the adopter is this very process (the first of a container, a subreaper), `between` makes
  a `keeper` that is our child beside it, and has no exit signal either. It stays, adopts in our
  place, and ends after the last of its children. It is a copy of the program as a fork makes it,
  and lets go of all of it but the pages that it runs in.

What runs in the new processes is safe in signal handlers: no malloc, no locks, no Python. */

#define PY_SSIZE_T_CLEAN
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <Python.h>

#ifdef __linux__

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_attribute)
#if __has_attribute(no_stack_protector)
#define BARE __attribute__((noinline, no_stack_protector))
#endif
#endif
#ifndef BARE
#define BARE __attribute__((noinline))
#endif

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum {
    STACK = 64 << 10,    /* of each of the processes */
    PATIENCE_MS = 10000, /* in which a keeper has started its child, on the slowest disk */
    SIGNALS = 64,
    SIGNAL_SET = 8, /* bytes, as the kernel counts */
    DONE = -1,
};

/* What is to be started; in memory that a copy of this process shares with it. */
typedef struct {
    const char *path;
    char **argv, **envp;
    int out, err;  /* descriptors that become 1 and 2 */
    int kept;
    volatile int outcome;  /* 0, an errno, or DONE */
    volatile pid_t keeper; /* once there is one */
    uintptr_t page;        /* bytes of one */
    char *stacks;          /* of `become`, `keeper` and `between` */
} Order;

/* ---- in the new processes --------------------------------------------------------------- */

/* Where the kernel is older than close_range (5.9), or a filter does not know it. */
static void close_listed_from(int first) {
    char entries[2048];
    int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
    long length;
    if (folder < 0) {
        for (int fd = first; fd < 65536; fd++) close(fd);
        return;
    }
    while ((length = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0)
        for (long at = 0; at < length;) {
            struct {
                uint64_t inode;
                int64_t next;
                unsigned short length;
                unsigned char type;
                char name[];
            } *entry = (void *)(entries + at);
            int fd = 0;
            for (const char *digit = entry->name; *digit >= '0' && *digit <= '9'; digit++)
                fd = fd * 10 + (*digit - '0');
            if (entry->name[0] != '.' && fd >= first && fd != folder) close(fd);
            at += entry->length;
        }
    close(folder);
}

static void close_from(int first) {
    if (syscall(SYS_close_range, first, ~0U, 0) != 0) close_listed_from(first);
}

/* Nothing is ignored, nothing blocked, and no handler of the program's can run. */
static void default_signals(void) {
    static const uint64_t none, defaults[8]; /* larger than any kernel's struct sigaction */
    for (int number = 1; number <= SIGNALS; number++)
        syscall(SYS_rt_sigaction, number, defaults, NULL, SIGNAL_SET);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, SIGNAL_SET);
}

static int give_descriptors(const Order *order) {
    int out = order->out, err = order->err;
    if (err == 1 && (err = dup(err)) < 0) return -1; /* the program had closed its own */
    if (dup2(out, 1) < 0 || dup2(err, 2) < 0) return -1;
    if (fcntl(1, F_SETFD, 0) < 0 || fcntl(2, F_SETFD, 0) < 0) return -1; /* they may be the same */
    close_from(3); /* before anything is opened: the program may have all that it may have */
    close(0);
    return open("/dev/null", O_RDONLY);
}

static int become(void *argument) {
    Order *order = argument;
    setsid();
    if (give_descriptors(order) == 0 && chdir("/") == 0) {
        if (order->kept) prctl(PR_SET_PDEATHSIG, SIGKILL); /* else we would adopt it after all */
        default_signals();
        execve(order->path, order->argv, order->envp);
    }
    order->outcome = errno ? errno : EBADF;
    _exit(127);
}

/* The pid of what was started; -1 where nothing was, and `outcome` says why. */
static pid_t started(Order *order) {
    pid_t child = clone(become, order->stacks + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, order);
    if (child < 0) order->outcome = errno;
    if (order->outcome == 0) return child;
    if (child > 0) waitpid(child, NULL, 0);
    return -1;
}

/* ---- the keeper: after its memory is gone there is no library and no thread-local storage -- */

#if defined(__x86_64__)
#define KEEPER 1
static inline __attribute__((always_inline)) long bare(long call, long a, long b, long c, long d) {
    register long fourth __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(call), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
#define KEEPER 1
static inline __attribute__((always_inline)) long bare(long call, long a, long b, long c, long d) {
    register long number __asm__("x8") = call;
    register long first __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    register long fourth __asm__("x3") = d;
    __asm__ volatile("svc 0"
                     : "+r"(first)
                     : "r"(number), "r"(second), "r"(third), "r"(fourth)
                     : "memory");
    return first;
}
#endif

#ifdef KEEPER
/* Let go of the memory from `at` to `end`, but of what cannot be (a sealed mapping); false where
   addresses end before. */
static inline __attribute__((always_inline)) int let_go(uintptr_t at, uintptr_t end,
                                                        uintptr_t page) {
    uintptr_t step = end - at;
    while (at < end) {
        if (step > end - at) step = end - at;
        long failed = bare(SYS_munmap, (long)at, (long)step, 0, 0);
        if (!failed) {
            at += step;
            step *= 2;
        } else if (step > page) {
            step = step / 2 & ~(page - 1);
            if (!step) step = page;
        } else if (failed == -EINVAL) {
            return 0;
        } else {
            at += page;
        }
    }
    return 1;
}

/* Keep the two pages of this function and the stack; wait for everybody; end. */
static BARE void keep(uintptr_t code, uintptr_t code_end, uintptr_t stack, uintptr_t stack_end,
                      uintptr_t page) {
    uintptr_t low = code < stack ? code : stack, low_end = code < stack ? code_end : stack_end;
    uintptr_t high = code < stack ? stack : code, high_end = code < stack ? stack_end : code_end;
    let_go(0, low, page);
    let_go(low_end, high, page);
    let_go(high_end, (uintptr_t)1 << 56, page);
    long ended;
    do {
        ended = bare(SYS_wait4, -1, 0, 0x40000000 /* __WALL */, 0);
    } while (ended > 0 || ended == -EINTR);
    for (;;) bare(SYS_exit_group, 0, 0, 0, 0);
}

static int keeper(void *argument) {
    Order *order = argument;
    uintptr_t page = order->page, code = (uintptr_t)keep & ~(page - 1);
    uintptr_t stack = (uintptr_t)order->stacks;
    setsid();
    prctl(PR_SET_NAME, "disttrace");
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) order->outcome = errno;
    if (order->outcome == 0) started(order);
    close_from(0);
    if (chdir("/") != 0) order->outcome = errno; /* the child ends with us */
    if (order->outcome != 0) _exit(0);
    order->outcome = DONE;
    keep(code, code + 2 * page, stack, stack + 2 * STACK, page);
    return 0;
}
#endif

/* The keeper is made here, and not by us: the kernel registers nothing (restartable sequences) for
   a process that shares memory, so nothing for its copy, and so never writes where none is left. */
static int between(void *argument) {
    Order *order = argument;
    if (!order->kept) {
        if (started(order) > 0) order->outcome = DONE;
        _exit(0);
    }
    pid_t pid = -1;
    errno = ENOSYS;
#ifdef KEEPER
    pid = clone(keeper, order->stacks + 2 * STACK, CLONE_PARENT, order);
#endif
    if (pid > 0) {
        order->keeper = pid;
    } else {
        order->outcome = errno;
    }
    _exit(0);
}

/* ---- in this process -------------------------------------------------------------------- */

static void reap(pid_t pid) {
    while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR) continue;
}

/* Until the keeper says how it went: it is no vfork, so it does not hold us up by itself. */
static void hear_of(pid_t pid, Order *order) {
    const struct timespec pause = {0, 2000000};
    for (int waited = 0; order->outcome == 0 && waited < PATIENCE_MS; waited += 2) {
        if (waitpid(pid, NULL, __WCLONE | WNOHANG) != 0) {
            if (order->outcome == 0) order->outcome = ECHILD; /* somebody killed it */
            return;
        }
        nanosleep(&pause, NULL);
    }
    if (order->outcome == DONE) return;
    if (order->outcome == 0) {
        kill(pid, SIGKILL);
        order->outcome = ETIMEDOUT;
    }
    reap(pid);
}

static void detach(Order *order) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = clone(between, order->stacks + 3 * STACK, CLONE_VM | CLONE_VFORK, order);
    if (pid > 0) {
        reap(pid);
    } else {
        order->outcome = errno;
    }
    if (order->keeper) hear_of(order->keeper, order);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* The words of a list of bytes, ended by NULL; they are the list's. */
static char **words(PyObject *list) {
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "a list of bytes is wanted");
        return NULL;
    }
    Py_ssize_t length = PyList_GET_SIZE(list);
    char **found = PyMem_Calloc((size_t)length + 1, sizeof *found);
    if (!found) return (char **)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < length; i++)
        if (PyBytes_AsStringAndSize(PyList_GET_ITEM(list, i), &found[i], NULL) < 0) {
            PyMem_Free(found);
            return NULL;
        }
    return found;
}

static PyObject *start(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *argv, *envp, *result = NULL;
    int out, err, kept;
    if (!PyArg_ParseTuple(args, "OOiip:start", &argv, &envp, &out, &err, &kept)) return NULL;
    char **arguments = words(argv), **variables = arguments ? words(envp) : NULL;
    if (!variables) goto done;
    if (!arguments[0]) {
        PyErr_SetString(PyExc_ValueError, "no program is named");
        goto done;
    }
    Order *order = mmap(NULL, sizeof *order, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                        -1, 0);
    char *stacks = mmap(NULL, 3 * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (order == MAP_FAILED || stacks == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
    } else {
        *order = (Order){arguments[0], arguments, variables, out, err, kept,
                         .page = (uintptr_t)sysconf(_SC_PAGESIZE), .stacks = stacks};
        Py_BEGIN_ALLOW_THREADS
        detach(order);
        Py_END_ALLOW_THREADS
        if (order->outcome == DONE) {
            result = PyLong_FromLong(order->keeper);
        } else {
            errno = order->outcome;
            PyErr_SetFromErrno(PyExc_OSError);
        }
    }
    if (order != MAP_FAILED) munmap(order, sizeof *order);
    if (stacks != MAP_FAILED) munmap(stacks, 3 * STACK);
done:
    PyMem_Free(arguments);
    PyMem_Free(variables);
    return result;
}

static PyObject *adopts(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    int subreaper = 0;
    if (getpid() != 1) prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
    return PyBool_FromLong(getpid() == 1 || subreaper);
}

#endif

static PyMethodDef functions[] = {
#ifdef __linux__
    {"start", start, METH_VARARGS,
     "start(argv, envp, out, err, kept) -> pid of the keeper, or 0. Lists of bytes, descriptors.\n"
     "Raises OSError where the program cannot be started."},
    {"adopts", adopts, METH_NOARGS,
     "adopts() -> whether orphans among its descendants become children of this process."},
#endif
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *self) {
    return PyModule_AddIntConstant(self, "SOURCE", DISTTRACE_SOURCE);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "disttrace.lifecycle._detached",
    .m_doc = "Processes that the program does not see.",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__detached(void) { return PyModuleDef_Init(&module); }
