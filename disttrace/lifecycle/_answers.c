/* The handlers that have a thread write its own stack, and a thread that runs without Python.

Stacks are written by the handler of `faulthandler`, in C and without the GIL. It is never the one
that the kernel knows: it stands for one number in `faulthandler`'s table, and is called from ours,
which look first that this is the process that set them, and that the descriptor is the journal's
still: a program may have closed it, and opened a file of its own under that number.

Two signals come here. SIGTERM, where the program has no handler: after it the process ends as it
would have. And a real-time signal by which a thread is asked that keeps Python from running. No
program must ever get that one because of us, so nobody sends it from outside. The thread below is
asked, by a signal that it alone can get: it is directed at it, and it waits for it with everything
blocked, so that no handler is called, whosever there is. Then it sets the handler, if the signal
still has none, sends it to the thread in question, and takes the handler away after the answer.
Both signals carry a value; whatever comes without one means what it means without us.

The same thread has the journal's files written to the disk: that may take long, and nobody waits. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifndef __linux__
PyMODINIT_FUNC PyInit__answers(void) {
    PyErr_SetString(PyExc_ImportError, "signals of threads are Linux's");
    return NULL;
}
#else

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STACK = 256 << 10, FILES = 2, PATIENCE_MS = 200 };
/* In the upper half of a signal's value; a thread's number is in the lower one. "ASK" is sent by the
   companion, see gil_holders.py. */
enum { ASK = 0x61736b21, SHOW, SHOWN, SYNC, QUIT };

typedef struct {
    int fd;
    dev_t device;
    ino_t inode;
} File;

static volatile pid_t owner;      /* the process that may write stacks; 0: none */
static void (*writer)(int);       /* faulthandler's handler */
static int asked_by;              /* the number that it knows, and threads are asked by */
static File journal;              /* where it writes */
static File to_sync[FILES];       /* set while nothing is being synced */
static atomic_int syncing;
static atomic_int thread;         /* its number; 0: there is none */
static atomic_int waiting;        /* for a thread that was asked and has not answered */
static atomic_int begun;          /* it has run */
static pthread_t handle;
static int joinable;

static int is_still(const File *file) {
    struct stat now;
    return fstat(file->fd, &now) == 0 && now.st_dev == file->device && now.st_ino == file->inode;
}

static int identify(File *file, int fd) {
    struct stat now;
    if (fstat(fd, &now) != 0) return 0;
    *file = (File){fd, now.st_dev, now.st_ino};
    return 1;
}

static int is_default(int number) {
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
           now.sa_handler == SIG_DFL;
}

static int is_handler(int number, void (*ours)(int, siginfo_t *, void *)) {
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && now.sa_flags & SA_SIGINFO &&
           now.sa_sigaction == ours;
}

static void set_default(int number) {
    struct sigaction standard = {.sa_handler = SIG_DFL};
    sigaction(number, &standard, NULL);
}

/* Set the handler where there is none. Whether it is there now. */
static int set_handler(int number, void (*ours)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART}, was;
    action.sa_sigaction = ours;
    if (!is_default(number) || sigaction(number, &action, &was) != 0) return 0;
    if (!(was.sa_flags & SA_SIGINFO) && was.sa_handler == SIG_DFL) return 1;
    sigaction(number, &was, NULL); /* somebody was faster */
    return 0;
}

/* Send a signal with a value to one thread of this process. Whether it was sent. */
static int tell(pid_t to, int number, uint32_t what, uint32_t about) {
    siginfo_t info;
    memset(&info, 0, sizeof info);
    info.si_signo = number;
    info.si_code = SI_QUEUE;
    info.si_pid = getpid();
    info.si_uid = getuid();
    info.si_value.sival_ptr = (void *)(uintptr_t)((uint64_t)what << 32 | about);
    return syscall(SYS_rt_tgsigqueueinfo, getpid(), to, number, &info) == 0;
}

static uint32_t what(const siginfo_t *info) {
    return info->si_code == SI_QUEUE ? (uint32_t)((uintptr_t)info->si_value.sival_ptr >> 32) : 0;
}

/* ---- the handlers --------------------------------------------------------------------------- */

static void write_stack(void) {
    if (owner == getpid() && is_still(&journal) && Py_IsInitialized()) writer(asked_by);
}

/* What the signal does to a process without a handler, as soon as we return. */
static void by_default(int number, siginfo_t *info) {
    set_default(number);
    if (syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), number, info) != 0)
        raise(number);
}

static void on_term(int number, siginfo_t *info, void *Py_UNUSED(context)) {
    int saved = errno;
    write_stack();
    by_default(number, info);
    errno = saved;
}

static void on_asked(int number, siginfo_t *info, void *Py_UNUSED(context)) {
    int saved = errno;
    if (what(info) == SHOW && info->si_pid == getpid()) {
        write_stack();
        tell(atomic_load(&thread), number, SHOWN, 0);
    } else {
        by_default(number, info);
    }
    errno = saved;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void ask(pid_t about) {
    if (atomic_load(&waiting) || !set_handler(asked_by, on_asked)) return;
    atomic_store(&waiting, 1);
    if (tell(about, asked_by, SHOW, 0)) return; /* the handler stays until it has answered */
    set_default(asked_by);
    atomic_store(&waiting, 0);
}

static void answered(void) {
    if (is_handler(asked_by, on_asked)) set_default(asked_by);
    atomic_store(&waiting, 0);
}

static void sync_files(void) {
    for (int i = 0; i < FILES; i++)
        if (to_sync[i].fd >= 0 && is_still(&to_sync[i])) fdatasync(to_sync[i].fd);
    atomic_store(&syncing, 0);
}

static void *run(void *Py_UNUSED(argument)) {
    int number = asked_by;
    sigset_t only;
    siginfo_t info;
    sigemptyset(&only);
    sigaddset(&only, number);
    prctl(PR_SET_NAME, "disttrace-ask");
    pid_t self = (pid_t)syscall(SYS_gettid);
    atomic_store(&thread, self);
    atomic_store(&begun, 1);
    for (;;) {
        if (sigwaitinfo(&only, &info) < 0) continue;
        uint32_t is = what(&info);
        if (is == ASK) ask((pid_t)(uint32_t)(uintptr_t)info.si_value.sival_ptr);
        else if (is == SHOWN) answered();
        else if (is == SYNC) sync_files();
        else if (is == QUIT) break;
        else if (info.si_code != SI_TKILL) {
            /* Meant for the process, which has come to use it: give it back, and leave it alone. */
            if (syscall(SYS_rt_sigqueueinfo, getpid(), number, &info) != 0) kill(getpid(), number);
            break;
        }
    }
    atomic_compare_exchange_strong(&thread, &self, 0);
    return NULL;
}

/* ---- the module ------------------------------------------------------------------------------ */

static PyObject *take(PyObject *Py_UNUSED(self), PyObject *args) {
    int number, fd;
    struct sigaction theirs;
    if (!PyArg_ParseTuple(args, "ii", &number, &fd)) return NULL;
    owner = 0;
    if (sigaction(number, NULL, &theirs) != 0 || !identify(&journal, fd))
        return PyErr_SetFromErrno(PyExc_OSError);
    if (theirs.sa_flags & SA_SIGINFO || theirs.sa_handler == SIG_DFL ||
        theirs.sa_handler == SIG_IGN) {
        PyErr_SetString(PyExc_OSError, "faulthandler has no handler there");
        return NULL;
    }
    set_default(number);
    writer = theirs.sa_handler;
    asked_by = number;
    owner = getpid();
    Py_RETURN_NONE;
}

static PyObject *leave(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    owner = 0;
    if (is_handler(SIGTERM, on_term)) set_default(SIGTERM);
    Py_RETURN_NONE;
}

static PyObject *handle_term(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    return PyBool_FromLong(is_handler(SIGTERM, on_term) || set_handler(SIGTERM, on_term));
}

static PyObject *is_free(PyObject *Py_UNUSED(self), PyObject *number) {
    int value = (int)PyLong_AsLong(number);
    if (PyErr_Occurred()) return NULL;
    return PyBool_FromLong(is_default(value) || is_handler(value, on_asked));
}

static PyObject *start(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    sigset_t all, was;
    pthread_attr_t attributes;
    sigfillset(&all);
    if (pthread_attr_init(&attributes) != 0) return PyLong_FromLong(0);
    pthread_attr_setstacksize(&attributes, STACK);
    atomic_store(&begun, 0);
    atomic_store(&thread, 0);
    if (!is_handler(asked_by, on_asked)) atomic_store(&waiting, 0);
    pthread_sigmask(SIG_SETMASK, &all, &was); /* it is born with everything blocked */
    int failed = pthread_create(&handle, &attributes, run, NULL);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    pthread_attr_destroy(&attributes);
    joinable = !failed;
    if (failed) return PyLong_FromLong(0);
    Py_BEGIN_ALLOW_THREADS
    while (atomic_load(&begun) == 0) nanosleep(&(struct timespec){0, 20000}, NULL);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(atomic_load(&thread));
}

static PyObject *stop(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    struct timespec until;
    int number = atomic_exchange(&thread, 0);
    if (owner != getpid()) { /* a fork left it behind */
        joinable = 0;
        atomic_store(&syncing, 0);
    }
    if (!joinable) Py_RETURN_NONE;
    joinable = 0;
    if (number != 0) tell(number, asked_by, QUIT, 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PATIENCE_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    Py_BEGIN_ALLOW_THREADS
    if (pthread_timedjoin_np(handle, NULL, &until) != 0) pthread_detach(handle);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *runs(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromLong(owner == getpid() ? atomic_load(&thread) : 0);
}

static PyObject *sync_both(PyObject *Py_UNUSED(self), PyObject *args) {
    int fds[FILES];
    if (!PyArg_ParseTuple(args, "ii", &fds[0], &fds[1])) return NULL;
    int to = owner == getpid() ? atomic_load(&thread) : 0;
    if (to == 0 || atomic_exchange(&syncing, 1)) Py_RETURN_FALSE;
    for (int i = 0; i < FILES; i++)
        if (!identify(&to_sync[i], fds[i])) to_sync[i].fd = -1;
    if (tell(to, asked_by, SYNC, 0)) Py_RETURN_TRUE;
    atomic_store(&syncing, 0);
    Py_RETURN_FALSE;
}

static PyMethodDef methods[] = {
    {"take", take, METH_VARARGS,
     "Let stacks go to this descriptor, by what faulthandler has registered for this number."},
    {"leave", leave, METH_NOARGS, "Write no stack any more."},
    {"handle_term", handle_term, METH_NOARGS,
     "Have SIGTERM write a stack first; whether it does: nobody else handles it."},
    {"is_free", is_free, METH_O, "Whether nobody but us handles the signal."},
    {"start", start, METH_NOARGS, "Start the thread; its number, or 0."},
    {"stop", stop, METH_NOARGS, "End the thread; in a fifth of a second, or later."},
    {"runs", runs, METH_NOARGS, "The thread's number; 0: there is none, or none any more."},
    {"sync", sync_both, METH_VARARGS,
     "Have two files written to the disk; False where there is no thread, or it is at it still."},
    {NULL},
};

static int module_exec(PyObject *self) {
    if (PyModule_AddIntConstant(self, "ASK", ASK) < 0) return -1;
    return PyModule_AddIntConstant(self, "SOURCE", DISTTRACE_SOURCE);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "disttrace.lifecycle._answers",
    .m_doc = "Stacks of threads that keep Python from running; see gil_free_stacks.py.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__answers(void) { return PyModuleDef_Init(&module); }
#endif
