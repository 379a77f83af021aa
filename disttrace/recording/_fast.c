/* The native core: what core.py's PlainCore and capture/wrapping/hot_path.py do, for every call.

It finds what is called and from where, writes the records of begin, issue, wait and end into the
journal's window, and calls torch's original. Whatever is rare (a call not seen before, an
exception, work of a device, a window that is full) is left to the same Python functions that the
plain core uses, and what need not be fast is Python's too (core.py adds it to the types below). The
plain core is the reference: both write the same bytes, and a test compares them.

Only documented C API is used (PEP 523's for the numbers of code objects, which has a name without
an underscore since 3.12), and nothing of torch: a tensor's shape is an attribute as any other.
All of this runs under the GIL. Between two calls into Python no other thread and no signal handler
can come, which is why there is no lock in this file.

Longer than the other files of this project: its types refer to each other, so it is one object. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <structmember.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if PY_VERSION_HEX < 0x030b0000 /* 3.10 has the number, and no function for it */
#define PyFrame_GetLasti(frame) ((frame)->f_lasti)
#endif
#if PY_VERSION_HEX < 0x030c0000 /* the names before they were documented (PEP 523) */
#define PyUnstable_Eval_RequestCodeExtraIndex _PyEval_RequestCodeExtraIndex
#define PyUnstable_Code_GetExtra _PyCode_GetExtra
#define PyUnstable_Code_SetExtra _PyCode_SetExtra
#endif

enum {
    WAITED = 16,     /* as in operation.py */
    DEEPEST = 100,   /* frames to the first that is not torch's, as in call_site.py */
    FURTHEST = 64,   /* frames from there to the program's own, as there */
    KEY_WORDS = 400, /* what a key may have; longer ones are read in Python each time */
    TABLE = 20000,   /* calls, as in call_table.py */
    ROWS = 1 << 15,  /* of the table: more than calls, a power of two */
    LINE = 512,      /* bytes of a line but a begin's, of which half may be further keys */
};

/* ---- module state ----------------------------------------------------------------------- */

enum { WINDOW, CALL, THREAD, OPERATION, CORE, OPTION, METHOD, TYPES };

/* How code objects are numbered. There is one for an interpreter, however often this module is
   imported anew: only 255 may ask for an index, and the next module finds the last one's numbers. */
typedef struct {
    Py_ssize_t index; /* where a code object keeps its number */
    uintptr_t last;   /* the highest of them, without OWNER */
} Numbers;

typedef struct {
    PyTypeObject *types[TYPES];
    Numbers *numbers;
    PyObject *numbers_owner;
} State;

/* The one of the types above that `type` is, or that Python has made it from. */
static PyTypeObject *own_type(PyTypeObject *type) {
    while (type->tp_base != &PyBaseObject_Type) type = type->tp_base;
    return type;
}

/* Objects among the members of a type are those that it holds. */
static int object_traverse(PyObject *self, visitproc visit, void *arg) {
    const PyMemberDef *member = own_type(Py_TYPE(self))->tp_members;
    Py_VISIT(Py_TYPE(self));
    for (; member->name != NULL; member++)
        if (member->type == T_OBJECT) Py_VISIT(*(PyObject **)((char *)self + member->offset));
    return 0;
}

/* No type but Core has it as its tp_clear: every cycle passes the core or an object of Python. */
static int object_clear(PyObject *self) {
    const PyMemberDef *member = own_type(Py_TYPE(self))->tp_members;
    for (; member->name != NULL; member++)
        if (member->type == T_OBJECT) Py_CLEAR(*(PyObject **)((char *)self + member->offset));
    return 0;
}

static void object_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (PyType_IS_GC(type)) PyObject_GC_UnTrack(self);
    object_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Whether Python has set this to something. */
static int given(PyObject *value) { return value != NULL && value != Py_None; }

/* ---- lines ------------------------------------------------------------------------------ */

/* The records as journal/format.py gives them are cut into pieces. A number follows each piece but
   the last of a record, and before that come further keys. */
enum { BEGIN, BEGIN_UNCOUNTED, ISSUED, WAIT, END, END_SYNCHRONOUS, LOST, COMPLETE, OVER };
enum { PIECES = 29 };
static const int FIRST[] = {0, 5, 9, 12, 15, 18, 22, 25, PIECES}; /* piece of each record */

typedef struct {
    const char *start;
    Py_ssize_t length;
} Text;

static const Text NOTHING = {"", 0};

/* Nothing, where these are no bytes. */
static Text text_of(PyObject *bytes) {
    if (bytes == NULL || !PyBytes_Check(bytes)) return NOTHING;
    return (Text){PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes)};
}

static char *put_text(char *out, Text text) {
    memcpy(out, text.start, text.length);
    return out + text.length;
}

static char *put_number(char *out, int64_t number) {
    char digits[20], *end = digits + sizeof digits, *first = end;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    if (number < 0) *out++ = '-';
    for (; rest >= 10; rest /= 100) { /* two at a time: a small number is divided faster */
        unsigned pair = (unsigned)(rest % 100);
        *--first = (char)('0' + pair % 10);
        *--first = (char)('0' + pair / 10);
    }
    if (rest > 0 || first == end) *--first = (char)('0' + rest);
    return put_text(out, (Text){first, end - first});
}

/* Write a record with `count` texts of further keys. Returns its length. */
static Py_ssize_t write_record(const Text *pieces, int kind, char *line, const int64_t *numbers,
                               const Text *further, int count) {
    int last = FIRST[kind + 1] - 1;
    char *out = line;
    for (int i = FIRST[kind]; i < last; i++) out = put_number(put_text(out, pieces[i]), *numbers++);
    for (int i = 0; i < count; i++) out = put_text(out, further[i]);
    return put_text(out, pieces[last]) - line;
}

/* ---- Window: the reserved part of a segment that lines are copied into -------------------- */

typedef struct {
    PyObject_HEAD
    Py_buffer buffer; /* keeps the mapping mapped */
    Py_ssize_t position, end;
} Window;

static PyObject *window_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    Window *self = (Window *)type->tp_alloc(type, 0);
    if (self == NULL || !PyArg_ParseTuple(args, "w*n", &self->buffer, &self->position)) {
        Py_XDECREF(self);
        return NULL;
    }
    self->end = self->buffer.len;
    if (self->position >= 0 && self->position <= self->end) return (PyObject *)self;
    Py_DECREF(self);
    PyErr_SetString(PyExc_ValueError, "the position lies outside of the mapping");
    return NULL;
}

/* Whether there was room. */
static int window_put(Window *self, const char *line, Py_ssize_t length) {
    if (length > self->end - self->position) return 0;
    memcpy((char *)self->buffer.buf + self->position, line, length);
    self->position += length;
    return 1;
}

static PyObject *window_put_method(PyObject *self, PyObject *line) {
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(line, &text, &length) < 0) return NULL;
    if (window_put((Window *)self, text, length)) Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "the window is full");
    return NULL;
}

static PyObject *window_tell(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromSsize_t(((Window *)self)->position);
}

static PyObject *window_seal(PyObject *op, PyObject *Py_UNUSED(ignored)) {
    Window *self = (Window *)op;
    self->end = self->position; /* nothing is put where the mapping was */
    PyBuffer_Release(&self->buffer);
    return window_tell(op, NULL);
}

static void window_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyBuffer_Release(&((Window *)self)->buffer);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef window_methods[] = {
    {"put", window_put_method, METH_O, "Append one line. Raises ValueError where it has no room."},
    {"tell", window_tell, METH_NOARGS, "Where the next line goes."},
    {"seal", window_seal, METH_NOARGS, "Let no further line in; where the content ends."},
    {"close", window_seal, METH_NOARGS, "Let go of the mapping, as `seal` does already."},
    {NULL},
};

/* ---- Call: as in operation.py; a counter is made from it too, which counts in `n` ----------- */

typedef struct {
    PyObject_HEAD
    int64_t n;
    PyObject *counter; /* None: its operations are counted in no sequence */
    PyObject *page;    /* of a counter: the Window that says what was called, see newest_calls.py */
    uint64_t what, where; /* of a call, as that page says it */
    char synchronous, device_ends, whole, asks;
} Call;

static PyMemberDef call_members[] = {
    {"n", T_LONGLONG, offsetof(Call, n), 0, NULL},
    {"counter", T_OBJECT, offsetof(Call, counter), 0, NULL},
    {"page", T_OBJECT, offsetof(Call, page), 0, NULL},
    {"what", T_ULONGLONG, offsetof(Call, what), 0, NULL},
    {"where", T_ULONGLONG, offsetof(Call, where), 0, NULL},
    {"synchronous", T_BOOL, offsetof(Call, synchronous), 0, NULL},
    {"device_ends", T_BOOL, offsetof(Call, device_ends), 0, NULL},
    {"whole", T_BOOL, offsetof(Call, whole), 0, NULL},
    {"asks", T_BOOL, offsetof(Call, asks), 0, NULL},
    {NULL},
};

/* Where a page of newest_calls.py keeps what, in words. */
enum { KEPT = 512, NEWEST = 0, PLACES = KEPT, DIGESTS = 2 * KEPT, PAGE_WORDS = 3 * KEPT };

/* The stream of `counter` goes on with `call`, for other processes to read. */
static void show_course(State *state, const Call *counter, const Call *call) {
    if (counter->page == NULL || !Py_IS_TYPE(counter->page, state->types[WINDOW])) return;
    const Py_buffer *shown = &((Window *)counter->page)->buffer;
    if (shown->buf == NULL || shown->len < PAGE_WORDS * (Py_ssize_t)sizeof(uint64_t)) return;
    uint64_t *page = shown->buf, number = (uint64_t)counter->n, at = number % KEPT;
    page[PLACES + at] = call->where;
    page[DIGESTS + at] = page[DIGESTS + (number - 1) % KEPT] * 0x9e3779b97f4a7c15u + call->what;
    atomic_store_explicit((_Atomic uint64_t *)&page[NEWEST], number, memory_order_release);
}

/* ---- Thread: as in operation.py ------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *batches, *tail;
    PyObject *waited;  /* operations whose own call waits for them, innermost last */
    PyObject *parents; /* numbers of composed operations around the current point */
    int64_t number;
    char inside; /* in a recorded call: what it calls in turn is part of it */
} Thread;

static PyMemberDef thread_members[] = {
    {"batches", T_OBJECT, offsetof(Thread, batches), 0, NULL},
    {"tail", T_OBJECT, offsetof(Thread, tail), 0, NULL},
    {"waited", T_OBJECT, offsetof(Thread, waited), 0, NULL},
    {"parents", T_OBJECT, offsetof(Thread, parents), 0, NULL},
    {"number", T_LONGLONG, offsetof(Thread, number), 0, NULL},
    {"inside", T_BOOL, offsetof(Thread, inside), 0, NULL},
    {NULL},
};

/* ---- Core's fields ------------------------------------------------------------------------ */

typedef struct Link {
    struct Link *older, *newer;
} Link;

typedef struct {
    uint64_t hash;
    uint64_t *words; /* NULL: nothing here */
    int count;
    Call *call;
} Row;

typedef struct {
    PyObject_HEAD
    State *state;
    char off;  /* everything passes */
    char idle; /* the background thread was not woken since its last look */
    int64_t t0, last_number, begun; /* of the latter those that are none of a store */
    PyObject *all_pieces; /* a tuple of bytes, which keeps what is pointed to: */
    Text pieces[PIECES];
    Py_ssize_t bound; /* of the bytes of a record without further keys */
    PyObject *put, *recover, *clock, *ambient, *wake, *dropped; /* set by Python */
    PyObject *enqueued; /* told of what is issued on a device, set by Python */
    PyObject *is_ours;      /* whether an exception is our failure, set by Python */
    PyObject *take_off;     /* takes our frames off an exception that is not, set by Python */
    PyObject *works, *open; /* operations by id() of their Work: all, and those not complete */
    PyObject *results;      /* operations of functional operators by the storage of their result */
    PyObject *modes;        /* how many dispatch modes there are, as torch says it, set by Python */
    PyObject *deferring;    /* torch's class of tensors that wait when they are used, set by Python */
    int64_t groups;         /* how many have been made: names of groups are used again */
    Link flight;            /* the ring of operations in flight, each of which has a reference */
    struct Operation *fallen, **last_fallen; /* whose Work is gone, and Python has to see to it */
    PyObject *threads;      /* as in operation.py */
    uint64_t thread_id;     /* of the thread that came last */
    Thread *thread;
    /* Places: frames of a stack, and what says whose a code object is. */
    int depth;
    PyObject *whose;
    uintptr_t first_code; /* lower numbers were given under another `whose` */
    Row *rows;            /* calls by key */
    int row_count;
    /* How arguments are read: {type: attributes that tell calls apart, each an Option or a name;
       None where the hash does, True where the object never changes, too}. */
    PyObject *kinds, *tensor;
    PyObject *of_tensors; /* see hot_path.py */
    PyObject *overridden, *tensor_key; /* see hot_path.py */
    PyObject *plain; /* what characters of a store's key are: 0 look closer, 1 plain, 2 of a run */
} Core;

/* What stands in the place of an attribute of torch's classes: the head of Option and Method. */
typedef struct {
    PyObject_HEAD
    Core *core;
    PyObject *name, *original, *doc;
} Wrapper;

/* What time.perf_counter_ns reads, or a test's clock. */
static int64_t now(Core *core) {
    if (core->clock != NULL) {
        PyObject *told = PyObject_CallNoArgs(core->clock);
        int64_t value = told ? PyLong_AsLongLong(told) : 0;
        Py_XDECREF(told);
        PyErr_Clear();
        return value;
    }
    struct timespec time;
#ifdef __APPLE__
    clock_gettime(CLOCK_UPTIME_RAW, &time);
#else
    clock_gettime(CLOCK_MONOTONIC, &time);
#endif
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* The exception that is set, taken over and with its traceback attached; never NULL. */
static PyObject *take_error(void) {
    PyObject *type, *error, *traceback;
    if (!PyErr_Occurred()) PyErr_NoMemory(); /* there is a function that fails and does not say it */
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) PyException_SetTraceback(error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
}

/* Set it again, as it was. */
static void set_error(PyObject *error) {
    PyObject *traceback = PyException_GetTraceback(error);
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, traceback);
}

/* Let go of what a call returned, which was all that was wanted. */
static int success(PyObject *result) {
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* Put a line that is complete. -1 with an exception only where `recover` raises one. */
static int put_line(Core *core, const char *line, Py_ssize_t length) {
    if (core->put == NULL) return 0; /* the collector took the core apart */
    /* A window's own method is not called, but passed by. */
    if (PyCFunction_Check(core->put) && PyCFunction_GET_FUNCTION(core->put) == window_put_method &&
        window_put((Window *)PyCFunction_GET_SELF(core->put), line, length))
        return 0;
    PyObject *bytes = PyBytes_FromStringAndSize(line, length);
    if (bytes == NULL) return -1;
    PyObject *put = Py_NewRef(core->put);
    PyObject *done = PyObject_CallOneArg(put, bytes);
    Py_DECREF(put);
    if (done == NULL &&
        (PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_OSError))) {
        PyObject *error = take_error();
        done = PyObject_CallFunctionObjArgs(core->recover, error, bytes, NULL);
        Py_DECREF(error);
    }
    Py_DECREF(bytes);
    return success(done);
}

/* ---- Operation: what Python alone needs of one is in its dictionary ------------------------- */

typedef struct Operation {
    PyObject_VAR_HEAD /* as many items as its begin record may have bytes */
    vectorcallfunc vectorcall;
    Core *core;
    Call *call;
    int64_t n, begin, seq, issued;
    Link link;           /* among those in flight */
    uintptr_t work;      /* address of its Work, while somebody holds that */
    PyObject *reference; /* weak, to that Work, while its end is expected from there */
    PyObject *tensors;   /* storages that hold the result, where C++ issued it */
    PyObject *dict;      /* NULL: it is an operation as most of them */
    struct Operation *fallen; /* the next one whose Work is gone */
    char ended;
    char line[]; /* its begin record, and NUL */
} Operation;

static PyMemberDef operation_members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(Operation, dict), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Operation, vectorcall), READONLY, NULL},
    {"__dict__", T_OBJECT, offsetof(Operation, dict), READONLY, NULL},
    {"core", T_OBJECT, offsetof(Operation, core), READONLY, NULL},
    {"call", T_OBJECT, offsetof(Operation, call), READONLY, NULL},
    {"n", T_LONGLONG, offsetof(Operation, n), READONLY, NULL},
    {"begin", T_LONGLONG, offsetof(Operation, begin), READONLY, NULL},
    {"seq", T_LONGLONG, offsetof(Operation, seq), READONLY, NULL},
    {"issued", T_LONGLONG, offsetof(Operation, issued), 0, NULL},
    {"work", T_ULONGLONG, offsetof(Operation, work), 0, NULL},
    {"reference", T_OBJECT, offsetof(Operation, reference), 0, NULL},
    {"tensors", T_OBJECT, offsetof(Operation, tensors), 0, NULL},
    {"ended", T_BOOL, offsetof(Operation, ended), READONLY, NULL},
    {"line", T_STRING_INPLACE, offsetof(Operation, line), READONLY, NULL},
    {NULL},
};

/* From here on new segments do not repeat its begin. */
static void operation_over(Operation *self) {
    if (self->ended) return;
    self->ended = 1;
    self->link.older->newer = self->link.newer;
    self->link.newer->older = self->link.older;
    Py_DECREF(self);
}

/* The first of the operations whose Work is gone (a new reference), taken out; NULL: none. */
static Operation *take_fallen(Core *core) {
    Operation *first = core->fallen;
    if (first == NULL) return NULL;
    core->fallen = first->fallen;
    first->fallen = NULL;
    if (core->fallen == NULL) core->last_fallen = &core->fallen;
    return first;
}

/* Have Python see to them, here where what it raises (a signal handler in its midst does) can
   leave. -1 with an exception. */
static int notice_dropped(Core *core) {
    return success(PyObject_CallMethod((PyObject *)core, "notice_dropped", NULL));
}

/* ---- threads of a core -------------------------------------------------------------------- */

/* The calling thread's state (borrowed), which `threads` makes at its first use. */
static Thread *current_thread(Core *core) {
    uint64_t id = PyThreadState_GetID(PyThreadState_Get());
    if (core->thread_id == id) return core->thread;
    PyObject *all = core->threads ? core->threads : Py_None; /* or the collector took it */
    PyObject *state = PyObject_GetAttrString(all, "state");
    if (state != NULL && !PyObject_TypeCheck(state, core->state->types[THREAD])) {
        PyErr_SetString(PyExc_TypeError, "not a thread's state");
        Py_CLEAR(state);
    }
    if (state == NULL) return NULL;
    core->thread_id = 0; /* while another is let go of, whatever that runs */
    Py_XSETREF(core->thread, (Thread *)state);
    if (core->thread == (Thread *)state) core->thread_id = id;
    return (Thread *)state; /* which `threads` keeps */
}

/* The call of `operation` is about to wait for `work` itself. */
static int will_wait(Thread *thread, Operation *operation, PyObject *work) {
    if (thread->waited == NULL || PyList_Append(thread->waited, (PyObject *)operation) < 0)
        return -1;
    operation->work = (uintptr_t)work;
    if (PyList_GET_SIZE(thread->waited) <= WAITED) return 0;
    return PyList_SetSlice(thread->waited, 0, 1, NULL); /* an exception came before its wait */
}

/* Take the operation whose call waits for `work` (a new reference), if there is one. */
static Operation *waits_for(Thread *thread, PyObject *work) {
    Py_ssize_t i = thread->waited ? PyList_GET_SIZE(thread->waited) : 0;
    while (i-- > 0) {
        Operation *operation = (Operation *)PyList_GET_ITEM(thread->waited, i);
        if (operation->work != (uintptr_t)work) continue;
        Py_INCREF(operation);
        if (PyList_SetSlice(thread->waited, i, i + 1, NULL) < 0) {
            PyErr_Clear(); /* no memory: it stays in the list, and is not found again */
            operation->work = 0;
        }
        return operation;
    }
    return NULL;
}

/* What the thread begins is from now on a part of `parents`; see operation.py. */
static int retail(Thread *thread) {
    char text[80], *end = text;
    Py_ssize_t count = PyList_GET_SIZE(thread->parents);
    if (thread->number) end = put_number(put_text(end, (Text){",\"h\":", 5}), thread->number);
    if (count > 0) {
        int64_t parent = PyLong_AsLongLong(PyList_GET_ITEM(thread->parents, count - 1));
        end = put_number(put_text(end, (Text){",\"p\":", 5}), parent);
    }
    PyObject *tail = PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize(text, end - text);
    if (tail != NULL) Py_XSETREF(thread->tail, tail);
    return tail ? 0 : -1;
}

/* What the thread begins is a part of the composed operation from now on. */
static int step_in(Thread *thread, int64_t n) {
    PyObject *number = PyLong_FromLongLong(n);
    int done = number && thread->parents ? PyList_Append(thread->parents, number) : -1;
    Py_XDECREF(number);
    return done < 0 ? -1 : retail(thread);
}

/* And from now on it is not. */
static int step_out(Thread *thread, int64_t n) {
    Py_ssize_t count = thread->parents ? PyList_GET_SIZE(thread->parents) : 0;
    for (Py_ssize_t i = count - 1; i >= 0; i--) {
        if (PyLong_AsLongLong(PyList_GET_ITEM(thread->parents, i)) != n) continue;
        return PyList_SetSlice(thread->parents, i, count, NULL) < 0 ? -1 : retail(thread);
    }
    return 0;
}

/* ---- places: code objects and offsets down to the end of the recorded stack ---------------- */

/* What the two lowest bits of a code object's number say: it is not torch's, it is the program's. */
enum { NOT_TORCHS = 1, PROGRAMS = 2, OWNER = NOT_TORCHS | PROGRAMS };

/* The number of a code object, which no other has or had; 0 with an exception. */
static uintptr_t code_number(Core *core, PyObject *code) {
    State *state = core->state;
    void *known = NULL;
    if (PyUnstable_Code_GetExtra(code, state->numbers->index, &known) < 0) return 0;
    if ((uintptr_t)known >= core->first_code) return (uintptr_t)known;
    PyObject *told = PyObject_CallOneArg(given(core->whose) ? core->whose : Py_None, code);
    long owner = told ? PyLong_AsLong(told) : -1;
    Py_XDECREF(told);
    if (owner < 0) return 0;
    uintptr_t number = (state->numbers->last += OWNER + 1) + ((uintptr_t)owner & OWNER);
    if (PyUnstable_Code_SetExtra(code, state->numbers->index, (void *)number) == 0) return number;
    if (!PyErr_Occurred()) PyErr_NoMemory(); /* it does not say so itself */
    return 0;
}

typedef struct {
    int count;
    uint64_t words[KEY_WORDS];
    char lengths[KEY_WORDS]; /* which of them are lengths */
} Key;

/* 0 where the key is full. */
static int push(Key *key, uint64_t word) {
    if (key->count == KEY_WORDS) return 0;
    key->lengths[key->count] = 0;
    key->words[key->count++] = word;
    return 1;
}

static int push_address(Key *key, const void *address) { return push(key, (uintptr_t)address); }

/* Append the place of `frame`. 1: done; 0: it does not fit; -1: an exception. */
static int push_place(Core *core, Key *key, PyFrameObject *frame) {
    int done = 1, left = -1;          /* frames of the stack to come; -1: it has not begun */
    uintptr_t found = core->depth <= 0; /* the program's own frame, or it is not looked for */
    Py_XINCREF(frame);
    for (int i = 0; done > 0 && frame != NULL && i < DEEPEST; i++) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame);
        uintptr_t number = code_number(core, code);
        Py_DECREF(code);
        if (left < 0 && number & NOT_TORCHS) {
            left = core->depth > 0 ? core->depth : 1;
            i = DEEPEST - FURTHEST;
        }
        if (number == 0)
            done = -1;
        else if (left != 0 || number & PROGRAMS) /* between the stack and that frame none counts */
            done = push(key, number) && push(key, (uint64_t)PyFrame_GetLasti(frame));
        found |= number & PROGRAMS;
        if (left > 0) left--;
        if (left == 0 && found) break;
        Py_SETREF(frame, PyFrame_GetBack(frame));
        if (frame == NULL && PyErr_Occurred()) done = -1; /* it has to be made */
    }
    Py_XDECREF(frame);
    return done;
}

/* ---- table: calls by key ------------------------------------------------------------------ */

static uint64_t key_hash(const Key *key) {
    uint64_t hash = (uint64_t)key->count;
    for (int i = 0; i < key->count; i++) {
        hash = (hash ^ key->words[i]) * 0x9e3779b97f4a7c15u;
        hash = hash << 27 | hash >> 37; /* the best bits of a product are its upper ones */
    }
    return hash ^ hash >> 32;
}

/* Make it the key of all calls that differ from its own in lengths alone. */
static void forget_lengths(Key *key) {
    key->words[0]++; /* an address, which is even: it is no call's own key */
    for (int i = 0; i < key->count; i++)
        if (key->lengths[i]) key->words[i] = 0;
}

/* The row of a key, or the empty one where it would stand. */
static Row *find_row(Core *core, const Key *key) {
    uint64_t hash = key_hash(key);
    for (uint64_t i = hash;; i++) {
        Row *row = &core->rows[i & (ROWS - 1)];
        if (row->words == NULL) row->hash = hash;
        if (row->words == NULL ||
            (row->hash == hash && row->count == key->count &&
             memcmp(row->words, key->words, key->count * sizeof *key->words) == 0))
            return row;
    }
}

static void forget_calls(Core *core) {
    for (int i = 0; core->row_count > 0 && i < ROWS; i++)
        if (core->rows[i].words != NULL) {
            core->row_count--;
            PyMem_Free(core->rows[i].words);
            core->rows[i].words = NULL;
            Py_CLEAR(core->rows[i].call);
        }
}

/* Remember the call. Without memory nothing is remembered, and nothing is lost by that. */
static void remember_call(Core *core, const Key *key, Call *call) {
    if (core->row_count >= TABLE) forget_calls(core);
    Row *row = find_row(core, key);
    if (row->words != NULL) return; /* a handler made the same call meanwhile */
    row->words = PyMem_Malloc(key->count * sizeof *key->words);
    if (row->words == NULL) return;
    memcpy(row->words, key->words, key->count * sizeof *key->words);
    row->count = key->count;
    row->call = (Call *)Py_NewRef(call);
    core->row_count++;
}

/* ---- keys of calls: what tells one call of a method from another ---------------------------- */

enum { NONE = 1, BOOL, INT, TEXT, LIST, TENSOR, OPTIONS, HASHED }; /* what follows in a key */

/* Append what tells `value` from another argument. 1: done; 0: it cannot be told, or does not fit;
   -1: an exception, as for NULL. A kind always comes before its words, so no two look alike. */
static int push_value(Core *core, Key *key, PyObject *value, int nested);
static int push_option(Core *core, Key *key, PyObject *options, PyObject *option);

/* What descriptor `i` says of a tensor: a search for its name would cost more than that. */
static PyObject *of_tensor(Core *core, PyObject *tensor, int i) {
    PyObject *one = given(core->of_tensors) ? PyTuple_GetItem(core->of_tensors, i) : NULL;
    descrgetfunc get = one ? Py_TYPE(one)->tp_descr_get : NULL;
    if (get != NULL) return get(one, tensor, (PyObject *)Py_TYPE(tensor));
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "it is not known how tensors are read");
    return NULL;
}

/* Whether a mode or a class of the program's would be asked for what is read of `tensor`. The builtin
   that knows is called as what it is in C: a call of it through Python costs five times as much. */
static int is_overridden(Core *core, PyObject *tensor) {
    PyObject *known = core->overridden;
    if (!given(known)) return 0;
    PyCFunction direct = PyCFunction_Check(known) && PyCFunction_GetFlags(known) == METH_O
                             ? PyCFunction_GetFunction(known)
                             : NULL;
    PyObject *answer = direct ? direct(PyCFunction_GetSelf(known), tensor)
                              : PyObject_CallFunctionObjArgs(known, tensor, NULL);
    int is = answer ? answer == Py_True : -1;
    Py_XDECREF(answer);
    return is;
}

static int push_tensor(Core *core, Key *key, PyObject *tensor) {
    int done = push(key, TENSOR), overridden = is_overridden(core, tensor);
    if (overridden) {
        PyObject *read =
            overridden > 0 ? PyObject_CallFunctionObjArgs(core->tensor_key, tensor, NULL) : NULL;
        done = read && done > 0 ? push_value(core, key, read, 1) : read ? done : -1;
        Py_XDECREF(read);
        return done;
    }
    for (int i = 0; done > 0 && i < 3; i++) {
        PyObject *read = of_tensor(core, tensor, i);
        /* A device is made anew on each reading, so it is asked only where it is not usual. */
        if (i == 2 && read && read != Py_True) Py_SETREF(read, of_tensor(core, tensor, 3));
        /* Of a dtype there is one object for ever. */
        done = i == 1 && read ? push_address(key, read) : push_value(core, key, read, 1);
        Py_XDECREF(read);
    }
    return done;
}

/* What `kinds` has for the type of `value`, borrowed. No metaclass's own hash is run for it. */
static PyObject *kind_of(Core *core, PyObject *value) {
    PyObject *type = (PyObject *)Py_TYPE(value);
    int plain = Py_TYPE(type)->tp_hash == PyType_Type.tp_hash;
    return core->kinds && plain ? PyDict_GetItemWithError(core->kinds, type) : NULL;
}

static int push_value(Core *core, Key *key, PyObject *value, int nested) {
    if (value == NULL) return -1;
    if (value == Py_None) return push(key, NONE);
    if (PyBool_Check(value)) return push(key, BOOL) && push(key, value == Py_True);
    if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow || !push(key, INT) || !push(key, (uint64_t)number)) return 0;
        key->lengths[key->count - 1] = nested > 0;
        return 1;
    }
    if (given(core->tensor) && PyObject_TypeCheck(value, (PyTypeObject *)core->tensor))
        return push_tensor(core, key, value);
    if (PyUnicode_CheckExact(value))
        return push(key, TEXT) && push(key, (uint64_t)PyObject_Hash(value));
    if (PyTuple_Check(value) || PyList_Check(value)) { /* a torch.Size is a tuple */
        Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
        int done = nested < 4 && push(key, LIST) && push(key, (uint64_t)count);
        for (Py_ssize_t i = 0; done > 0 && i < PySequence_Fast_GET_SIZE(value); i++) {
            PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(value, i));
            done = push_value(core, key, item, nested + 1);
            Py_DECREF(item);
        }
        return done;
    }
    PyObject *type = (PyObject *)Py_TYPE(value);
    PyObject *names = kind_of(core, value);
    if (names == NULL) return PyErr_Occurred() ? -1 : 0;
    if (PyTuple_Check(names)) {
        int done = push(key, OPTIONS) && push_address(key, type);
        for (Py_ssize_t i = 0; done > 0 && i < PyTuple_GET_SIZE(names); i++)
            done = push_option(core, key, value, PyTuple_GET_ITEM(names, i));
        return done;
    }
    Py_hash_t hash = PyObject_Hash(value);
    if (hash == -1 && PyErr_Occurred()) return -1;
    return push(key, HASHED) && push_address(key, type) && push(key, (uint64_t)hash);
}

/* ---- Option: an attribute of torch's options objects ------------------------------------------

torch's functions make such an object for each call and set its attributes. To read one back costs
as much as all the rest of a key, for C++ makes an object of it; so what is set is remembered until
the call that reads it. */

typedef struct {
    Wrapper of;        /* torch's property */
    PyObject *options; /* the object that it was set on last, unless that was read */
    PyObject *value;   /* what it was set to last */
    PyObject *made;    /* what torch takes for that; NULL: the same */
    Key key;           /* of that value; empty where the same object may change */
    char passed_by;    /* somebody has torch's own setter: nothing is remembered any more */
} Option;

static PyMemberDef option_members[] = {
    {"core", T_OBJECT, offsetof(Option, of.core), READONLY, NULL},
    {"__name__", T_OBJECT, offsetof(Option, of.name), READONLY, NULL},
    {"__wrapped__", T_OBJECT, offsetof(Option, of.original), READONLY, NULL},
    {"__doc__", T_OBJECT, offsetof(Option, of.doc), READONLY, NULL},
    {"options", T_OBJECT, offsetof(Option, options), READONLY, NULL},
    {"value", T_OBJECT, offsetof(Option, value), READONLY, NULL},
    {"made", T_OBJECT, offsetof(Option, made), READONLY, NULL},
    {NULL},
};

static int push_option(Core *core, Key *key, PyObject *options, PyObject *entry) {
    Option *self = Py_IS_TYPE(entry, core->state->types[OPTION]) ? (Option *)entry : NULL;
    int done = 1;
    if (self == NULL || self->options != options) {
        PyObject *attribute = PyObject_GetAttr(options, self ? self->of.name : entry);
        done = push_value(core, key, attribute, 1);
        Py_XDECREF(attribute);
        return done;
    }
    for (int i = 0; i < self->key.count; i++) done = done && push(key, self->key.words[i]);
    Py_CLEAR(self->options);
    return done;
}

/* torch would make a ReduceOp of a RedOpType by itself, but refuses that while it makes another:
   a call from the garbage collector, which may run meanwhile, would fail. */
static int option_set(PyObject *op, PyObject *options, PyObject *value) {
    Option *self = (Option *)op;
    Core *core = self->of.core;
    PyObject *original = self->of.original, *made = NULL;
    PyObject *kind = value ? kind_of(core, value) : NULL;
    Py_CLEAR(self->options);
    if (kind != NULL && PyType_Check(kind))
        made = value == self->value ? Py_XNewRef(self->made) : PyObject_CallOneArg(kind, value);
    PyErr_Clear(); /* then torch refuses it */
    int failed = Py_TYPE(original)->tp_descr_set(original, options, made ? made : value);
    if (failed || value == NULL || core->off || self->passed_by) {
        Py_XDECREF(made);
        return failed;
    }
    if (value != self->value) {
        Key key;
        int fixed = kind == Py_True || made != NULL;
        key.count = 0;
        if (!fixed || push_value(core, &key, value, 1) <= 0) key.count = 0;
        PyErr_Clear(); /* then it is read back */
        memcpy(self->key.words, key.words, key.count * sizeof *key.words);
        self->key.count = key.count;
        Py_XSETREF(self->value, Py_NewRef(value));
        Py_XSETREF(self->made, Py_XNewRef(made));
    }
    Py_XDECREF(made);
    if (self->key.count) self->options = Py_NewRef(options);
    return 0;
}

static PyObject *option_get(PyObject *op, PyObject *options, PyObject *type) {
    Option *self = (Option *)op;
    Py_CLEAR(self->options); /* what is returned may be changed in its place */
    if (options == NULL) return Py_NewRef(op);
    return Py_TYPE(self->of.original)->tp_descr_get(self->of.original, options, type);
}

/* In all else, and for what it is, torch's property. */
static PyObject *option_getattr(PyObject *op, PyObject *name) {
    Option *self = (Option *)op;
    PyObject *original = self->of.original;
    PyObject *found = NULL;
    if (PyUnicode_CompareWithASCIIString(name, "__class__") != 0) {
        found = PyObject_GenericGetAttr(op, name);
        if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
        PyErr_Clear();
    }
    if (PyUnicode_CompareWithASCIIString(name, "fset") == 0) {
        Py_CLEAR(self->options);
        self->passed_by = 1;
    }
    return PyObject_GetAttr(original, name);
}

static PyObject *option_repr(PyObject *op) { return PyObject_Repr(((Option *)op)->of.original); }

/* ---- records of operations ------------------------------------------------------------------ */

static PyObject *operation_vectorcall(PyObject *, PyObject *const *, size_t, PyObject *);

static Call *counter_of(Core *core, Call *call) {
    int counted = call->counter && PyObject_TypeCheck(call->counter, core->state->types[CALL]);
    return counted ? (Call *)call->counter : NULL;
}

/* Put the begin of one operation on record, with further keys in `details`. A new reference. */
static Operation *core_begin(Core *core, Thread *thread, Call *call, Text details) {
    PyTypeObject *type = core->state->types[OPERATION];
    if (core->fallen != NULL && notice_dropped(core) < 0) return NULL;
    PyObject *ambient = given(core->ambient) ? PyObject_CallNoArgs(core->ambient) : NULL;
    if (ambient == NULL && PyErr_Occurred()) return NULL;
    Text further[] = {text_of(thread->tail), details, text_of(ambient)};
    Py_ssize_t bound = core->bound + further[0].length + further[1].length + further[2].length;
    Operation *self = (Operation *)type->tp_alloc(type, bound);
    if (self != NULL) {
        Call *counter = counter_of(core, call);
        self->vectorcall = operation_vectorcall;
        self->core = (Core *)Py_NewRef(core);
        self->call = (Call *)Py_NewRef(call);
        self->n = ++core->last_number;
        core->begun += !call->asks;
        if (counter != NULL) self->seq = ++counter->n;
        if (counter != NULL) show_course(core->state, counter, call);
        self->begin = now(core);
        self->link = (Link){core->flight.older, &core->flight};
        core->flight.older = core->flight.older->newer = &self->link;
        Py_INCREF(self);
        int64_t numbers[] = {self->n, self->begin - core->t0, call->n, self->seq};
        int kind = counter ? BEGIN : BEGIN_UNCOUNTED;
        Py_ssize_t length = write_record(core->pieces, kind, self->line, numbers, further, 3);
        if (put_line(core, self->line, length) < 0) { /* nobody will end it */
            operation_over(self);
            Py_CLEAR(self);
        }
    }
    Py_XDECREF(ambient);
    return self;
}

/* Put a later record of the operation, to which the caller holds a reference. One that is OVER gets
   none: Python writes another. */
static int put_event(Core *core, int kind, Operation *operation, Text further) {
    if (kind >= END) operation_over(operation);
    if (kind == OVER) return 0;
    int64_t elapsed = now(core) - operation->begin;
    int64_t numbers[] = {operation->n, elapsed, operation->issued};
    char line[LINE];
    if (kind == ISSUED) operation->issued = elapsed;
    return put_line(core, line, write_record(core->pieces, kind, line, numbers, &further, 1));
}

/* `work` ends the operation, and is not seen complete yet; where a device ends it nobody asks. */
static int follow(Core *core, Operation *operation, PyObject *work) {
    if (core->fallen != NULL && notice_dropped(core) < 0) return -1; /* one may have its address */
    PyObject *key = PyLong_FromVoidPtr(work), *value = (PyObject *)operation;
    PyObject *reference = key ? PyWeakref_NewRef(work, value) : NULL;
    int asked = !operation->call->device_ends;
    int done = -1;
    if (reference != NULL) {
        Py_XSETREF(operation->reference, reference);
        operation->work = (uintptr_t)work;
        done = PyDict_SetItem(core->works, key, value);
        if (done == 0 && asked) done = PyDict_SetItem(core->open, key, value);
    }
    Py_XDECREF(key);
    if (done < 0) { /* nobody follows it */
        Py_CLEAR(operation->reference);
        operation->work = 0;
    }
    if (done < 0 || !asked || !core->idle || !given(core->wake)) return done;
    return success(PyObject_CallNoArgs(core->wake));
}

/* The operation that `work` ends (a new reference), if it is not over; NULL without an exception
   where there is none. */
static Operation *followed(Core *core, PyObject *work) {
    if (PyDict_GET_SIZE(core->works) == 0) return NULL;
    PyObject *key = PyLong_FromVoidPtr(work);
    PyObject *found = key ? PyDict_GetItemWithError(core->works, key) : NULL;
    Operation *operation = (Operation *)found;
    Py_XDECREF(key);
    if (found == NULL || !Py_IS_TYPE(found, core->state->types[OPERATION]) ||
        !given(operation->reference) || operation->work != (uintptr_t)work)
        return NULL;
    return (Operation *)Py_NewRef(operation);
}

/* Nothing more is expected of its Work. */
static int unfollow(Core *core, Operation *operation) {
    PyObject *key = PyLong_FromVoidPtr((void *)operation->work);
    PyObject *const tables[] = {core->works, core->open};
    int done = key ? 0 : -1;
    Py_CLEAR(operation->reference);
    for (int i = 0; done == 0 && i < 2; i++)
        if (PyDict_GetItemWithError(tables[i], key) == (PyObject *)operation)
            done = PyDict_DelItem(tables[i], key);
    Py_XDECREF(key);
    return done;
}

/* Put on record that nobody can wait for an operation any more, without a call into Python.
   Whether that was possible: not where there is more to do than that, or no room. */
static int put_lost(Core *core, Operation *operation) {
    PyObject *key, *found, *put = core->put;
    if (core->fallen != NULL || operation->dict != NULL || put == NULL || !PyCFunction_Check(put) ||
        PyCFunction_GET_FUNCTION(put) != window_put_method)
        return 0;
    Window *window = (Window *)PyCFunction_GET_SELF(put);
    if (window->end - window->position < LINE) return 0;
    if ((key = PyLong_FromVoidPtr((void *)operation->work)) == NULL) return 0;
    found = PyDict_GetItemWithError(core->open, key);
    Py_DECREF(key);
    if (PyErr_Occurred() || unfollow(core, operation) < 0) return 0;
    if (found != (PyObject *)operation || operation->ended) return 1;
    return put_event(core, LOST, operation, NOTHING) == 0;
}

/* Called as the callback of `reference`: nobody holds its Work any more. The reference goes at
   once, before the Work's address can be another's. An exception has nowhere to go from here, so
   no code of Python's runs: a signal handler would run in its midst. */
static PyObject *operation_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf,
                                      PyObject *Py_UNUSED(kwnames)) {
    Operation *self = (Operation *)op;
    Core *core = self->core;
    if (PyVectorcall_NARGS(nargsf) != 1 || args[0] != self->reference) Py_RETURN_NONE;
    Py_CLEAR(self->reference);
    if (!given(core->dropped) || core->works == NULL || put_lost(core, self)) Py_RETURN_NONE;
    PyErr_Clear(); /* no memory: Python sees to it */
    *core->last_fallen = (Operation *)Py_NewRef(op);
    core->last_fallen = &self->fallen;
    Py_RETURN_NONE;
}

/* ---- Core: what Python sees ---------------------------------------------------------------- */

static PyMemberDef core_members[] = {
    {"off", T_BOOL, offsetof(Core, off), 0, "Every call passes as it is."},
    {"idle", T_BOOL, offsetof(Core, idle), 0, "See PlainCore.idle."},
    {"t0", T_LONGLONG, offsetof(Core, t0), 0, NULL},
    {"put", T_OBJECT, offsetof(Core, put), 0, NULL},
    {"recover", T_OBJECT, offsetof(Core, recover), 0, NULL},
    {"threads", T_OBJECT, offsetof(Core, threads), 0, NULL},
    {"_thread", T_OBJECT, offsetof(Core, thread), READONLY, NULL},
    {"is_ours", T_OBJECT, offsetof(Core, is_ours), 0, NULL},
    {"take_off", T_OBJECT, offsetof(Core, take_off), 0, NULL},
    {"clock", T_OBJECT, offsetof(Core, clock), 0, NULL},
    {"ambient", T_OBJECT, offsetof(Core, ambient), 0, NULL},
    {"wake", T_OBJECT, offsetof(Core, wake), 0, NULL},
    {"dropped", T_OBJECT, offsetof(Core, dropped), 0, NULL},
    {"enqueued", T_OBJECT, offsetof(Core, enqueued), 0, "See Works.given_to."},
    {"works", T_OBJECT, offsetof(Core, works), READONLY, NULL},
    {"open", T_OBJECT, offsetof(Core, open), READONLY, NULL},
    {"results", T_OBJECT, offsetof(Core, results), READONLY, NULL},
    {"modes", T_OBJECT, offsetof(Core, modes), 0, NULL},
    {"deferring", T_OBJECT, offsetof(Core, deferring), 0, NULL},
    {"groups", T_LONGLONG, offsetof(Core, groups), 0, NULL},
    {"depth", T_INT, offsetof(Core, depth), 0, "Frames of a stack."},
    {"begun", T_LONGLONG, offsetof(Core, begun), READONLY, "See PlainCore.begun."},
    {"whose", T_OBJECT, offsetof(Core, whose), 0, "Whose code is: what its number ends with."},
    {"tensor", T_OBJECT, offsetof(Core, tensor), 0, "torch.Tensor."},
    {"of_tensors", T_OBJECT, offsetof(Core, of_tensors), 0, "See hot_path.of_tensors."},
    {"overridden", T_OBJECT, offsetof(Core, overridden), 0, "See hot_path.overridden."},
    {"tensor_key", T_OBJECT, offsetof(Core, tensor_key), 0, "See hot_path.tensor_key."},
    {"kinds", T_OBJECT, offsetof(Core, kinds), 0, "See hot_path.kinds."},
    {"plain", T_OBJECT, offsetof(Core, plain), 0, "See redact.Masker.plain."},
    {NULL},
};

static PyObject *core_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *pieces;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &pieces)) return NULL;
    Core *self = (Core *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->state = PyType_GetModuleState(own_type(type));
    self->all_pieces = Py_NewRef(pieces);
    self->bound = 5 * 20; /* digits of its numbers */
    for (int i = 0; i < PIECES; i++) {
        self->pieces[i] = text_of(PyTuple_GetItem(pieces, i)); /* raises if it is not there */
        self->bound += self->pieces[i].length;
    }
    self->flight = (Link){&self->flight, &self->flight};
    self->last_fallen = &self->fallen;
    self->first_code = self->state->numbers->last + OWNER + 1;
    self->works = PyDict_New();
    self->open = PyDict_New();
    self->results = PyDict_New();
    self->rows = PyMem_RawCalloc(ROWS, sizeof(Row)); /* what is not used of it does not exist */
    if (self->rows == NULL) PyErr_NoMemory();
    if (self->bound > LINE / 2) PyErr_SetString(PyExc_ValueError, "these pieces are too long");
    if (PyErr_Occurred()) Py_CLEAR(self);
    return (PyObject *)self;
}

static int core_clear(PyObject *op) {
    Core *self = (Core *)op;
    Operation *fallen;
    self->off = 1;
    self->thread_id = 0;
    forget_calls(self);
    while ((fallen = take_fallen(self)) != NULL) Py_DECREF(fallen);
    return object_clear(op);
}

static void core_dealloc(PyObject *op) {
    Core *self = (Core *)op;
    PyObject_GC_UnTrack(op);
    core_clear(op);
    Py_XDECREF(self->all_pieces);
    PyMem_RawFree(self->rows);
    object_dealloc(op);
}

static PyObject *core_begin_method(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    PyTypeObject **types = ((Core *)op)->state->types;
    if (nargs < 2 || !PyObject_TypeCheck(args[0], types[THREAD]) ||
        !PyObject_TypeCheck(args[1], types[CALL]) || (nargs > 2 && !PyBytes_Check(args[2]))) {
        PyErr_SetString(PyExc_TypeError, "begin(thread, call[, extra])");
        return NULL;
    }
    Text extra = text_of(nargs > 2 ? args[2] : NULL);
    return (PyObject *)core_begin((Core *)op, (Thread *)args[0], (Call *)args[1], extra);
}

/* event(kind, operation[, extra]): see core.py's NativeCore, where each kind has a name. */
static PyObject *core_event(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    Core *self = (Core *)op;
    long kind = nargs > 1 ? PyLong_AsLong(args[0]) : -1;
    if (kind < ISSUED || kind > OVER || kind == COMPLETE ||
        !Py_IS_TYPE(args[1], self->state->types[OPERATION]) ||
        (nargs > 2 && (!PyBytes_Check(args[2]) || PyBytes_GET_SIZE(args[2]) > LINE / 2))) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "no event of an operation");
        return NULL;
    }
    Text further = text_of(nargs > 2 ? args[2] : NULL);
    if (put_event(self, (int)kind, (Operation *)args[1], further) < 0) return NULL;
    Py_RETURN_NONE;
}

/* completed(operations, at): see core.py. */
static PyObject *core_completed(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    Core *self = (Core *)op;
    int64_t at = nargs == 2 && PyList_Check(args[0]) ? PyLong_AsLongLong(args[1]) : 0;
    if (nargs != 2 || !PyList_Check(args[0])) PyErr_SetString(PyExc_TypeError, "a list, and when");
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < PyList_GET_SIZE(args[0]); i++) {
        Operation *each = (Operation *)PyList_GET_ITEM(args[0], i);
        if (!Py_IS_TYPE(each, self->state->types[OPERATION])) {
            PyErr_SetString(PyExc_TypeError, "not an operation of this core");
        } else if (!each->ended) {
            int64_t elapsed = at - each->begin, gap = elapsed - each->issued;
            int64_t numbers[] = {each->n, elapsed, gap > 0 ? gap : 0};
            char line[LINE];
            operation_over(each); /* the list has a reference */
            put_line(self, line, write_record(self->pieces, COMPLETE, line, numbers, &NOTHING, 1));
        }
    }
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *core_in_flight(PyObject *op, PyObject *Py_UNUSED(ignored)) {
    Core *self = (Core *)op;
    PyObject *all = PyList_New(0);
    for (Link *each = self->flight.newer; all != NULL && each != &self->flight; each = each->newer)
        if (PyList_Append(all, (PyObject *)((char *)each - offsetof(Operation, link))) < 0)
            Py_CLEAR(all);
    return all;
}

/* find(name, group, values, frame[, call]): the call of an operator in a group with these values at
   this place, and None where it is not known. With a call, it is that from now on. */
static PyObject *core_find(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    Core *self = (Core *)op;
    PyTypeObject *type = self->state->types[CALL];
    if (nargs < 4 || !PyFrame_Check(args[3]) || (nargs > 4 && !PyObject_TypeCheck(args[4], type))) {
        PyErr_SetString(PyExc_TypeError, "find(name, group, values, frame[, call])");
        return NULL;
    }
    Key key;
    key.count = 0;
    int done = 1;
    for (int i = 0; done > 0 && i < 3; i++) done = push_value(self, &key, args[i], 0);
    if (done > 0) done = push_place(self, &key, (PyFrameObject *)args[3]);
    if (done < 0) return NULL;
    if (done > 0 && nargs > 4) remember_call(self, &key, (Call *)args[4]);
    PyObject *found = done > 0 ? (PyObject *)find_row(self, &key)->call : NULL;
    return Py_NewRef(found ? found : Py_None);
}

static PyObject *core_next_dropped(PyObject *op, PyObject *Py_UNUSED(ignored)) {
    Operation *fallen = take_fallen((Core *)op);
    return fallen ? (PyObject *)fallen : Py_NewRef(Py_None);
}

static PyObject *core_forget_calls(PyObject *op, PyObject *Py_UNUSED(ignored)) {
    Core *self = (Core *)op;
    forget_calls(self);
    self->first_code = self->state->numbers->last + OWNER + 1;
    self->thread_id = 0; /* after a fork another thread may have it */
    Py_RETURN_NONE;
}

static PyMethodDef core_methods[] = {
    {"begin", (PyCFunction)(void (*)(void))core_begin_method, METH_FASTCALL, NULL},
    {"event", (PyCFunction)(void (*)(void))core_event, METH_FASTCALL, NULL},
    {"find", (PyCFunction)(void (*)(void))core_find, METH_FASTCALL, NULL},
    {"completed", (PyCFunction)(void (*)(void))core_completed, METH_FASTCALL, NULL},
    {"in_flight", core_in_flight, METH_NOARGS, "Operations that are not over, oldest first."},
    {"next_dropped", core_next_dropped, METH_NOARGS, "One whose Work is gone, else None."},
    {"forget_calls", core_forget_calls, METH_NOARGS, "Let go of calls and what is known of code."},
    {NULL},
};

/* ---- Method: the wrapper of one method ------------------------------------------------------ */

typedef struct {
    Wrapper of;
    vectorcallfunc vectorcall;
    PyObject *part;         /* what is rare, in Python (see capture/wrapping/hot_path.py) */
    PyObject *begin;        /* of a call that was not seen before; None: this is a wait */
    PyObject *numbers;      /* {id(object): number of a group or store} */
    PyObject *asynchronous; /* says of a frame whether its call waits; None: the options say it */
    PyObject *varying;      /* what a begin record adds where the call is not whole */
    /* Of operators: what is called where the call is known, or passes; and whether this comes to
       the kernels, of a first argument that is no mere tensor. */
    PyObject *direct, *passes;
    /* Of what is made of several: positions of arguments that tell calls apart, that of the group
       (-1: none), and where the group is found where that is None: an object, and the names of
       attributes from there. */
    PyObject *shown, *by_default;
    int group_at;
    /* Of stores: what a begin record has besides, and {key: its text}. */
    PyObject *describe, *keys;
    int value; /* of stores: position of what is stored, 0: nothing */
    char returns_value;
    char tells; /* the part whatever a call returned that issued */
    char waits; /* an operator that waits for a result */
    PyMethodDef definition; /* of the builtin that stands on the class */
} Method;

static PyMemberDef method_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Method, vectorcall), READONLY, NULL},
    {"core", T_OBJECT, offsetof(Method, of.core), READONLY, NULL},
    {"__name__", T_OBJECT, offsetof(Method, of.name), READONLY, NULL},
    {"__wrapped__", T_OBJECT, offsetof(Method, of.original), READONLY, NULL},
    {"__doc__", T_OBJECT, offsetof(Method, of.doc), READONLY, NULL},
    {"part", T_OBJECT, offsetof(Method, part), 0, NULL},
    {"begin", T_OBJECT, offsetof(Method, begin), 0, NULL},
    {"numbers", T_OBJECT, offsetof(Method, numbers), 0, NULL},
    {"asynchronous", T_OBJECT, offsetof(Method, asynchronous), 0, NULL},
    {"varying", T_OBJECT, offsetof(Method, varying), 0, NULL},
    {"direct", T_OBJECT, offsetof(Method, direct), 0, NULL},
    {"passes", T_OBJECT, offsetof(Method, passes), 0, NULL},
    {"waits", T_BOOL, offsetof(Method, waits), 0, NULL},
    {"shown", T_OBJECT, offsetof(Method, shown), 0, NULL},
    {"by_default", T_OBJECT, offsetof(Method, by_default), 0, NULL},
    {"group_at", T_INT, offsetof(Method, group_at), 0, NULL},
    {"describe", T_OBJECT, offsetof(Method, describe), 0, NULL},
    {"keys", T_OBJECT, offsetof(Method, keys), 0, NULL},
    {"value", T_INT, offsetof(Method, value), 0, NULL},
    {"returns_value", T_BOOL, offsetof(Method, returns_value), 0, NULL},
    {"tells", T_BOOL, offsetof(Method, tells), 0, NULL},
    {NULL},
};

/* Tell the part how a call ended. -1 with an exception. */
static int tell(Method *self, const char *how, Thread *thread, Operation *operation,
                PyObject *result) {
    return success(PyObject_CallMethod(self->part, how, "OOO", thread, operation, result));
}

/* Whether memory or the stack has come to its end. */
static int is_scarcity(PyObject *error) {
    return PyErr_GivenExceptionMatches(error, PyExc_MemoryError) ||
           PyErr_GivenExceptionMatches(error, PyExc_RecursionError);
}

/* The exception that is set goes to the user, who has not called what of ours was running. */
static void take_off(Core *core) {
    PyObject *error = take_error();
    if (success(PyObject_CallFunctionObjArgs(core->take_off, error, NULL)) == 0) {
        set_error(error);
        return;
    }
    PyObject *newer = take_error(); /* a handler's that came meanwhile */
    if (is_scarcity(newer)) {
        Py_DECREF(newer);
        newer = error;
    } else
        Py_DECREF(error);
    set_error(newer);
}

/* Say our failure, and let go of it. -1 where it is not ours, and set again. */
static int fail(Method *self, PyObject *error) {
    int done = success(PyObject_CallMethod(self->part, "fail", "O", error));
    if (done < 0) {
        PyObject *raised = take_error();
        if (raised != error && is_scarcity(raised)) { /* too little left to say it */
            Py_DECREF(raised);
            done = 0;
        } else
            set_error(raised);
    }
    Py_DECREF(error);
    return done;
}

/* The exception that is set, taken away if it is ours. NULL: it is not, and one is set. */
static PyObject *forgive(Method *self) {
    PyObject *error = take_error(), *asked = NULL;
    PyObject *told = PyObject_CallFunctionObjArgs(self->of.core->is_ours, error, NULL);
    int ours = told == Py_True;
    Py_XDECREF(told);
    if (told == NULL) {
        asked = take_error();
        ours = is_scarcity(error) && is_scarcity(asked); /* too little left to ask */
    }
    if (ours) {
        Py_XDECREF(asked);
        return error;
    }
    if (asked != NULL && !is_scarcity(asked)) {
        Py_SETREF(error, asked); /* a handler's that came meanwhile */
    } else
        Py_XDECREF(asked);
    set_error(error);
    return NULL;
}

/* We have failed, an exception says so: if nothing follows the operation to its end, it has one. */
static void give_up(Core *core, Operation *operation) {
    PyObject *type, *error, *traceback;
    if (operation->ended || operation->work != 0) return;
    PyErr_Fetch(&type, &error, &traceback);
    put_event(core, LOST, operation, (Text){",\"o\":1", 6});
    PyErr_Restore(type, error, traceback); /* replaces what may have been raised meanwhile */
}

/* Whether an operator with this first argument comes to kernels; -1: an exception. */
static int passes_kernels(Method *self, PyObject *first) {
    Core *core = self->of.core;
    int mere = (PyObject *)Py_TYPE(first) == core->tensor && given(core->modes);
    PyObject *told =
        mere ? PyObject_CallNoArgs(core->modes) : PyObject_CallOneArg(self->passes, first);
    int is = told ? PyObject_IsTrue(told) : -1;
    Py_XDECREF(told);
    return mere && is >= 0 ? !is : is;
}

/* What a mere tensor shares with its views (a new reference). NULL without an exception where it
   has none, or where a mode of the program's would be asked for it. */
static PyObject *storage_of(Core *core, PyObject *tensor) {
    PyObject *storage, *number = NULL;
    if ((PyObject *)Py_TYPE(tensor) != core->tensor || is_overridden(core, tensor)) return NULL;
    storage = PyObject_CallOneArg(PyTuple_GET_ITEM(core->of_tensors, 4), tensor);
    if (storage != NULL) {
        PyObject *address = PyTuple_GET_ITEM(core->of_tensors, 5);
        number = Py_TYPE(address)->tp_descr_get(address, storage, (PyObject *)Py_TYPE(storage));
        Py_DECREF(storage);
    }
    if (number == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) PyErr_Clear();
    return number;
}

/* Begin a wait for what `tensor` holds, if that is the result of an operator's that is not over. */
static Operation *begin_result(Method *self, PyObject *const *args, Py_ssize_t nargs,
                               PyObject *kwnames) {
    Core *core = self->of.core;
    if (PyDict_GET_SIZE(core->results) == 0 || nargs != 2 || kwnames != NULL ||
        (PyObject *)Py_TYPE(args[1]) == core->deferring)
        return NULL;
    PyObject *number = storage_of(core, args[1]);
    if (number == NULL) {
        PyObject *begun = PyErr_Occurred() ? NULL : PyObject_Vectorcall(self->begin, args, 2, NULL);
        if (begun == Py_None) Py_CLEAR(begun);
        return (Operation *)begun;
    }
    Operation *found = (Operation *)PyDict_GetItemWithError(core->results, number);
    Py_DECREF(number);
    if (found == NULL) return NULL;
    Py_INCREF(found);
    if (passes_kernels(self, args[1]) <= 0 || put_event(core, WAIT, found, NOTHING) < 0)
        Py_CLEAR(found);
    return found;
}

/* It ends with a wait for `result`. 1: done; 0: Python has to see to it; -1: an exception. */
static int expect(Core *core, Operation *operation, PyObject *result) {
    PyObject *number = storage_of(core, result);
    if (number == NULL) return PyErr_Occurred() ? -1 : 0;
    Operation *before = (Operation *)PyDict_GetItemWithError(core->results, number);
    int done = before == NULL || before->ended || given(before->reference);
    if (done) {
        Py_XSETREF(operation->tensors, PyTuple_Pack(1, number));
        if (operation->tensors == NULL ||
            PyDict_SetItem(core->results, number, (PyObject *)operation) < 0)
            done = -1;
    }
    Py_DECREF(number);
    return done;
}

/* Nothing more is expected of its results. */
static int forget_results(Core *core, Operation *operation) {
    PyObject *all = operation->tensors;
    for (Py_ssize_t i = 0; all && PyTuple_Check(all) && i < PyTuple_GET_SIZE(all); i++) {
        PyObject *number = PyTuple_GET_ITEM(all, i);
        PyObject *found = PyDict_GetItemWithError(core->results, number);
        if (found == (PyObject *)operation && PyDict_DelItem(core->results, number) < 0) return -1;
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* The number of a group or a store (a new reference). NULL without an exception: it has none. */
static PyObject *number_of(Method *self, PyObject *owner) {
    PyObject *key = PyLong_FromVoidPtr(owner);
    PyObject *number = key ? PyDict_GetItemWithError(self->numbers, key) : NULL;
    Py_XDECREF(key);
    return Py_XNewRef(number);
}

/* The group on which what is made of several runs by default (a new reference). NULL without an
   exception: it is not where it was expected. */
static PyObject *default_group(Method *self) {
    PyObject *path = self->by_default, *at = Py_NewRef(PyTuple_GET_ITEM(path, 0));
    for (Py_ssize_t i = 1; at != NULL && i < PyTuple_GET_SIZE(path); i++)
        Py_SETREF(at, PyObject_GetAttr(at, PyTuple_GET_ITEM(path, i)));
    if (at == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
    return at;
}

/* The key of a call at `frame`. 1: done; 0: calls of this form have none; -1: an exception. */
static int push_call(Method *self, Key *key, PyFrameObject *frame, PyObject *const *args,
                     Py_ssize_t nargs, PyObject *kwnames) {
    Core *core = self->of.core;
    int done = push_address(key, self);
    PyObject *owner = args[0];
    if (given(self->direct)) { /* an operator, which lives for ever, and names its group */
        int come = kwnames == NULL && nargs > 1 ? passes_kernels(self, args[1]) : 0;
        if (come <= 0) return come;
        done = push_address(key, owner) && push(key, (uint64_t)core->groups);
    } else {
        if (given(self->shown))
            owner = self->group_at >= 0 && self->group_at < nargs ? args[self->group_at] : Py_None;
        PyObject *found = NULL;
        if (owner == Py_None && given(self->by_default) && PyTuple_Check(self->by_default))
            owner = found = default_group(self);
        PyObject *number = owner == NULL      ? NULL
                           : owner == Py_None ? PyLong_FromLong(-1)
                                              : number_of(self, owner);
        Py_XDECREF(found);
        if (number == NULL) return PyErr_Occurred() ? -1 : 0; /* not known yet */
        done = done && push_value(core, key, number, 0);
        Py_DECREF(number);
    }
    Py_ssize_t count = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0), first = 1;
    if (given(self->describe)) first = count; /* of a store's method they are no part of its call */
    else if (done > 0) done = push(key, (uint64_t)nargs);
    if (given(self->shown)) {
        for (Py_ssize_t i = 0; done > 0 && i < PyTuple_GET_SIZE(self->shown); i++) {
            Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(self->shown, i));
            done = at < nargs ? push_value(core, key, args[at], 0) : 0;
        }
        first = nargs;
    }
    if (done > 0 && kwnames != NULL && first < count) done = push_value(core, key, kwnames, 0);
    for (Py_ssize_t i = first; done > 0 && i < count; i++)
        done = push_value(core, key, args[i], 0);
    if (done > 0 && given(self->asynchronous)) {
        PyObject *from = frame ? (PyObject *)frame : Py_None;
        PyObject *told = PyObject_CallOneArg(self->asynchronous, from);
        done = push_value(core, key, told, 0);
        Py_XDECREF(told);
    }
    return done > 0 ? push_place(core, key, frame) : done;
}

/* Write the text of a key that nobody could take for a secret, or for more than a word: see
   redact.Masker.plain. NULL: it is another. */
static char *put_plain(Core *core, char *out, PyObject *key) {
    Text plain = text_of(core->plain);
    if (plain.length != 129 || !PyUnicode_IS_COMPACT_ASCII(key) ||
        PyUnicode_GET_LENGTH(key) > LINE / 2)
        return NULL;
    const unsigned char *text = PyUnicode_1BYTE_DATA(key);
    int run = 0;
    *out++ = '"';
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(key); i++) {
        run = plain.start[text[i]] == 2 ? run + 1 : 0;
        if (plain.start[text[i]] == 0 || run > plain.start[128]) return NULL;
        *out++ = (char)text[i];
    }
    *out++ = '"';
    return out;
}

/* Write what a begin record of a store operation has besides, at most 2 * LINE bytes. Returns its
   end; NULL where the call has an unusual form, which Python describes. */
static char *put_details(Method *self, char *out, PyObject *const *args, Py_ssize_t nargs) {
    if (given(self->keys)) {
        if (nargs < 2 || !PyUnicode_CheckExact(args[1])) return NULL;
        out = put_text(out, (Text){",\"k\":", 5});
        char *end = put_plain(self->of.core, out, args[1]);
        if (end == NULL) { /* Python makes it once, its secrets masked */
            Text made = text_of(PyDict_GetItemWithError(self->keys, args[1]));
            if (made.length == 0 || made.length > LINE) return NULL;
            end = put_text(out, made);
        }
        out = end;
    }
    if (self->value) {
        PyObject *value = nargs > 1 + self->value ? args[1 + self->value] : Py_None;
        int ascii = PyUnicode_CheckExact(value) && PyUnicode_IS_COMPACT_ASCII(value);
        if (!ascii && !PyBytes_CheckExact(value)) return NULL;
        int64_t size = ascii ? PyUnicode_GET_LENGTH(value) : PyBytes_GET_SIZE(value);
        out = put_number(put_text(out, (Text){",\"n\":", 5}), size);
    }
    return out;
}

/* Put the begin on record. NULL with an exception, or where there is none. */
static Operation *begin(Method *self, Thread *thread, PyObject *const *args, Py_ssize_t nargs,
                        PyObject *kwnames) {
    Core *core = self->of.core;
    Key key;
    key.count = 0;
    int done = push_call(self, &key, PyEval_GetFrame(), args, nargs, kwnames);
    if (done < 0) { /* a property of the user's raised it, or a handler */
        PyObject *ours = forgive(self);
        if (ours == NULL) return NULL;
        Py_DECREF(ours);
    }
    Call *call = done > 0 ? (Call *)Py_XNewRef((PyObject *)find_row(core, &key)->call) : NULL;
    if (call == NULL && given(self->direct)) return NULL; /* kernels see it */
    if (call == NULL && done > 0 && given(self->varying)) {
        Key any = key;
        forget_lengths(&any);
        call = (Call *)Py_XNewRef((PyObject *)find_row(core, &any)->call);
    }
    if (call == NULL) {
        PyObject *made = PyObject_Vectorcall(self->begin, args, nargs, kwnames);
        if (made == Py_None) Py_CLEAR(made); /* there is none */
        if (made != NULL && !Py_IS_TYPE(made, core->state->types[OPERATION])) {
            PyErr_SetString(PyExc_TypeError, "not an operation of this core");
            Py_CLEAR(made);
        }
        call = made ? ((Operation *)made)->call : NULL;
        /* Where its begin records have to add lengths, it is that of any. */
        int any = call && !call->whole && given(self->varying) && counter_of(core, call);
        if (any) forget_lengths(&key);
        if (done > 0 && call != NULL && (call->whole || any)) remember_call(core, &key, call);
        return (Operation *)made;
    }
    char space[2 * LINE], *end = space;
    PyObject *told = NULL;
    if (given(self->describe)) {
        end = kwnames == NULL ? put_details(self, space, args, nargs) : NULL;
        if (end == NULL) told = PyObject_Vectorcall(self->describe, args + 1, nargs - 1, kwnames);
    } else if (!call->whole) {
        end = NULL;
        told = PyObject_Vectorcall(self->varying, args + 1, nargs - 1, kwnames);
    }
    Text details = end ? (Text){space, end - space} : text_of(told);
    Operation *operation = PyErr_Occurred() ? NULL : core_begin(core, thread, call, details);
    Py_XDECREF(told);
    Py_DECREF(call);
    if (operation != NULL && given(self->shown) && step_in(thread, operation->n) < 0) {
        give_up(core, operation);
        Py_CLEAR(operation);
    }
    return operation;
}

/* Begin the wait for a Work: of a call that waits itself, or later. NULL without an exception: of
   one that nobody knows. */
static Operation *begin_wait(Core *core, Thread *thread, PyObject *work) {
    Operation *operation = waits_for(thread, work);
    if (operation != NULL || PyErr_Occurred()) return operation;
    operation = followed(core, work);
    if (operation != NULL && put_event(core, WAIT, operation, NOTHING) < 0) Py_CLEAR(operation);
    return operation;
}

/* The user's call raised: its exception is set, and stays. */
static void failed(Method *self, Thread *thread, Operation *operation) {
    PyObject *error = take_error();
    int done = tell(self, "failed", thread, operation, error);
    if (done < 0) give_up(self->of.core, operation);
    if (done < 0 && fail(self, take_error()) < 0)
        Py_DECREF(error); /* a handler's came meanwhile: it is the newer one */
    else
        set_error(error);
}

/* A device will end it: `work` is what its call returned. */
static int enqueued(Core *core, Operation *operation, PyObject *work) {
    PyObject *told[] = {(PyObject *)operation, Py_None, work};
    PyObject *add = Py_NewRef(core->enqueued);
    int done = success(PyObject_Vectorcall(add, told, 3, NULL));
    Py_DECREF(add);
    return done;
}

/* The original returned: what that means for the operation. -1 with an exception. */
static int returned(Method *self, Thread *thread, Operation *operation, PyObject *owner,
                    PyObject *result) {
    Core *core = self->of.core;
    Call *call = operation->call;
    if (given(self->shown)) return put_event(core, END, operation, NOTHING);
    if (self->waits) {
        if (call->device_ends || operation->dict != NULL || given(operation->reference) ||
            !given(operation->tensors) || !PyTuple_Check(operation->tensors))
            return tell(self, "returned", thread, operation, result);
        int done = forget_results(core, operation);
        return put_event(core, END, operation, NOTHING) < 0 ? -1 : done;
    }
    if (given(self->direct)) {
        if (put_event(core, ISSUED, operation, NOTHING) < 0) return -1;
        int done = call->device_ends ? 0 : expect(core, operation, result);
        if (done == 0) return tell(self, "returned", thread, operation, result);
        return done < 0 ? -1 : 0;
    }
    if (!given(self->begin)) { /* of a wait the owner is the Work */
        if (call->device_ends && operation->dict == NULL && given(core->enqueued))
            return call->synchronous ? enqueued(core, operation, owner) : unfollow(core, operation);
        if (!counter_of(core, call) || call->device_ends || operation->dict != NULL)
            return tell(self, "returned", thread, operation, owner);
        if (call->synchronous) return put_event(core, END_SYNCHRONOUS, operation, NOTHING);
        int done = unfollow(core, operation);
        return put_event(core, END, operation, NOTHING) < 0 ? -1 : done;
    }
    if (given(self->describe)) { /* an operation of a store is over */
        char size[32], *end = size;
        if (self->returns_value && !PyBytes_CheckExact(result))
            return tell(self, "returned", thread, operation, result);
        if (self->returns_value)
            end = put_number(put_text(size, (Text){",\"n\":", 5}), PyBytes_GET_SIZE(result));
        return put_event(core, END, operation, (Text){size, end - size});
    }
    /* A collective or a message was issued: its end is in the wait, which its public function does
       itself if it is synchronous. */
    if (result != Py_None && call->synchronous) {
        int done = 0;
        if (call->device_ends) /* its wait orders streams, and the device goes on */
            done = put_event(core, ISSUED, operation, NOTHING);
        else
            operation->issued = now(core) - operation->begin;
        return will_wait(thread, operation, result) < 0 ? -1 : done;
    }
    /* Python says of a Work without weak references that nobody will see it complete. */
    int on_device = call->device_ends && given(core->enqueued), nothing = result == Py_None;
    if (self->tells || given(thread->batches) || (call->device_ends && !on_device) ||
        (nothing ? !on_device : !PyType_SUPPORTS_WEAKREFS(Py_TYPE(result))))
        return tell(self, "returned", thread, operation, result);
    int done = put_event(core, ISSUED, operation, NOTHING);
    if (done == 0 && !nothing) done = follow(core, operation, result);
    return done == 0 && on_device ? enqueued(core, operation, result) : done;
}

static PyObject *method_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf,
                                   PyObject *kwnames) {
    Method *self = (Method *)op;
    Core *core = self->of.core;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    PyObject *known = given(self->direct) ? self->direct : self->of.original;
    if (core->off || nargs < 1) return PyObject_Vectorcall(known, args, nargs, kwnames);
    Thread *thread = current_thread(core);
    if (thread != NULL && thread->inside) return PyObject_Vectorcall(known, args, nargs, kwnames);
    Operation *operation = NULL;
    PyObject *ours = NULL, *result = NULL;
    int done = 0;
    Py_XINCREF(thread); /* Python runs from here on */
    if (thread != NULL)
        operation = self->waits          ? begin_result(self, args, nargs, kwnames)
                    : given(self->begin) ? begin(self, thread, args, nargs, kwnames)
                                         : begin_wait(core, thread, args[0]);
    if (operation == NULL) {
        if (!PyErr_Occurred() || (ours = forgive(self)) != NULL)
            result = PyObject_Vectorcall(self->of.original, args, nargs, kwnames);
        if (result == NULL) Py_CLEAR(ours); /* what torch refuses, too, is no failure of ours */
    } else {
        thread->inside = !given(self->shown);
        result = PyObject_Vectorcall(known, args, nargs, kwnames);
        thread->inside = 0;
        if (given(self->shown)) {
            PyObject *error = result ? NULL : take_error();
            if (step_out(thread, operation->n) < 0) PyErr_Clear(); /* no memory */
            if (error != NULL) set_error(error);
        }
        if (result == NULL)
            failed(self, thread, operation);
        else
            done = returned(self, thread, operation, args[0], result);
    }
    if (done < 0) {
        give_up(core, operation);
        ours = take_error();
    }
    if (ours != NULL && fail(self, ours) < 0) Py_CLEAR(result);
    if (result == NULL && given(core->take_off)) take_off(core);
    Py_XDECREF(thread);
    Py_XDECREF(operation);
    return result;
}

static PyObject *method_call(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *kwnames) {
    return method_vectorcall(op, args, (size_t)nargs, kwnames);
}

/* Of both types: what stands in the place of `original`, an attribute of a class of torch's. */
static PyObject *wrapper_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyTypeObject **types = ((State *)PyType_GetModuleState(type))->types;
    PyTypeObject *expected = type == types[OPTION] ? &PyProperty_Type : &PyBaseObject_Type;
    PyObject *core, *name, *original;
    if (!PyArg_ParseTuple(args, "O!UO!", types[CORE], &core, &name, expected, &original))
        return NULL;
    Wrapper *self = (Wrapper *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->core = (Core *)Py_NewRef(core);
    self->name = Py_NewRef(name);
    self->original = Py_NewRef(original);
    self->doc = PyObject_GetAttrString(original, "__doc__");
    PyErr_Clear();
    if (type == types[METHOD]) ((Method *)self)->vectorcall = method_vectorcall;
    return (PyObject *)self;
}

/* What stands on a class where a builtin stood. pybind11 takes whatever is no builtin for the
   override of a Python subclass, and would call it for ever; its own are made like this. */
static PyObject *method_builtin(PyObject *op, PyObject *from) {
    Method *self = (Method *)op;
    PyMethodDef *definition = &self->definition;
    definition->ml_name = PyUnicode_AsUTF8(self->of.name);
    definition->ml_meth = (PyCFunction)(void (*)(void))method_call;
    definition->ml_flags = METH_FASTCALL | METH_KEYWORDS;
    if (self->of.doc != NULL && PyUnicode_Check(self->of.doc))
        definition->ml_doc = PyUnicode_AsUTF8(self->of.doc);
    if (definition->ml_name == NULL) return NULL;
    PyErr_Clear(); /* of a text that is no UTF-8: then there is no documentation */
    PyObject *function = PyCFunction_NewEx(definition, op, from);
    PyObject *made = function ? PyInstanceMethod_New(function) : NULL;
    Py_XDECREF(function);
    return made;
}

/* On a class it is a method, as a Python function is. */
static PyObject *method_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type)) {
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

/* remember(call, frame, *arguments): those arguments there are that call from now on. */
static PyObject *method_remember(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    Method *self = (Method *)op;
    Core *core = self->of.core;
    Key key;
    key.count = 0;
    if (nargs < 3 || !PyObject_TypeCheck(args[0], core->state->types[CALL]) ||
        !PyFrame_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "remember(call, frame, *arguments)");
        return NULL;
    }
    int done = push_call(self, &key, (PyFrameObject *)args[1], args + 2, nargs - 2, NULL);
    if (done > 0) remember_call(core, &key, (Call *)args[0]);
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef method_methods[] = {
    {"remember", (PyCFunction)(void (*)(void))method_remember, METH_FASTCALL, NULL},
    {"builtin", method_builtin, METH_O, "The same as a builtin of the module of this name."},
    {NULL},
};

/* ---- the module ------------------------------------------------------------------------------ */

static PyType_Slot window_slots[] = {
    {Py_tp_new, window_new},
    {Py_tp_dealloc, window_dealloc},
    {Py_tp_methods, window_methods},
    {0, NULL},
};
static PyType_Slot call_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, object_dealloc},
    {Py_tp_members, call_members},
    {0, NULL},
};
static PyType_Slot thread_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, object_dealloc},
    {Py_tp_members, thread_members},
    {0, NULL},
};
static PyType_Slot operation_slots[] = {
    {Py_tp_dealloc, object_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, operation_members},
    {0, NULL},
};
static PyType_Slot core_slots[] = {
    {Py_tp_new, core_new},             {Py_tp_dealloc, core_dealloc},
    {Py_tp_traverse, object_traverse}, {Py_tp_clear, core_clear},
    {Py_tp_methods, core_methods},     {Py_tp_members, core_members},
    {0, NULL},
};
static PyType_Slot option_slots[] = {
    {Py_tp_new, wrapper_new},          {Py_tp_dealloc, object_dealloc},
    {Py_tp_traverse, object_traverse}, {Py_tp_descr_get, option_get},
    {Py_tp_descr_set, option_set},     {Py_tp_members, option_members},
    {Py_tp_getattro, option_getattr},  {Py_tp_repr, option_repr},
    {0, NULL},
};
static PyType_Slot method_slots[] = {
    {Py_tp_new, wrapper_new},          {Py_tp_dealloc, object_dealloc},
    {Py_tp_traverse, object_traverse}, {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, method_get},     {Py_tp_methods, method_methods},
    {Py_tp_members, method_members},   {0, NULL},
};

#define TYPE(name, struct, items, flags, slots) \
    {"disttrace.recording._fast." name, sizeof(struct), items, Py_TPFLAGS_DEFAULT | (flags), slots}
static PyType_Spec specs[TYPES] = {
    [WINDOW] = TYPE("Window", Window, 0, 0, window_slots),
    [CALL] = TYPE("Call", Call, 0, Py_TPFLAGS_BASETYPE, call_slots),
    [THREAD] = TYPE("ThreadState", Thread, 0, Py_TPFLAGS_BASETYPE, thread_slots),
    [OPERATION] =
        TYPE("Operation", Operation, 1,
             Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_VECTORCALL, operation_slots),
    [CORE] = TYPE("Core", Core, 0, Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, core_slots),
    [OPTION] = TYPE("Option", Option, 0, Py_TPFLAGS_HAVE_GC, option_slots),
    [METHOD] = TYPE("Method", Method, 0,
                    Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
                    method_slots),
};

static const char NUMBERS[] = "disttrace: numbers of code objects";

static void free_numbers(PyObject *capsule) { PyMem_Free(PyCapsule_GetPointer(capsule, NUMBERS)); }

/* Those of the interpreter; made by the first module that asks. */
static int find_numbers(State *state) {
    PyObject *all = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *owner = all ? Py_XNewRef(PyDict_GetItemString(all, NUMBERS)) : PyErr_NoMemory();
    if (all != NULL && owner == NULL) {
        Numbers *made = PyMem_Calloc(1, sizeof(Numbers));
        owner = made ? PyCapsule_New(made, NUMBERS, free_numbers) : PyErr_NoMemory();
        if (made != NULL && owner == NULL) PyMem_Free(made);
        if (owner == NULL) return -1;
        made->index = PyUnstable_Eval_RequestCodeExtraIndex(NULL);
        if (made->index < 0) /* others have them all */
            PyErr_SetString(PyExc_ImportError, "code objects have no room for a number");
        if (made->index < 0 || PyDict_SetItemString(all, NUMBERS, owner) < 0) Py_CLEAR(owner);
    }
    state->numbers_owner = owner;
    state->numbers = owner ? PyCapsule_GetPointer(owner, NUMBERS) : NULL;
    return state->numbers ? 0 : -1;
}

static int module_exec(PyObject *self) {
    State *state = PyModule_GetState(self);
    if (find_numbers(state) < 0) return -1;
    for (int i = 0; i < TYPES; i++) {
        state->types[i] = (PyTypeObject *)PyType_FromModuleAndSpec(self, &specs[i], NULL);
        if (state->types[i] == NULL || PyModule_AddType(self, state->types[i]) < 0) return -1;
    }
    /* Defined by who compiles: the checksum of this file, see choice.py. */
    return PyModule_AddIntConstant(self, "SOURCE", DISTTRACE_SOURCE);
}

static int module_traverse(PyObject *self, visitproc visit, void *arg) {
    State *state = PyModule_GetState(self);
    for (int i = 0; i < TYPES; i++) Py_VISIT(state->types[i]);
    return 0;
}

static int module_clear(PyObject *self) {
    State *state = PyModule_GetState(self);
    for (int i = 0; i < TYPES; i++) Py_CLEAR(state->types[i]);
    return 0;
}

static void module_free(void *self) {
    State *state = PyModule_GetState(self);
    if (state != NULL) Py_CLEAR(state->numbers_owner);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "disttrace.recording._fast",
    .m_doc = "The native core; see core.py.",
    .m_size = sizeof(State),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__fast(void) { return PyModuleDef_Init(&module); }
